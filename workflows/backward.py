"""The way back: all that landed is compensated, in reverse of what builds on what, everything else in parallel."""

from dataclasses import replace

from contracts.envelope import StepState
from contracts.plan import Plan
from contracts.saga import ParkReason
from workflows import commands as do
from workflows.moves import PARALLEL_STEPS_MAX, Advance, look, park, unknown_steps
from workflows.state import Stage, State


def back(state: State) -> Advance:
    """Compensate every landed step whose dependents are gone; settle or park when nothing is left to do.

    A step whose outcome is not known is looked up, and holds what it may build on.
    """
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
    state, looks = look(state, unknown_steps(state), closing=True)
    if started or looks or state.running():
        return state, (*started, *looks)
    if unknown_steps(state):
        return park(state, ParkReason.OUTCOME_UNKNOWN)
    if any(step.state is StepState.PARKED for step in state.steps.values()):
        return park(state, ParkReason.COMPENSATION_REFUSED)
    return replace(state, stage=Stage.SETTLING), (do.Settle(),)


def _blockers(plan: Plan, state: State) -> dict[str, set[str]]:
    """For each step the steps that must be undone before it: its dependents, and later landings on its objects.

    What may have landed may have landed later. What a late step touches the plan does not say: it may be anything.
    """
    blockers: dict[str, set[str]] = {step_id: set(steps) for step_id, steps in plan.dependents.items()}
    for one in plan.steps:
        for other in plan.steps:
            may_touch = one.late or other.late or set(one.resources) & set(other.resources)
            if one is other or not may_touch:
                continue
            mine, theirs = state.steps[one.step_id].transaction_id, state.steps[other.step_id].transaction_id
            is_later = mine is not None and theirs is not None and theirs > mine
            if is_later or state.steps[other.step_id].state is StepState.UNKNOWN:
                blockers[one.step_id].add(other.step_id)
    return blockers


def _is_live(state: State, step_id: str) -> bool:
    step = state.steps[step_id]
    if step.state is StepState.UNKNOWN:
        return True
    return step.transaction_id is not None and step.state in (
        StepState.DONE,
        StepState.COMPENSATING,
        StepState.PARKED,
    )
