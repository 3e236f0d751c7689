"""What both directions of a saga share: closing, parking, looking up what is not known."""

from dataclasses import replace
from typing import Final

from contracts.base import JsonObject
from contracts.envelope import Cause, StepState
from contracts.saga import ParkReason
from workflows import commands as do
from workflows.state import Stage, State, Step

PARALLEL_STEPS_MAX: Final = 8
Advance = tuple[State, tuple[do.Command, ...]]
NOTHING: Final[tuple[do.Command, ...]] = ()
_STUCK: Final = {
    ParkReason.COMPENSATION_REFUSED: StepState.PARKED,
    ParkReason.OUTCOME_UNKNOWN: StepState.UNKNOWN,
}


def close(state: State, cause: Cause) -> Advance:
    """Fence all steps; nothing of ours runs, so the answer is the truth about what landed."""
    actor = state.cancellation.requested_by if state.cancellation and cause is Cause.CANCELLED else None
    error = state.error if cause in (Cause.REFUSED, Cause.DEADLINE) else None
    closing = replace(state, stage=Stage.CLOSING, cause=cause)
    return closing, (do.CloseIntent(cause=cause, error=error, actor=actor),)


def ask(state: State) -> Advance:
    """Wait for people; nothing runs."""
    for step_id in state.ask.undecided:
        state = state.with_step(step_id, state=StepState.AWAITING_APPROVAL)
    waiting = replace(state, stage=Stage.AWAITING_APPROVAL)
    return waiting, (do.Ask(step_ids=state.ask.undecided, expires_in_seconds=state.ask.expires_in_seconds),)


def wait_for_step(state: State) -> Advance:
    """Wait for the next step of an open intent; all that it has is done."""
    waiting = replace(state, stage=Stage.OPEN, waits=state.waits + 1)
    return waiting, (do.AwaitStep(number=waiting.waits, seconds=float(state.known_plan.inactivity_seconds)),)


def park(state: State, reason: ParkReason) -> Advance:
    """Rest: in the database first, so that no step lands meanwhile."""
    stands = _STUCK.get(reason, StepState.REFUSED)
    stuck = [step for step in state.steps.values() if step.state is stands and not step.falls_back]
    detail: JsonObject = {"steps": [_stuck(step) for step in stuck]}
    return replace(state, stage=Stage.PARKING, parked=reason), (do.Park(reason=reason, detail=detail),)


def _stuck(step: Step) -> JsonObject:
    told: JsonObject = {
        "step_id": step.step_id,
        "error": step.error.model_dump(mode="json") if step.error else None,
    }
    return told | {"known": step.known} if step.known is not None else told


def unknown(state: State, step_id: str, **changes: object) -> State:
    """Remember that the outcome of a step is not known, and that it has not been looked up yet."""
    fresh: dict[str, object] = {"is_looking": False, "is_over": False, "looked_closing": False, "wait_seconds": 0.0}
    fresh["falls_back"] = False
    return state.with_step(step_id, state=StepState.UNKNOWN, **fresh | changes)


def look(state: State, step_ids: tuple[str, ...], *, closing: bool) -> Advance:
    """Look up unknown steps while their patience lasts; the way back has a patience of its own."""
    looks: list[do.Command] = []
    for step_id in step_ids:
        step = state.steps[step_id]
        is_over = step.is_over and (step.looked_closing or not closing)
        if not step.is_looking and not is_over:
            looks.append(do.Lookup(step_id=step_id, after_seconds=step.wait_seconds, closing=closing))
            state = state.with_step(step_id, is_looking=True, looked_closing=step.looked_closing or closing)
    return state, tuple(looks)


def unknown_steps(state: State) -> tuple[str, ...]:
    """Steps whose outcome is not known, in plan order."""
    return tuple(step_id for step_id, step in state.steps.items() if step.state is StepState.UNKNOWN)
