"""The rules of open intents in the reducer: it waits with nothing to do, grows, and ends like any other (ADR 0013)."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.envelope import Cause, StepState
from contracts.errors import SagaError
from contracts.plan import Plan, PlannedStep
from contracts.reasons import Reason
from contracts.saga import Cancellation, Closed, EffectSeen, IntentPhase, ParkReason
from contracts.tool import SideEffect
from tests.support.plans import admitted, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.reducer import advance, begin
from workflows.state import Stage

CANCEL = on.CancelRequested(Cancellation(requested_by="somebody"))
LATE = SagaError(Reason.DEADLINE_EXCEEDED, "nothing came").info


def opened(*steps: PlannedStep, sealed: bool = False) -> Plan:
    return plan(*steps).model_copy(update={"opened": True, "sealed": sealed, "inactivity_seconds": 900})


def chained(*step_ids: str, sealed: bool = False, pivot: str | None = None) -> Plan:
    steps = (
        step(
            step_id,
            needs=step_ids[max(0, number - 1) : number],
            effect=SideEffect.IRREVERSIBLE if step_id == pivot else SideEffect.REVERSIBLE,
        )
        for number, step_id in enumerate(step_ids)
    )
    return opened(*steps, sealed=sealed)


class Saga:
    """A reducer under test, of an intent that was opened with nothing in it."""

    def __init__(self) -> None:
        self.state, _ = begin()

    def take(self, event: on.Event) -> tuple[do.Command, ...]:
        self.state, commands = advance(self.state, event)
        return commands

    def admit(self, made: Plan | None = None, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - of a standing
        return self.take(on.Admitted(admitted(made or opened()).model_copy(update=changes)))

    def add(self, made: Plan) -> tuple[do.Command, ...]:
        return self.take(on.StepAdded(admitted(made)))

    def land(self, step_id: str, number: int) -> tuple[do.Command, ...]:
        return self.take(on.StepLanded(landed(step_id, number)))


def saga_with(*step_ids: str) -> Saga:
    saga = Saga()
    saga.admit()
    for number, step_id in enumerate(step_ids):
        saga.add(chained(*step_ids[: number + 1]))
        saga.land(step_id, number + 1)
    return saga


def test_an_open_intent_without_steps_waits_for_one_as_long_as_its_plan_says() -> None:
    saga = Saga()

    commands = saga.admit()

    assert commands == (do.AwaitStep(number=1, seconds=900.0),)
    assert saga.state.stage is Stage.OPEN
    assert saga.state.waiting_for() == "the next step, commit or abort"


def test_an_added_step_runs_and_then_the_next_one_is_awaited_anew() -> None:
    saga = Saga()
    saga.admit()

    started = saga.add(chained("a"))
    then = saga.land("a", 1)

    assert started == (do.Execute(step_id="a", arguments={}),)
    assert then == (do.AwaitStep(number=2, seconds=900.0),)


def test_a_step_that_was_added_before_runs_nothing_and_is_waited_on_again() -> None:
    saga = saga_with("a")

    commands = saga.add(chained("a"))

    assert commands == (do.AwaitStep(number=3, seconds=900.0),)


def test_a_step_that_was_not_taken_gives_the_agent_its_time_again() -> None:
    saga = saga_with("a")

    commands = saga.take(on.StepNotAdded())

    assert commands == (do.AwaitStep(number=3, seconds=900.0),)


def test_the_end_of_an_earlier_wait_ends_nothing() -> None:
    saga = saga_with("a")

    assert saga.take(on.NothingAdded(1, LATE)) == ()
    assert saga.state.stage is Stage.OPEN


def test_an_intent_that_nobody_goes_on_with_is_closed_for_the_deadline_and_says_why() -> None:
    saga = saga_with("a")

    commands = saga.take(on.NothingAdded(2, LATE))

    assert commands == (do.CloseIntent(cause=Cause.DEADLINE, error=LATE),)


def test_a_cancel_closes_at_once_what_only_waits() -> None:
    saga = saga_with("a")

    commands = saga.take(CANCEL)

    assert commands == (do.CloseIntent(cause=Cause.CANCELLED, actor="somebody"),)


def test_a_cancel_waits_for_the_step_that_runs() -> None:
    saga = Saga()
    saga.admit()
    saga.add(chained("a"))

    at_once = saga.take(CANCEL)
    then = saga.land("a", 1)

    assert at_once == ()
    assert then == (do.CloseIntent(cause=Cause.CANCELLED, actor="somebody"),)


def test_a_step_that_its_tool_refuses_turns_the_intent_back() -> None:
    saga = saga_with("a")
    saga.add(chained("a", "b"))
    refused = SagaError(Reason.WRONG_STATE, "no").info

    commands = saga.take(on.StepRefused("b", refused))

    assert commands == (do.CloseIntent(cause=Cause.REFUSED, error=refused),)


def test_a_sealed_plan_settles_when_all_of_it_is_done() -> None:
    saga = saga_with("a")

    commands = saga.add(chained("a", sealed=True))

    assert commands == (do.Settle(),)


def test_a_last_step_runs_before_the_plan_settles_and_shuts_the_way_back() -> None:
    saga = saga_with("a")

    started = saga.add(chained("a", "last", sealed=True, pivot="last"))
    then = saga.land("last", 2)

    assert started == (do.Execute(step_id="last", arguments={}),)
    assert then == (do.Settle(),)
    assert saga.state.past_pivot


def test_a_step_that_was_added_while_the_intent_turned_back_is_known_and_never_runs() -> None:
    saga = saga_with("a")
    saga.take(CANCEL)

    commands = saga.add(chained("a", "b"))

    assert commands == ()
    assert saga.state.stage is Stage.CLOSING
    assert saga.state.steps["b"].state is StepState.PLANNED


def test_what_landed_unknown_to_the_run_is_compensated_since_closing_tells_the_plan() -> None:
    saga = saga_with("a")
    saga.take(CANCEL)
    rows = [EffectSeen(step_id=name, state="LANDED", transaction_id=number) for number, name in enumerate("ab", 1)]
    standing = admitted(chained("a", "b")).model_copy(update={"phase": IntentPhase.CLOSING, "cause": Cause.CANCELLED})

    commands = saga.take(on.IntentClosed(Closed(standing=standing, effects=tuple(rows))))

    assert commands == (do.Compensate(step_id="b"),)


def test_an_adopted_open_intent_rests_and_forward_opens_it_again() -> None:
    saga = Saga()
    made = chained("a")
    saga.admit(made, parked=ParkReason.INTERRUPTED)
    assert saga.state.stage is Stage.PARKED

    started = saga.admit(made, epoch=2)
    then = saga.land("a", 1)

    assert started == (do.Execute(step_id="a", arguments={}),)
    assert then == (do.AwaitStep(number=1, seconds=900.0),)


@pytest.mark.parametrize("event", [on.RunDoubted(), on.RunStale()])
def test_an_open_intent_that_may_have_another_owner_asks_the_database(event: on.Event) -> None:
    saga = saga_with("a")

    assert saga.take(event) == (do.Admit(),)


def test_a_closed_plan_never_waits_for_steps() -> None:
    saga = Saga()
    saga.admit(plan(step("a")))

    assert saga.land("a", 1) == (do.Settle(),)


def test_a_plan_that_changed_forgets_what_was_worked_out_before() -> None:
    made = chained("a")
    known = (made.digest, set(made.by_id), set(made.dependents))

    grown = made.changed(steps=(*made.steps, step("b", needs=["a"])))

    assert grown == Plan.model_validate(grown.model_dump())
    assert grown.digest != known[0]
    assert set(grown.by_id) == set(grown.dependents) == {"a", "b"}


def test_what_is_added_is_part_of_the_digest_and_a_closed_plan_has_the_one_that_it_had() -> None:
    whole = plan(step("a"))

    assert chained("a").digest != chained("a", sealed=True).digest != whole.digest
    assert whole.model_copy(update={"inactivity_seconds": 7}).digest == whole.digest
    assert replace(begin()[0], plan=whole).known_plan.is_open is False


def test_an_addition_that_comes_to_nothing_after_a_cancel_opens_nothing_again() -> None:
    saga = saga_with("a")
    saga.take(CANCEL)

    commands = saga.take(on.StepNotAdded())

    assert commands == ()
    assert saga.state.stage is Stage.CLOSING
