"""The saga, as a pure function: `advance(state, event) -> (state, commands)`.

No input or output, no clock, no Temporal. The database is the commit point (DESIGN.md section 4), so the
reducer decides little on its own: every way that does not commit asks `close_intent` first and compensates what
*that* answer lists, never what it remembers; it says an outcome only after the database has set the phase.
Sources: Garcia-Molina & Salem, Sagas (1987) for backward and forward recovery; the barrier is DTM's.
"""

from dataclasses import replace
from typing import Final

from contracts.envelope import Cause, IntentReport, Outcome, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.locks import asks_again_after
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Cancellation,
    Closed,
    GradeAnswer,
    IntentPhase,
    ParkReason,
    Sighting,
    Standing,
    StepResult,
)
from workflows import commands as do
from workflows import events as on
from workflows.backward import back
from workflows.forward import forward, turn_back, without
from workflows.moves import NOTHING, PARALLEL_STEPS_MAX, Advance, ask, close, unknown, unknown_steps, wait_for_step
from workflows.state import Stage, State

SWITCHED_OFF_SECONDS_MAX: Final = 60.0

__all__ = ["PARALLEL_STEPS_MAX", "Advance", "advance", "begin"]


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
            return close(state, Cause.EXPIRED) if state.stage is Stage.AWAITING_APPROVAL else (state, NOTHING)
        case on.StepAdded(standing):
            return _added(state.with_plan(standing))
        case on.StepNotAdded():
            return wait_for_step(state) if state.stage is Stage.OPEN else (state, NOTHING)
        case on.NothingAdded(number, error):
            is_due = state.stage is Stage.OPEN and state.waits == number
            return close(replace(state, error=error), Cause.DEADLINE) if is_due else (state, NOTHING)
        case on.StepGraded(step_id, graded, error):
            return _graded(state.with_step(step_id, is_grading=False), step_id, graded, error)
        case on.StepLanded(result):
            return _go_on(_past(_landed(state, result), result.step_id))
        case on.StepRefused(step_id, error):
            return _refused(state, step_id, error)
        case on.StepSighted(sighting):
            return _sighted(state, sighting)
        case on.RunStale():
            return _go_on(replace(state, stale=True))
        case on.RunDoubted():
            rests = state.stage in (Stage.AWAITING_APPROVAL, Stage.OPEN, Stage.PARKED)
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
            return forward(state)
        case Stage.FORWARD if not state.running():
            return turn_back(state)
        case Stage.COMPENSATING:
            return back(state)
        case _:
            return state, NOTHING


# --- standing: what the database says, after admission, adoption, settling and parking -----------------------


def _stand(state: State, standing: Standing) -> Advance:
    """Take the database's word for how the intent stands, and go on from there."""
    stuck = (standing.parked_detail or {}).get("steps", [])
    # It rests on its way back, which the database learns only once it is known whether there is one.
    undecided = standing.parked is ParkReason.OUTCOME_UNKNOWN and standing.cause is Cause.NONE
    state = replace(
        state.with_plan(standing),
        plan_digest=standing.plan_digest or state.plan_digest,
        intent_id=standing.intent_id,
        epoch=standing.epoch,
        ask=_known(state.ask, standing.ask),
        cause=state.cause if undecided else standing.cause,
        error=standing.error or state.error,
        parked=standing.parked,
        parked_steps=tuple(step["step_id"] for step in stuck),
        stale=False,
    )
    if standing.phase.is_final or standing.duplicate:
        return _finish(state, standing)
    if standing.parked is ParkReason.COMPENSATION_REFUSED:
        for step in stuck:  # after a lost task only the database remembers which
            error = ErrorInfo.model_validate(step["error"]) if step.get("error") else None
            state = state.with_step(step["step_id"], state=StepState.PARKED, error=error)
    if standing.parked is not None:
        return replace(state, stage=Stage.PARKED), NOTHING
    if standing.phase is IntentPhase.CLOSING:
        return close(state, standing.cause)
    if state.cancellation is not None:
        return close(state, Cause.CANCELLED)
    if standing.lost is not None:  # somebody else may have changed what it wrote
        return close(replace(state, error=standing.lost), Cause.REFUSED)
    return _start(state)


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


def _added(state: State) -> Advance:
    """Run what is new in the plan; on the way back it is only known that nothing of it landed, or the tables tell."""
    if state.stage not in (Stage.OPEN, Stage.FORWARD):
        return state, NOTHING
    return _go_on(replace(state, stage=Stage.FORWARD))


# --- decisions -----------------------------------------------------------------------------------------------


def _known(earlier: Ask, later: Ask) -> Ask:
    """Join two answers about decisions, which may come in any order: what was said once stays said."""
    denied = {*earlier.denied, *later.denied}
    approved = {*earlier.approved, *later.approved} - denied
    undecided = {*earlier.undecided, *later.undecided} - approved - denied
    late = {graded.step_id: graded for graded in (*earlier.late, *later.late)}
    return later.model_copy(
        update={
            "undecided": tuple(sorted(undecided)),
            "approved": tuple(sorted(approved)),
            "denied": tuple(sorted(denied)),
            "late": tuple(late.values()),
        }
    )


