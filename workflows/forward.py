"""The way forward: steps whose needs are done, at most eight at a time, until all are done or one did not land."""

from dataclasses import replace

from contracts.binding import resolve
from contracts.envelope import Cause, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.fallback import may_fall_back
from contracts.plan import PlannedStep
from contracts.reasons import Reason
from contracts.saga import ParkReason
from workflows import commands as do
from workflows.moves import PARALLEL_STEPS_MAX, Advance, ask, close, look, park, unknown_steps, wait_for_step
from workflows.state import Stage, State


def forward(state: State) -> Advance:
    """Start every step whose needs are done; settle when all are, park when none can."""
    plan = state.known_plan
    done = {step.step_id: state.landed(step.step_id) for step in plan.steps if step.stands_for is None}
    outputs = {step_id: step.output for step_id, step in done.items() if step is not None and step.output is not None}
    state, grades = _grade(state) if plan.has_late and state.cause is Cause.NONE else (state, ())
    calls: list[do.Execute] = []
    ready = [step for step in plan.steps if _is_ready(state, step)]
    for planned in ready[: PARALLEL_STEPS_MAX - len(state.running())]:
        try:
            arguments = resolve(planned.arguments, outputs)
        except SagaError as error:
            state = without(state, planned.step_id, error.info)
            continue
        wait = state.steps[planned.step_id].wait_seconds
        calls.append(do.Execute(step_id=planned.step_id, arguments=arguments, after_seconds=wait))
    if state.cause is not Cause.NONE:
        calls = []
    for call in calls:
        state = state.with_step(call.step_id, state=StepState.EXECUTING, step_key=plan.execute_key(call.step_id))
    state, looks = look(state, unknown_steps(state), closing=False) if state.cause is Cause.NONE else (state, ())
    if grades or calls or looks or state.running():
        return state, (*grades, *calls, *looks)
    if all(done.values()):
        return wait_for_step(state) if plan.is_open else (replace(state, stage=Stage.SETTLING), (do.Settle(),))
    if state.cause is Cause.NONE and unknown_steps(state):
        return _out_of_patience(state)
    if state.cause is Cause.NONE and plan.has_late and state.ask.undecided:
        return ask(state)
    if state.past_pivot:
        return park(state, ParkReason.STUCK_AFTER_PIVOT)
    return turn_back(state)


def _is_ready(state: State, planned: PlannedStep) -> bool:
    step, first = state.steps[planned.step_id], planned.stands_for
    if (planned.late and not step.is_graded) or (first is not None and not state.steps[first].falls_back):
        return False
    return (
        step.state is StepState.PLANNED
        and state.landed(first or planned.step_id) is None
        and all(state.landed(need) is not None for need in planned.needs)
        and not (planned.writes and state.known_plan.has_late and _is_held(state))
    )


def _is_held(state: State) -> bool:
    """Whether writes wait: for people, for a grade, or for what a grade needs and only has to be read."""
    first = state.known_plan.graded_first
    return (
        bool(state.ask.undecided)
        or any(step.is_grading for step in state.steps.values())
        or any(not state.steps[step_id].is_graded for step_id in first)
    )


def _grade(state: State) -> Advance:
    """Have every late step graded whose late arguments are known, long before it is its turn."""
    found: list[do.Grade] = []
    for planned in state.known_plan.steps:
        step = state.steps[planned.step_id]
        is_open = planned.late and not (step.is_graded or step.is_grading) and step.state is StepState.PLANNED
        if is_open and all(state.landed(source) is not None for source in planned.late_sources):
            found.append(do.Grade(step_id=planned.step_id))
            state = state.with_step(planned.step_id, is_grading=True)
    return state, tuple(found)


def _out_of_patience(state: State) -> Advance:
    """Call a person; or turn back, where the downstream can be told never to carry it out."""
    steps = unknown_steps(state)
    plan = state.known_plan
    if state.past_pivot or not all(plan.by_id[step_id].cancel_by_key for step_id in steps):
        return park(state, ParkReason.OUTCOME_UNKNOWN)
    error = SagaError(
        Reason.DEPENDENCY_DOWN,
        f"The outcome of {', '.join(steps)} was not known in time; the downstream is told not to carry it out.",
        details={"steps": list(steps)},
    )
    return turn_back(replace(state, cause=Cause.REFUSED, error=error.info))


def without(state: State, step_id: str, error: ErrorInfo, *, certain: bool = False) -> State:
    """Note that a step did not land: let its fallback stand for it, else turn back if that is still possible.

    `certain`: it was looked up; else only a definite refusal says so.
    """
    fallback = state.known_plan.fallbacks.get(step_id)
    is_free = fallback is not None and state.steps[fallback].state is not StepState.REFUSED
    if is_free and state.cause is Cause.NONE and (certain or error.code.is_definite) and may_fall_back(error):
        known = state.steps[step_id].error if error.code is Reason.SUPERSEDED else error
        return state.with_step(step_id, state=StepState.REFUSED, error=known, falls_back=True)
    superseded = error.code is Reason.SUPERSEDED
    state = state.with_step(step_id, state=StepState.SUPERSEDED if superseded else StepState.REFUSED, error=error)
    if state.cause is not Cause.NONE or state.past_pivot:
        return state
    cause = Cause.DEADLINE if error.code is Reason.DEADLINE_EXCEEDED else Cause.REFUSED
    return replace(state, cause=cause, error=error)


def turn_back(state: State) -> Advance:
    """Close the intent; but never over a step that cannot be undone and may have landed: that is looked up first.

    Until it is known nothing else is told not to land: there may be only forward.
    """
    plan = state.known_plan
    if pivots := tuple(step_id for step_id in unknown_steps(state) if plan.by_id[step_id].is_pivot):
        state, looks = look(state, pivots, closing=True)
        return (state, looks) if looks or state.running() else park(state, ParkReason.OUTCOME_UNKNOWN)
    return close(state, state.cause)
