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
from contracts.saga import Cancellation, Closed, IntentPhase, ParkReason, Standing
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
            return _decided(replace(state, ask=answer.ask)) if answer.accepted else (state, NOTHING)
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
            pivot = landed.known_plan.by_id[result.step_id].is_pivot
            return _go_on(replace(landed, past_pivot=True) if pivot else landed)
        case on.StepRefused(step_id, error):
            return _refused(state, step_id, error)
        case on.RunStale():
            return _admit_again(state)
        case on.IntentClosed(closed):
            return _closed(state, closed)
        case on.StepCompensated(result):
            return _back(state.with_step(result.step_id, state=StepState.COMPENSATED, residue=result.residue))
        case on.CompensationRefused(step_id, error):
            if error.code is Reason.RUN_STALE:
                return _admit_again(state.with_step(step_id, state=StepState.DONE))
            return _back(state.with_step(step_id, state=StepState.PARKED, error=error))
        case on.Resolved(resolution, answer):
            if not answer.accepted or answer.standing is None:
                return state, NOTHING
            return _resolved(state, resolution.verb, resolution.step_id, answer.standing, answer.residue)


# --- standing: what the database says, after admission, adoption, settling and parking -----------------------


def _stand(state: State, standing: Standing) -> Advance:
    """Take the database's word for how the intent stands, and go on from there."""
    state = replace(
        state,
        plan=standing.plan or state.plan,
        intent_id=standing.intent_id,
        epoch=standing.epoch,
        ask=standing.ask,
        cause=standing.cause,
        error=standing.error or state.error,
        parked=standing.parked,
    )
    if state.plan is not None and not state.steps:
        state = replace(state, steps=MappingProxyType(_steps_of(state.plan)))
    if standing.phase.is_final or standing.duplicate:
        return _finish(state, standing)
    if standing.parked is not None:
        return replace(state, stage=Stage.PARKED), NOTHING
    if standing.phase is IntentPhase.CLOSING:
        return _close(state, standing.cause)
    if standing.ask.denied:
        return _close(state, Cause.DENIED)
    if state.cancellation is not None:
        return _close(state, Cause.CANCELLED)
    return _decided(state)


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
    """Another run may own the intent (reset, adoption): wait for running steps, then ask the database."""
    if state.running():
        return (replace(state, cause=Cause.INTERRUPTED) if state.stage is Stage.FORWARD else state), NOTHING
    return replace(state, stage=Stage.ADMITTING), (do.Admit(),)


# --- forward -------------------------------------------------------------------------------------------------


def _decided(state: State) -> Advance:
    """Go forward when nothing is left to decide; back when somebody said no."""
    if state.stage not in (Stage.ADMITTING, Stage.AWAITING_APPROVAL, Stage.PARKED):
        return _close(state, Cause.DENIED) if state.ask.denied and not state.past_pivot else (state, NOTHING)
    if state.ask.denied:
        return _close(state, Cause.DENIED)
    if not state.ask.undecided:
        return _forward(replace(state, stage=Stage.FORWARD, steps=_planned_again(state)))
    waiting = state
    if state.stage is not Stage.AWAITING_APPROVAL:
        for step_id in state.ask.undecided:
            waiting = waiting.with_step(step_id, state=StepState.AWAITING_APPROVAL)
    waiting = replace(waiting, stage=Stage.AWAITING_APPROVAL)
    if state.stage is Stage.AWAITING_APPROVAL:
        return waiting, NOTHING
    return waiting, (do.Ask(step_ids=state.ask.undecided, expires_in_seconds=state.ask.expires_in_seconds),)


def _planned_again(state: State) -> MappingProxyType[str, Step]:
    """Forget the waiting: a decided step is planned."""
    return MappingProxyType(
        {
            step_id: replace(step, state=StepState.PLANNED) if step.state is StepState.AWAITING_APPROVAL else step
            for step_id, step in state.steps.items()
        }
    )


def _forward(state: State) -> Advance:
    """Start every step whose needs are done, at most eight at a time; settle when all are."""
    plan = state.known_plan
    ready = [step for step in plan.steps if _is_ready(state, step)]
    room = PARALLEL_STEPS_MAX - len(state.running())
    started: list[do.Command] = []
    outputs = {step_id: step.output for step_id, step in state.steps.items() if step.output is not None}
    for planned in ready[:room]:
        try:
            arguments = resolve(planned.arguments, outputs)
        except SagaError as error:
            return _refused(state, planned.step_id, error.info)
        state = state.with_step(planned.step_id, state=StepState.EXECUTING, step_key=plan.execute_key(planned.step_id))
        started.append(do.Execute(step_id=planned.step_id, arguments=arguments))
    if all(step.state is StepState.DONE for step in state.steps.values()):
        return replace(state, stage=Stage.SETTLING), (do.Settle(),)
    return state, tuple(started)


def _is_ready(state: State, planned: PlannedStep) -> bool:
    return state.steps[planned.step_id].state is StepState.PLANNED and all(
        state.steps[need].state is StepState.DONE for need in planned.needs
    )


def _go_on(state: State) -> Advance:
    """After a step answered: forward, or to the close that waits for the last running one."""
    if state.stage is not Stage.FORWARD:
        return state, NOTHING
    if state.cause is Cause.NONE or state.past_pivot:
        return _forward(state)
    if state.running():
        return state, NOTHING
    if state.cause is Cause.INTERRUPTED:
        return _admit_again(state)
    return _close(state, state.cause)