def _decide(state: State) -> Advance:
    """Act on a decision where it can be acted on; elsewhere the database's next answer has it too."""
    match state.stage:
        case Stage.AWAITING_APPROVAL if state.ask.denied:
            return close(state, Cause.DENIED)
        case Stage.AWAITING_APPROVAL if not state.ask.undecided:
            return _start(state)
        case Stage.FORWARD if state.ask.denied and state.cause is Cause.NONE and not state.past_pivot:
            return _go_on(replace(state, cause=Cause.DENIED))
        case Stage.FORWARD if state.known_plan.has_late:
            return _go_on(state)
        case _:
            return state, NOTHING


def _graded(state: State, step_id: str, graded: GradeAnswer | None, error: ErrorInfo | None) -> Advance:
    """A late step has its grade, and may wait for people now; or it may not run at all."""
    if graded is not None:
        asked = _known(state.ask, graded.ask)
        return _decide(replace(state.with_step(step_id, is_graded=True), ask=asked))
    if error is None:
        raise AssertionError("a grade is given or refused")
    if error.code in (Reason.RUN_STALE, Reason.INTENT_PARKED):
        return _go_on(replace(state, stale=True))
    if state.known_plan.by_id[step_id].stands_for is not None:  # it may not run, and may never be asked to
        return _go_on(state.with_step(step_id, state=StepState.REFUSED, error=error, is_graded=True))
    return _go_on(without(state, step_id, error))


def _start(state: State) -> Advance:
    """Set out: ask first where something is undecided, go back where somebody said no.

    Nothing runs now; whatever is not done is planned again, since the database knows what landed.
    """
    if state.ask.denied:
        return close(state, Cause.DENIED)
    for step_id, step in state.steps.items():
        if step.state is not StepState.DONE:
            state = unknown(state, step_id, error=None).with_step(step_id, state=StepState.PLANNED)
    return ask(state) if state.ask.undecided else forward(replace(state, stage=Stage.FORWARD))


# --- steps that did not land, or of which it is not known ----------------------------------------------------------


def _refused(state: State, step_id: str, error: ErrorInfo) -> Advance:
    """A step said no. Before the pivot the saga turns back; after it, the others go on and a person is called.

    Of a step that is sent somewhere only a refusal is a no: of anything else the tables have to tell what it was.
    What is switched off after the pivot waits, until it is switched on or the deadline has passed.
    """
    if error.code in (Reason.RUN_STALE, Reason.INTENT_PARKED):
        return _go_on(replace(state.with_step(step_id, state=StepState.PLANNED, is_looking=False), stale=True))
    if (seconds := asks_again_after(error)) is not None:  # nothing was written: it keeps its place in the queue
        return _go_on(state.with_step(step_id, state=StepState.PLANNED, wait_seconds=seconds))
    if state.steps[step_id].is_looking:  # the lookup itself has no answer, and never will
        return _go_on(state.with_step(step_id, is_looking=False, is_over=True, looked_closing=True, error=error))
    if error.code is Reason.KILL_SWITCH_ON and state.stage is Stage.FORWARD and state.past_pivot:
        wait = min(SWITCHED_OFF_SECONDS_MAX, max(1.0, 2 * state.steps[step_id].wait_seconds))
        return _go_on(state.with_step(step_id, state=StepState.PLANNED, error=error, wait_seconds=wait))
    if state.known_plan.by_id[step_id].is_remote and not error.code.is_definite:
        return _go_on(unknown(state, step_id, error=error))
    return _go_on(without(state, step_id, error))


def _landed(state: State, result: StepResult) -> State:
    return state.with_step(
        result.step_id,
        state=StepState.DONE,
        step_key=result.step_key,
        transaction_id=result.transaction_id,
        applied_args=result.applied_args,
        output=result.output,
        warnings=result.warnings,
        is_looking=False,
    )


def _past(state: State, step_id: str) -> State:
    """Note that there is only forward now, if this step was the pivot and the way back is not shut already."""
    if state.stage is Stage.FORWARD and state.known_plan.by_id[step_id].is_pivot:
        return replace(state, past_pivot=True, cause=Cause.NONE, cancellation=None)
    return state


