"""The saga, as a pure function: `advance(state, event) -> (state, commands)`.

No input or output, no clock, no Temporal. The database is the commit point (DESIGN.md section 4), so the
reducer decides little on its own: every way that does not commit asks `close_intent` first and compensates what
*that* answer lists, never what it remembers; it says an outcome only after the database has set the phase.
Sources: Garcia-Molina & Salem, Sagas (1987) for backward and forward recovery; the barrier is DTM's.
"""

from dataclasses import replace
from types import MappingProxyType

from contracts.binding import resolve
from contracts.envelope import Cause, IntentReport, Outcome, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.plan import Plan, PlannedStep
from contracts.reasons import Reason
from contracts.saga import Ask, Cancellation, Closed, IntentPhase, ParkReason, Standing
from workflows import commands as do
from workflows import events as on
from workflows.state import Stage, State, Step

PARALLEL_STEPS_MAX = 8
Advance = tuple[State, tuple[do.Command, ...]]
NOTHING: tuple[do.Command, ...] = ()


def begin() -> Advance:
    """Start a saga: nothing is known before the database has spoken."""
    return State(), (do.Admit(),)


def advance(state: State, event: on.Event) -> Advance:  # noqa: C901, PLR0911, PLR0912 - one line per event
    """Take one event; return the next state and what is to be done."""
    if state.stage is Stage.FINISHED:
        return state, NOTHING
    match event:
        case on.Admitted(standing):
            return _stand(state, standing)
        case on.Rejected(error):
            return _reject(state, error)
        case on.CancelRequested(cancellation):
            return _cancel(state, cancellation)
        case on.DecisionAdmitted(answer):
            return _decide(replace(state, ask=_known(state.ask, answer.ask)))
        case on.ApprovalDue():
            return _close(state, Cause.EXPIRED) if state.stage is Stage.AWAITING_APPROVAL else (state, NOTHING)
        case on.StepLanded(result):
            landed = state.with_step(
                result.step_id,
                state=StepState.DONE,
                step_key=result.step_key,
                transaction_id=result.transaction_id,
                applied_args=result.applied_args,
                output=result.output,
            )
            if landed.known_plan.by_id[result.step_id].is_pivot:
                landed = replace(landed, past_pivot=True, cause=Cause.NONE)
            return _go_on(landed)
        case on.StepRefused(step_id, error):
            return _refused(state, step_id, error)
        case on.RunStale():
            return _go_on(replace(state, stale=True))
        case on.RunDoubted():
            rests = state.stage in (Stage.AWAITING_APPROVAL, Stage.PARKED)
            return _admit_again(state) if rests else (state, NOTHING)
        case on.IntentClosed(closed):
            return _closed(state, closed)
        case on.StepCompensated(result):
            undone = state.with_step(result.step_id, state=StepState.COMPENSATED, residue=result.residue, error=None)
            return _go_on(undone)
        case on.CompensationRefused(step_id, error):
            if error.code in (Reason.RUN_STALE, Reason.INTENT_PARKED):
                return _go_on(replace(state.with_step(step_id, state=StepState.DONE), stale=True))
            return _go_on(state.with_step(step_id, state=StepState.PARKED, error=error))
        case on.Resolved(_, answer):
            return _resolved(state, answer.standing)


def _go_on(state: State) -> Advance:
    """After an answer: the next thing on the way that the saga is on. Nothing new starts in a run that may be stale."""
    if state.stale:
        return (state, NOTHING) if state.running() else _admit_again(state)
    match state.stage:
        case Stage.FORWARD if state.cause is Cause.NONE or state.past_pivot:
            return _forward(state)
        case Stage.FORWARD if not state.running():
            return _close(state, state.cause)
        case Stage.COMPENSATING:
            return _back(state)
        case _:
            return state, NOTHING


# --- standing: what the database says, after admission, adoption, settling and parking -----------------------


