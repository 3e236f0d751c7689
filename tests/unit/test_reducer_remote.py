"""The saga's rules for steps whose outcome may be unknown (DESIGN.md section 3, rule 6), one claim each."""

from typing import Any

import pytest

from contracts.envelope import Cause, StepState
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import Ask, Closed, EffectSeen, IntentPhase, ParkReason, Sighting
from contracts.tool import Dispatch
from tests.support.memory import CANCEL, Saga, close_of, compensated, executed, only
from tests.support.plans import chain, landed
from workflows import commands as do
from workflows import events as on
from workflows.state import Stage


def remote(made: Plan, **changes: Any) -> Plan:  # noqa: ANN401 - any field of a step
    """The same plan with every step sent somewhere."""
    steps = tuple(step.model_copy(update={"dispatch": Dispatch.REMOTE, **changes}) for step in made.steps)
    return made.model_copy(update={"steps": steps})


class Remote(Saga):
    """A reducer under test whose steps are sent somewhere."""

    def __init__(self, *step_ids: str, pivots: tuple[str, ...] = (), cancel_by_key: bool = False) -> None:
        super().__init__(remote(chain(*step_ids, pivots=pivots), cancel_by_key=cancel_by_key))
        self.admit()

    def unsure(self, step_id: str, reason: Reason = Reason.OUTCOME_UNKNOWN) -> tuple[do.Command, ...]:
        return self.refuse(step_id, reason)

    def see(self, step_id: str, state: str, number: int = 9, **more: Any) -> tuple[do.Command, ...]:  # noqa: ANN401
        result = landed(step_id, number) if state == "LANDED" else None
        seen = Sighting.model_validate({"step_id": step_id, "state": state, "result": result, **more})
        return self.take(on.StepSighted(seen))

    def closed(self, *rows: tuple[str, str, int], unknown: tuple[str, ...] = (), **more: Any) -> tuple[do.Command, ...]:  # noqa: ANN401
        effects = tuple(
            EffectSeen.model_validate({"step_id": step_id, "state": state, "transaction_id": number})
            for step_id, state, number in rows
        )
        phase = IntentPhase.ADMITTED if more else IntentPhase.CLOSING
        standing = self.standing(phase=phase, cause=self.state.cause, ask=Ask())
        return self.take(on.IntentClosed(Closed(standing=standing, effects=effects, unknown=unknown, **more)))


def looked_up(commands: tuple[do.Command, ...]) -> list[tuple[str, bool]]:
    return [(command.step_id, command.closing) for command in commands if isinstance(command, do.Lookup)]


def park_of(commands: tuple[do.Command, ...]) -> do.Park:
    command = only(commands)
    assert isinstance(command, do.Park)
    return command


@pytest.mark.parametrize(
    "reason",
    [
        Reason.OUTCOME_UNKNOWN,
        Reason.DEPENDENCY_DOWN,
        Reason.IN_PROGRESS,
        Reason.INTERNAL,
        Reason.RATE_LIMITED,
        Reason.MISMATCH,
        Reason.KEY_REUSED,
    ],
)
def test_what_is_no_refusal_is_looked_up_and_never_taken_for_one(reason: Reason) -> None:
    saga = Remote("a", "b")

    commands = saga.unsure("a", reason)

    assert looked_up(commands) == [("a", False)]
    assert saga.step("a") is StepState.UNKNOWN
    assert saga.state.cause is Cause.NONE


def test_a_refusal_turns_the_saga_back_without_a_lookup() -> None:
    saga = Remote("a", "b")

    assert close_of(saga.refuse("a")).cause is Cause.REFUSED


def test_what_was_seen_to_have_landed_goes_on() -> None:
    saga = Remote("a", "b")
    saga.unsure("a")

    assert executed(saga.see("a", "LANDED")) == ["b"]


def test_what_may_be_sent_again_is_after_a_while() -> None:
    saga = Remote("a")
    saga.unsure("a")

    command = only(saga.see("a", "NOT_LANDED", may_resend=True, after_seconds=3.5))

    assert isinstance(command, do.Execute)
    assert (command.step_id, command.after_seconds) == ("a", 3.5)


def test_what_certainly_did_not_land_and_may_not_be_sent_again_turns_the_saga_back() -> None:
    saga = Remote("a")
    saga.unsure("a")

    command = close_of(saga.see("a", "NOT_LANDED"))

    assert command.cause is Cause.REFUSED
    assert command.error is not None
    assert command.error.code is Reason.DEPENDENCY_DOWN


def test_an_unknown_step_is_looked_up_again_after_a_while_until_patience_is_over() -> None:
    saga = Remote("a")
    saga.unsure("a")

    again = only(saga.see("a", "UNKNOWN", after_seconds=7.0))
    parking = park_of(saga.see("a", "UNKNOWN", over=True, known={"seen": "nothing"}))

    assert isinstance(again, do.Lookup)
    assert again.after_seconds == 7.0
    assert parking.reason is ParkReason.OUTCOME_UNKNOWN
    assert [(step["step_id"], step["known"]) for step in parking.detail["steps"]] == [("a", {"seen": "nothing"})]


