"""Compares what a history shows with what the reducer asks for, given what the history says it learned."""

from collections.abc import Callable
from itertools import zip_longest

from contracts.plan import Plan
from tests.replay.reader import Read, Shown
from workflows import commands as do
from workflows import events as on
from workflows.reducer import Advance, advance, begin
from workflows.state import State


def whole(command: do.Command, plan: Plan | None) -> Shown:  # noqa: C901, PLR0911 - one line per command
    """A command in the words of a history, with all that a history could show."""
    match command:
        case do.Admit():
            return Shown("admit")
        case do.Ask(step_ids):
            return Shown("ask", step_id=", ".join(step_ids))
        case do.Execute(step_id, arguments):
            assert plan is not None, "a step has a plan"
            return Shown("execute", plan.by_id[step_id].tool, step_id, arguments)
        case do.Grade(step_id):
            return Shown("grade", step_id=step_id)
        case do.Lookup(step_id):
            assert plan is not None, "a step has a plan"
            return Shown("lookup", plan.by_id[step_id].tool, step_id)
        case do.CloseIntent(cause):
            return Shown("close", cause=cause.value)
        case do.Compensate(step_id):
            assert plan is not None, "a step has a plan"
            return Shown("compensate", plan.by_id[step_id].tool, step_id)
        case do.Settle():
            return Shown("settle")
        case do.Park():
            return Shown("park")
        case do.Finish(report, _, failed, duplicate):
            return Shown("finish", end=(report.outcome.value, report.cause.value, duplicate, failed))


def disagreement(read: Read, advancing: Callable[[State, on.Event], Advance] = advance) -> str | None:
    """Feed the events to the reducer; None when it asks for what is shown, in that order and for nothing else.

    Of a run that was cut off, the last command may have left no trace: its local activity had not answered.
    """
    state, commands = begin()
    asked = [whole(command, None) for command in commands]
    for event in read.events:
        state, commands = advancing(state, event)
        asked += [whole(command, state.plan) for command in commands]
    unanswered = 0 if read.ended else 1
    for number, (shown, wanted) in enumerate(zip_longest(read.shown, asked)):
        if shown is None and number >= len(asked) - unanswered:
            continue
        if shown is None or wanted is None or not shown.is_of(wanted):
            return f"command {number}: shown {shown}, asked {wanted}; shown {read.shown}; asked {asked}"
    return None