def _stand(state: State, standing: Standing) -> Advance:
    """Take the database's word for how the intent stands, and go on from there."""
    stuck = (standing.parked_detail or {}).get("steps", [])
    state = replace(
        state,
        plan=standing.plan or state.plan,
        plan_digest=standing.plan_digest or state.plan_digest,
        intent_id=standing.intent_id,
        epoch=standing.epoch,
        ask=_known(state.ask, standing.ask),
        cause=standing.cause,
        error=standing.error or state.error,
        parked=standing.parked,
        parked_steps=tuple(step["step_id"] for step in stuck),
        stale=False,
    )
    if state.plan is not None and not state.steps:
        state = replace(state, steps=MappingProxyType(_steps_of(state.plan)))
    if standing.phase.is_final or standing.duplicate:
        return _finish(state, standing)
    if standing.parked is not None:
        return replace(state, stage=Stage.PARKED), NOTHING
    if standing.phase is IntentPhase.CLOSING:
        return _close(state, standing.cause)
    if state.cancellation is not None:
        return _close(state, Cause.CANCELLED)
    return _start(state)


def _steps_of(plan: Plan) -> dict[str, Step]:
    return {step.step_id: Step(step_id=step.step_id, tool=step.tool) for step in plan.steps}


def _finish(state: State, standing: Standing) -> Advance:
    report = standing.report or IntentReport(outcome=standing.phase.outcome, cause=standing.cause)
    ended = replace(state, stage=Stage.FINISHED, report=report)
    return ended, (do.Finish(report=report, error=standing.error, duplicate=standing.duplicate),)


def _reject(state: State, error: ErrorInfo) -> Advance:
    """End a run that claimed nothing; it fails, so that the same id may start again."""
    report = IntentReport(outcome=Outcome.NOT_APPLIED, cause=Cause.REJECTED)
    ended = replace(state, stage=Stage.FINISHED, report=report, cause=Cause.REJECTED, error=error)
    return ended, (do.Finish(report=report, error=error, failed=True),)


def _admit_again(state: State) -> Advance:
    """Another run may own the intent (reset, adoption): the database knows."""
    return replace(state, stage=Stage.ADMITTING), (do.Admit(),)


# --- decisions -----------------------------------------------------------------------------------------------


def _known(earlier: Ask, later: Ask) -> Ask:
    """Join two answers about decisions, which may come in any order: what was said once stays said."""
    denied = {*earlier.denied, *later.denied}
    approved = {*earlier.approved, *later.approved} - denied
    undecided = {*earlier.undecided, *later.undecided} - approved - denied
    return later.model_copy(
        update={
            "undecided": tuple(sorted(undecided)),
            "approved": tuple(sorted(approved)),
            "denied": tuple(sorted(denied)),
        }
    )


def _decide(state: State) -> Advance:
    """Act on a decision where it can be acted on; elsewhere the database's next answer has it too."""
    match state.stage:
        case Stage.AWAITING_APPROVAL if state.ask.denied:
            return _close(state, Cause.DENIED)
        case Stage.AWAITING_APPROVAL if not state.ask.undecided:
            return _start(state)
        case Stage.FORWARD if state.ask.denied and state.cause is Cause.NONE and not state.past_pivot:
            return _go_on(replace(state, cause=Cause.DENIED))
        case _:
            return state, NOTHING


def _start(state: State) -> Advance:
    """Set out: ask first where something is undecided, go back where somebody said no.

    Nothing runs now; whatever is not done is planned again, since the database knows what landed.
    """
    if state.ask.denied:
        return _close(state, Cause.DENIED)
    waits = StepState.AWAITING_APPROVAL
    for step_id, step in state.steps.items():
        if step.state is not StepState.DONE:
            state = state.with_step(
                step_id, state=waits if step_id in state.ask.undecided else StepState.PLANNED, error=None
            )
    if not state.ask.undecided:
        return _forward(replace(state, stage=Stage.FORWARD))
    waiting = replace(state, stage=Stage.AWAITING_APPROVAL)
    return waiting, (do.Ask(step_ids=state.ask.undecided, expires_in_seconds=state.ask.expires_in_seconds),)


# --- forward -------------------------------------------------------------------------------------------------