def test_out_of_patience_the_saga_turns_back_where_the_key_can_be_cancelled() -> None:
    saga = Remote("a", cancel_by_key=True)
    saga.unsure("a")

    assert close_of(saga.see("a", "UNKNOWN", over=True)).cause is Cause.REFUSED
    assert looked_up(saga.closed(unknown=("a",))) == [("a", True)]


def test_a_cancel_waits_for_the_lookup_that_is_on_its_way_and_starts_nothing() -> None:
    saga = Remote("a", "b")
    saga.unsure("a")

    assert saga.take(CANCEL) == ()
    assert close_of(saga.see("a", "NOT_LANDED", may_resend=True)).cause is Cause.CANCELLED


def test_an_unknown_step_holds_what_it_may_build_on_and_is_compensated_once_it_is_known() -> None:
    saga = Remote("a", "b")
    saga.land(("a", 1))
    saga.unsure("b")
    saga.take(CANCEL)
    saga.see("b", "UNKNOWN")

    closing = saga.closed(("a", "LANDED", 1), unknown=("b",))
    assert (compensated(closing), looked_up(closing)) == ([], [("b", True)])

    assert compensated(saga.see("b", "LANDED", 2)) == ["b"]
    assert compensated(saga.undo("b")) == ["a"]


def test_on_the_way_back_nothing_unknown_is_compensated_and_a_person_is_called() -> None:
    saga = Remote("a", "b")
    saga.land(("a", 1))
    saga.unsure("b")
    saga.take(CANCEL)
    saga.see("b", "UNKNOWN")
    saga.closed(("a", "LANDED", 1), unknown=("b",))

    assert park_of(saga.see("b", "UNKNOWN", over=True)).reason is ParkReason.OUTCOME_UNKNOWN


def test_what_the_database_does_not_list_as_unknown_was_never_sent() -> None:
    saga = Remote("a")
    saga.unsure("a", Reason.DEPENDENCY_DOWN)
    saga.take(CANCEL)
    saga.see("a", "UNKNOWN")

    assert isinstance(only(saga.closed()), do.Settle)
    assert saga.step("a") is StepState.SUPERSEDED


def test_an_unknown_pivot_is_looked_up_before_anything_is_closed() -> None:
    saga = Remote("a", "b", pivots=("b",))
    saga.land(("a", 1))
    saga.unsure("b")
    saga.take(CANCEL)

    assert looked_up(saga.see("b", "UNKNOWN")) == [("b", True)]
    assert close_of(saga.see("b", "NOT_LANDED")).cause is Cause.CANCELLED


def test_an_unknown_pivot_that_landed_shuts_the_way_back() -> None:
    saga = Remote("a", "b", "c", pivots=("b",))
    saga.land(("a", 1))
    saga.unsure("b")
    saga.take(CANCEL)

    assert executed(saga.see("b", "LANDED", 2)) == ["c"]
    assert saga.state.past_pivot


def test_a_pivot_that_only_the_database_remembers_is_looked_up_before_it_closes() -> None:
    saga = Remote("a", "b", pivots=("b",))
    saga.land(("a", 1))
    saga.refuse("b")

    commands = saga.closed(("a", "LANDED", 1), unknown=("b",), pivot_unknown=True)

    assert looked_up(commands) == [("b", True)]
    assert saga.state.stage is Stage.FORWARD


def test_an_unknown_pivot_out_of_patience_parks_and_keeps_the_wish_to_stop() -> None:
    saga = Remote("a", pivots=("a",))
    saga.unsure("a")
    saga.take(CANCEL)
    saga.see("a", "UNKNOWN")
    assert park_of(saga.see("a", "UNKNOWN", over=True)).reason is ParkReason.OUTCOME_UNKNOWN
    saga.park(ParkReason.OUTCOME_UNKNOWN)

    assert close_of(saga.resolve("retry", "a")).cause is Cause.CANCELLED
    assert looked_up(saga.closed(unknown=("a",), pivot_unknown=True)) == [("a", True)]


def test_after_the_pivot_what_certainly_did_not_land_is_never_gone_back_on() -> None:
    saga = Remote("a", "b", pivots=("a",))
    saga.land(("a", 1))
    saga.unsure("b")

    assert park_of(saga.see("b", "NOT_LANDED")).reason is ParkReason.STUCK_AFTER_PIVOT


def test_a_retry_of_a_parked_step_runs_it_again_and_its_activity_looks_first() -> None:
    saga = Remote("a")
    saga.unsure("a")
    saga.see("a", "UNKNOWN", over=True)
    saga.park(ParkReason.OUTCOME_UNKNOWN)

    assert executed(saga.resolve("retry", "a")) == ["a"]


def test_a_lookup_that_cannot_be_made_at_all_calls_a_person() -> None:
    saga = Remote("a")
    saga.unsure("a")

    assert park_of(saga.refuse("a", Reason.MISMATCH)).reason is ParkReason.OUTCOME_UNKNOWN


def test_a_lookup_in_a_run_that_owns_nothing_any_more_asks_the_database() -> None:
    saga = Remote("a")
    saga.unsure("a")

    assert isinstance(only(saga.refuse("a", Reason.RUN_STALE)), do.Admit)