def _sighted(state: State, seen: Sighting) -> Advance:
    """A step was looked up: it landed, it certainly did not, or nobody knows yet."""
    step_id, error = seen.step_id, state.steps[seen.step_id].error
    if seen.result is not None:
        return _go_on(_past(_landed(state, seen.result), step_id))
    state = state.with_step(
        step_id, is_looking=False, is_over=seen.over, wait_seconds=seen.after_seconds, known=seen.known
    )
    is_forward = state.stage is Stage.FORWARD
    if seen.may_resend and is_forward and state.cause is Cause.NONE:
        return _go_on(state.with_step(step_id, state=StepState.PLANNED))
    if seen.state == "UNKNOWN":
        return _go_on(state)
    if not is_forward:
        return _go_on(state.with_step(step_id, state=StepState.SUPERSEDED))
    if error is None or error.code is Reason.OUTCOME_UNKNOWN:
        error = SagaError(
            Reason.DEPENDENCY_DOWN,
            f"Step {step_id!r} was sent and certainly did not land.",
            details={"step_id": step_id},
        ).info
    return _go_on(without(state, step_id, seen.error or error, certain=True))


# --- back ----------------------------------------------------------------------------------------------------


def _cancel(state: State, cancellation: Cancellation) -> Advance:
    """Act on the wish, or remember it where the database's next answer may still leave the way open."""
    if state.cancellation is not None or state.past_pivot:
        return state, NOTHING
    wished = replace(state, cancellation=cancellation)
    match state.stage:
        case Stage.ADMITTING:
            return wished, NOTHING
        case Stage.AWAITING_APPROVAL | Stage.OPEN:
            return close(wished, Cause.CANCELLED)
        case Stage.FORWARD if state.cause is Cause.NONE:
            return _go_on(replace(wished, cause=Cause.CANCELLED))
        case Stage.CLOSING if state.cause is Cause.EXPIRED:
            return wished, NOTHING
        case _:
            return state, NOTHING


def _closed(state: State, closed: Closed) -> Advance:
    """Compensate exactly what the database lists; or go where it says that the intent already is."""
    standing = closed.standing
    state = state.with_plan(standing)
    if closed.past_pivot:
        return _forward_past_pivot(state, closed)
    if closed.pivot_unknown:
        for step_id in closed.unknown:
            if state.steps[step_id].state is not StepState.UNKNOWN:
                state = unknown(state, step_id)
        return turn_back(replace(state, stage=Stage.FORWARD, epoch=standing.epoch))
    if standing.phase is not IntentPhase.CLOSING or standing.parked is not None:
        return _stand(state, standing)
    state = replace(
        state, stage=Stage.COMPENSATING, cause=standing.cause, error=standing.error or state.error, epoch=standing.epoch
    )
    if strange := sorted({effect.step_id for effect in closed.effects} - state.steps.keys()):
        detail = {"not_in_the_plan": strange}
        return replace(state, stage=Stage.PARKING), (do.Park(reason=ParkReason.MISMATCH, detail=detail),)
    return back(_listed(state, closed))


def _listed(state: State, closed: Closed) -> State:
    """Take the database's word for what landed and what may have; what it does not list never will."""
    for effect in closed.effects:
        if effect.state == "TOMBSTONE" and state.steps[effect.step_id].falls_back:
            continue  # it is told as what it is: refused
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
    for step_id in closed.unknown:
        state = unknown(state, step_id)
    seen = {effect.step_id for effect in closed.effects}.union(closed.unknown)
    for step in state.known_plan.steps:
        known = state.steps[step.step_id].state
        if step.step_id not in seen and step.writes and known in (StepState.DONE, StepState.UNKNOWN):
            state = state.with_step(step.step_id, state=StepState.SUPERSEDED)
        elif step.step_id not in seen and known is StepState.AWAITING_APPROVAL:
            state = state.with_step(step.step_id, state=StepState.PLANNED)
    return state


def _forward_past_pivot(state: State, closed: Closed) -> Advance:
    """The way back is shut: finish what cannot refuse. What landed unseen is run again, for its stored answer."""
    state = replace(
        state, stage=Stage.FORWARD, past_pivot=True, cause=Cause.NONE, cancellation=None, epoch=closed.standing.epoch
    )
    for effect in closed.effects:
        known = state.steps.get(effect.step_id)  # None: not of this plan, which settling will find
        if effect.state == "LANDED" and known is not None and known.state is not StepState.DONE:
            state = state.with_step(effect.step_id, state=StepState.PLANNED, error=None)
    return forward(state)


# --- parked ----------------------------------------------------------------------------------------------------


def _resolved(state: State, standing: Standing | None) -> Advance:
    """Go on as the operator said: the database has taken the verb, so how it stands now is what to do.

    A refused or repeated resolution changes nothing while the intent is still parked; if it is not, an earlier one
    was taken and its answer lost.
    """
    if state.stage is not Stage.PARKED or standing is None or standing.parked is not None:
        return state, NOTHING
    turning_back = state.parked is ParkReason.OUTCOME_UNKNOWN and state.cause is not Cause.NONE
    if turning_back and standing.phase is IntentPhase.ADMITTED:
        for step_id in unknown_steps(state):
            state = unknown(state, step_id)
        return close(replace(state, parked=None, parked_steps=()), state.cause)
    return _stand(replace(state, cancellation=None), standing)