def _forward(state: State) -> Advance:
    """Start every step whose needs are done, at most eight at a time; settle when all are, park when none can."""
    plan = state.known_plan
    outputs = {step_id: step.output for step_id, step in state.steps.items() if step.output is not None}
    calls: list[do.Execute] = []
    ready = [step for step in plan.steps if _is_ready(state, step)]
    for planned in ready[: PARALLEL_STEPS_MAX - len(state.running())]:
        try:
            calls.append(do.Execute(step_id=planned.step_id, arguments=resolve(planned.arguments, outputs)))
        except SagaError as error:
            state = _without(state, planned.step_id, error.info)
    if state.cause is not Cause.NONE:
        calls = []
    for call in calls:
        state = state.with_step(call.step_id, state=StepState.EXECUTING, step_key=plan.execute_key(call.step_id))
    if calls or state.running():
        return state, tuple(calls)
    if all(step.state is StepState.DONE for step in state.steps.values()):
        return replace(state, stage=Stage.SETTLING), (do.Settle(),)
    if state.past_pivot:
        return _park(state, ParkReason.STUCK_AFTER_PIVOT)
    return _close(state, state.cause)


def _is_ready(state: State, planned: PlannedStep) -> bool:
    return state.steps[planned.step_id].state is StepState.PLANNED and all(
        state.steps[need].state is StepState.DONE for need in planned.needs
    )


def _refused(state: State, step_id: str, error: ErrorInfo) -> Advance:
    """A step said no. Before the pivot the saga turns back; after it, the others go on and a person is called."""
    if error.code in (Reason.RUN_STALE, Reason.INTENT_PARKED):
        return _go_on(replace(state.with_step(step_id, state=StepState.PLANNED), stale=True))
    return _go_on(_without(state, step_id, error))


def _without(state: State, step_id: str, error: ErrorInfo) -> State:
    """Note that a step did not land, and turn back if that is still possible."""
    superseded = error.code is Reason.SUPERSEDED
    state = state.with_step(step_id, state=StepState.SUPERSEDED if superseded else StepState.REFUSED, error=error)
    if state.cause is not Cause.NONE or state.past_pivot:
        return state
    cause = Cause.DEADLINE if error.code is Reason.DEADLINE_EXCEEDED else Cause.REFUSED
    return replace(state, cause=cause, error=error)


# --- back ----------------------------------------------------------------------------------------------------


def _cancel(state: State, cancellation: Cancellation) -> Advance:
    """Act on the wish, or remember it where the database's next answer may still leave the way open."""
    if state.cancellation is not None or state.past_pivot:
        return state, NOTHING
    wished = replace(state, cancellation=cancellation)
    match state.stage:
        case Stage.ADMITTING:
            return wished, NOTHING
        case Stage.AWAITING_APPROVAL:
            return _close(wished, Cause.CANCELLED)
        case Stage.FORWARD if state.cause is Cause.NONE:
            return _go_on(replace(wished, cause=Cause.CANCELLED))
        case Stage.CLOSING if state.cause is Cause.EXPIRED:
            return wished, NOTHING
        case _:
            return state, NOTHING


def _close(state: State, cause: Cause) -> Advance:
    """Fence all steps; nothing of ours runs, so the answer is the truth about what landed."""
    actor = state.cancellation.requested_by if state.cancellation and cause is Cause.CANCELLED else None
    error = state.error if cause in (Cause.REFUSED, Cause.DEADLINE) else None
    closing = replace(state, stage=Stage.CLOSING, cause=cause)
    return closing, (do.CloseIntent(cause=cause, error=error, actor=actor),)


def _closed(state: State, closed: Closed) -> Advance:
    """Compensate exactly what the database lists; or go where it says that the intent already is."""
    standing = closed.standing
    if closed.past_pivot:
        return _forward_past_pivot(state, closed)
    if standing.phase is not IntentPhase.CLOSING or standing.parked is not None:
        return _stand(state, standing)
    state = replace(
        state, stage=Stage.COMPENSATING, cause=standing.cause, error=standing.error or state.error, epoch=standing.epoch
    )
    if strange := sorted({effect.step_id for effect in closed.effects} - state.steps.keys()):
        detail = {"not_in_the_plan": strange}
        return replace(state, stage=Stage.PARKING), (do.Park(reason=ParkReason.MISMATCH, detail=detail),)
    for effect in closed.effects:
        state = state.with_step(
            effect.step_id,
            state={
                "LANDED": StepState.DONE,
                "COMPENSATED": StepState.COMPENSATED,
                "TOMBSTONE": StepState.SUPERSEDED,
            }[effect.state],
            transaction_id=effect.transaction_id,
            residue=effect.residue,
        )
    seen = {effect.step_id for effect in closed.effects}
    for step in state.known_plan.steps:
        known = state.steps[step.step_id].state
        if step.step_id not in seen and step.writes and known is StepState.DONE:
            state = state.with_step(step.step_id, state=StepState.SUPERSEDED)
        elif step.step_id not in seen and known is StepState.AWAITING_APPROVAL:
            state = state.with_step(step.step_id, state=StepState.PLANNED)
    return _back(state)