def _refused(state: State, step_id: str, error: ErrorInfo) -> Advance:
    """A step said no. Before the pivot the saga turns back; after it, a person is called."""
    if error.code in (Reason.RUN_STALE, Reason.INTENT_PARKED):
        return _admit_again(state.with_step(step_id, state=StepState.PLANNED))
    refused = state.with_step(
        step_id,
        state=StepState.SUPERSEDED if error.code is Reason.SUPERSEDED else StepState.REFUSED,
        error=error,
    )
    if refused.past_pivot:
        return _park(refused, ParkReason.STUCK_AFTER_PIVOT)
    if refused.cause is Cause.NONE:
        cause = Cause.DEADLINE if error.code is Reason.DEADLINE_EXCEEDED else Cause.REFUSED
        refused = replace(refused, cause=cause, error=error)
    return _go_on(replace(refused, stage=Stage.FORWARD))


# --- back ----------------------------------------------------------------------------------------------------


def _cancel(state: State, cancellation: Cancellation) -> Advance:
    """Remember the wish; act on it where it still can be acted on."""
    if state.cancellation is not None:
        return state, NOTHING
    state = replace(state, cancellation=cancellation)
    match state.stage:
        case Stage.AWAITING_APPROVAL:
            return _close(state, Cause.CANCELLED)
        case Stage.FORWARD if state.cause is Cause.NONE and not state.past_pivot:
            return _go_on(replace(state, cause=Cause.CANCELLED))
        case _:
            return state, NOTHING


def _close(state: State, cause: Cause) -> Advance:
    """Fence all steps; once nothing of ours runs, the answer is the truth about what landed."""
    actor = state.cancellation.requested_by if state.cancellation and cause is Cause.CANCELLED else None
    error = state.error if cause in (Cause.REFUSED, Cause.DEADLINE) else None
    closing = replace(state, stage=Stage.CLOSING, cause=cause)
    return closing, (do.CloseIntent(cause=cause, error=error, actor=actor),)


def _closed(state: State, closed: Closed) -> Advance:
    """Compensate exactly what the database lists; or go where it says that the intent already is."""
    standing = closed.standing
    if closed.due_in_seconds is not None:
        waiting = replace(state, stage=Stage.AWAITING_APPROVAL, cause=Cause.NONE, ask=standing.ask)
        if not standing.ask.undecided:
            return _decided(waiting)
        again = do.Ask(step_ids=standing.ask.undecided, expires_in_seconds=closed.due_in_seconds)
        return waiting, (again,)
    if closed.past_pivot:
        return _forward_past_pivot(state, closed)
    if standing.phase is not IntentPhase.CLOSING:
        return _stand(state, standing)
    state = replace(
        state, stage=Stage.COMPENSATING, cause=standing.cause, error=standing.error or state.error, epoch=standing.epoch
    )
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
    """The way back is shut: finish what cannot refuse, or call a person."""
    state = replace(state, past_pivot=True, cause=Cause.NONE, epoch=closed.standing.epoch)
    for effect in closed.effects:
        if effect.state == "LANDED" and state.steps[effect.step_id].state is not StepState.DONE:
            state = state.with_step(effect.step_id, state=StepState.PLANNED, error=None)
    if any(step.state is StepState.REFUSED for step in state.steps.values()):
        return _park(state, ParkReason.STUCK_AFTER_PIVOT)
    return _forward(replace(state, stage=Stage.FORWARD))


def _back(state: State) -> Advance:
    """Compensate every landed step whose dependents are gone; settle or park when nothing is left to do."""
    if state.stage is not Stage.COMPENSATING:
        return state, NOTHING
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
    if state.running():
        return state, NOTHING
    stuck = [step for step in state.steps.values() if step.state in (StepState.PARKED, StepState.REFUSED)]
    detail = {
        "steps": [
            {"step_id": step.step_id, "error": step.error.model_dump(mode="json") if step.error else None}
            for step in stuck
        ]
    }
    return replace(state, stage=Stage.PARKING, parked=reason), (do.Park(reason=reason, detail=detail),)


def _resolved(  # noqa: PLR0911 - one line per verb
    state: State, verb: str, step_id: str | None, standing: Standing, residue: str | None
) -> Advance:
    """Go on as the operator said; the database has already taken its part of it."""
    state = replace(state, parked=standing.parked, epoch=standing.epoch, plan=standing.plan or state.plan)
    if standing.phase.is_final:
        return _stand(state, standing)
    match verb:
        case "close":
            return _close(state, Cause.INTERRUPTED if standing.cause is Cause.NONE else standing.cause)
        case "forward":
            return _decided(replace(state, stage=Stage.PARKED, ask=standing.ask, cause=Cause.NONE))
        case "retry" if step_id is not None:
            if standing.phase is IntentPhase.ADMITTED:
                again = state.with_step(step_id, state=StepState.PLANNED, error=None)
                return _forward(replace(again, stage=Stage.FORWARD, cause=Cause.NONE))
            again = state.with_step(step_id, state=StepState.DONE, error=None)
            return _back(replace(again, stage=Stage.COMPENSATING))
        case _ if step_id is not None:
            done = state.with_step(step_id, state=StepState.COMPENSATED, residue=residue)
            return _back(replace(done, stage=Stage.COMPENSATING))
        case _:
            return state, NOTHING