def _forward_past_pivot(state: State, closed: Closed) -> Advance:
    """The way back is shut: finish what cannot refuse. What landed unseen is run again, for its stored answer."""
    state = replace(
        state, stage=Stage.FORWARD, past_pivot=True, cause=Cause.NONE, cancellation=None, epoch=closed.standing.epoch
    )
    for effect in closed.effects:
        known = state.steps.get(effect.step_id)  # None: not of this plan, which settling will find
        if effect.state == "LANDED" and known is not None and known.state is not StepState.DONE:
            state = state.with_step(effect.step_id, state=StepState.PLANNED, error=None)
    return _forward(state)


def _back(state: State) -> Advance:
    """Compensate every landed step whose dependents are gone; settle or park when nothing is left to do."""
    plan = state.known_plan
    blockers = _blockers(plan, state)
    todo = [
        step
        for step in reversed(plan.steps)
        if step.writes
        and state.steps[step.step_id].state is StepState.DONE
        and not any(_is_live(state, other) for other in blockers[step.step_id])
    ]
    room = PARALLEL_STEPS_MAX - len(state.running())
    started: list[do.Command] = []
    for step in todo[:room]:
        state = state.with_step(step.step_id, state=StepState.COMPENSATING)
        started.append(do.Compensate(step_id=step.step_id))
    if started or state.running():
        return state, tuple(started)
    if any(step.state is StepState.PARKED for step in state.steps.values()):
        return _park(state, ParkReason.COMPENSATION_REFUSED)
    return replace(state, stage=Stage.SETTLING), (do.Settle(),)


def _blockers(plan: Plan, state: State) -> dict[str, set[str]]:
    """For each step the steps that must be undone before it: its dependents, and later landings on its objects."""
    blockers: dict[str, set[str]] = {step_id: set(steps) for step_id, steps in plan.dependents.items()}
    for one in plan.steps:
        for other in plan.steps:
            if one is other or not set(one.resources) & set(other.resources):
                continue
            mine, theirs = state.steps[one.step_id].transaction_id, state.steps[other.step_id].transaction_id
            if mine is not None and theirs is not None and theirs > mine:
                blockers[one.step_id].add(other.step_id)
    return blockers


def _is_live(state: State, step_id: str) -> bool:
    step = state.steps[step_id]
    return step.transaction_id is not None and step.state in (
        StepState.DONE,
        StepState.COMPENSATING,
        StepState.PARKED,
    )


# --- parked ----------------------------------------------------------------------------------------------------


def _park(state: State, reason: ParkReason) -> Advance:
    """Rest: in the database first, so that no step lands meanwhile."""
    stands = StepState.PARKED if reason is ParkReason.COMPENSATION_REFUSED else StepState.REFUSED
    stuck = [step for step in state.steps.values() if step.state is stands]
    detail = {
        "steps": [
            {"step_id": step.step_id, "error": step.error.model_dump(mode="json") if step.error else None}
            for step in stuck
        ]
    }
    return replace(state, stage=Stage.PARKING, parked=reason), (do.Park(reason=reason, detail=detail),)


def _resolved(state: State, standing: Standing | None) -> Advance:
    """Go on as the operator said: the database has taken the verb, so how it stands now is what to do.

    A refused or repeated resolution changes nothing while the intent is still parked; if it is not, an earlier one
    was taken and its answer lost.
    """
    if state.stage is not Stage.PARKED or standing is None or standing.parked is not None:
        return state, NOTHING
    return _stand(replace(state, cancellation=None), standing)
