"""The saga's rules of the way back, one claim each: refusals, compensation order, cancels."""

from dataclasses import replace

import pytest

from contracts.envelope import Cause, Outcome, StepState
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import (
    Closed,
    IntentPhase,
)
from tests.support.memory import CANCEL, Saga, close_of, compensated, executed, finish_of, report
from tests.support.plans import chain, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.state import Stage

# --- failure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["a", "b", "c"])
def test_a_refusal_at_any_step_closes_first_and_keeps_the_first_error(failing: str) -> None:
    saga = Saga(chain("a", "b", "c"))
    saga.admit()
    saga.land(*[(step_id, number) for number, step_id in enumerate("abc"[: "abc".index(failing)], 1)])

    closing = close_of(saga.refuse(failing))

    assert closing.cause is Cause.REFUSED
    assert closing.error is not None
    assert closing.error.code is Reason.WRONG_STATE
    assert saga.step(failing) is StepState.REFUSED


def test_a_step_after_the_deadline_ends_with_the_cause_deadline() -> None:
    saga = Saga(chain("a"))
    saga.admit()

    assert close_of(saga.refuse("a", Reason.DEADLINE_EXCEEDED)).cause is Cause.DEADLINE


def test_a_fenced_step_is_superseded() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.refuse("a", Reason.SUPERSEDED)

    assert saga.step("a") is StepState.SUPERSEDED


def test_after_a_refusal_running_steps_are_awaited_and_no_other_starts() -> None:
    saga = Saga(plan(step("a"), step("b"), step("c", needs=["b"])))
    saga.admit()

    assert saga.refuse("a") == ()
    assert close_of(saga.land(("b", 1))).cause is Cause.REFUSED


def test_what_the_database_lists_is_compensated_and_not_what_is_remembered() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.refuse("a")

    commands = saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))

    assert compensated(commands) == ["b"]
    assert compensated(saga.undo("b")) == ["a"]
    assert saga.undo("a") == (do.Settle(),)


def test_a_remembered_step_that_the_database_does_not_list_never_landed() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")

    assert saga.close() == (do.Settle(),)
    assert saga.step("a") is StepState.SUPERSEDED


def test_what_is_compensated_or_fenced_already_is_left_alone() -> None:
    saga = Saga(chain("a", "b", "c"))
    saga.admit()
    saga.refuse("a")

    commands = saga.close(("a", "LANDED", 1), ("b", "COMPENSATED", 2), ("c", "TOMBSTONE", 3))

    assert compensated(commands) == ["a"]
    assert (saga.step("b"), saga.step("c")) == (StepState.COMPENSATED, StepState.SUPERSEDED)


def test_a_chain_is_compensated_backwards() -> None:
    saga = Saga(chain("a", "b", "c", "d"))
    saga.admit()
    saga.land(("a", 1), ("b", 2), ("c", 3))
    saga.refuse("d")

    order = [*compensated(saga.close(("a", "LANDED", 1), ("b", "LANDED", 2), ("c", "LANDED", 3)))]
    order += compensated(saga.undo("c"))
    order += compensated(saga.undo("b"))

    assert order == ["c", "b", "a"]


def test_a_diamond_is_compensated_from_its_tip_both_sides_at_once() -> None:
    saga = Saga(plan(step("a"), step("b", needs=["a"]), step("c", needs=["a"]), step("d", needs=["b", "c"])))
    saga.admit()

    first = saga.take(CANCEL)
    closed = saga.land(("a", 1)) and saga.close(
        ("a", "LANDED", 1), ("b", "LANDED", 2), ("c", "LANDED", 3), ("d", "LANDED", 4)
    )

    assert first == ()
    assert compensated(closed) == ["d"]
    assert compensated(saga.undo("d")) == ["c", "b"]
    assert saga.undo("b") == ()
    assert compensated(saga.undo("c")) == ["a"]


def test_a_step_waits_for_those_that_build_on_it_through_a_step_that_only_reads() -> None:
    saga = Saga(chain("a", "r", "b", "c", reads=["r"]))
    saga.admit()
    saga.land(("a", 1))
    saga.take(on.StepLanded(landed("r")))
    saga.land(("b", 2))
    saga.refuse("c")

    commands = saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))

    assert compensated(commands) == ["b"]
    assert compensated(saga.undo("b")) == ["a"]


def test_a_step_that_only_read_stays_done_and_is_never_compensated() -> None:
    saga = Saga(chain("r", "a", reads=["r"]))
    saga.admit()
    saga.take(on.StepLanded(landed("r")))
    saga.refuse("a")

    assert saga.close() == (do.Settle(),)
    assert saga.step("r") is StepState.DONE


def test_independent_steps_on_one_object_are_compensated_in_reverse_of_their_landing() -> None:
    saga = Saga(plan(step("a", resources=["account:1"]), step("b", resources=["account:1"]), step("c")))
    saga.admit()
    saga.land(("b", 1), ("a", 2))
    saga.refuse("c")

    commands = saga.close(("b", "LANDED", 1), ("a", "LANDED", 2))

    assert compensated(commands) == ["a"]
    assert compensated(saga.undo("a")) == ["b"]


def test_independent_steps_on_different_objects_are_compensated_at_once() -> None:
    saga = Saga(plan(step("a", resources=["account:1"]), step("b", resources=["account:2"]), step("c")))
    saga.admit()
    saga.land(("a", 1), ("b", 2))
    saga.refuse("c")

    assert compensated(saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))) == ["b", "a"]


def test_what_a_compensation_could_not_restore_is_told() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    saga.close(("a", "LANDED", 1))

    saga.undo("a", residue="3 cents of fees")

    assert saga.state.steps["a"].residue == "3 cents of fees"


def test_no_outcome_is_told_before_its_phase_is_set() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.refuse("a")
    saga.close()

    assert saga.state.outcome() is Outcome.PENDING
    assert (
        finish_of(saga.admit(phase=IntentPhase.NOT_APPLIED, cause=Cause.REFUSED)).report.outcome is Outcome.NOT_APPLIED
    )


# --- cancel ----------------------------------------------------------------------------------------------------


def test_a_cancel_before_admission_waits_for_it_and_then_closes() -> None:
    saga = Saga(chain("a"))

    assert saga.take(CANCEL) == ()
    closing = close_of(saga.admit())

    assert (closing.cause, closing.actor) == (Cause.CANCELLED, "somebody")


def test_a_cancel_before_a_rejection_leaves_the_rejection() -> None:
    saga = Saga(chain("a"))
    saga.take(CANCEL)

    finish = finish_of(saga.take(on.Rejected(SagaError(Reason.FUNDS_INSUFFICIENT, "no").info)))

    assert finish.report.cause is Cause.REJECTED


def test_a_cancel_while_people_are_awaited_closes_at_once() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()

    assert close_of(saga.take(CANCEL)).cause is Cause.CANCELLED


def test_a_cancel_while_a_step_runs_waits_for_it_and_starts_no_other() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()

    assert saga.take(CANCEL) == ()
    assert close_of(saga.land(("a", 1))).cause is Cause.CANCELLED


def test_a_step_that_refuses_after_a_cancel_leaves_the_cause_cancelled() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.take(CANCEL)

    assert close_of(saga.refuse("a")).cause is Cause.CANCELLED


def test_a_second_cancel_changes_nothing() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.take(CANCEL)

    assert saga.take(CANCEL) == ()
    assert len(saga.land(("a", 1))) == 1


@pytest.mark.parametrize("stage", [Stage.CLOSING, Stage.COMPENSATING, Stage.SETTLING, Stage.PARKING, Stage.PARKED])
def test_a_cancel_reaches_no_compensation_no_settling_and_no_rest(stage: Stage) -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    saga.state = replace(saga.state, stage=stage)
    before = saga.state

    assert saga.take(CANCEL) == ()
    assert saga.state == before


def test_a_cancel_past_the_pivot_is_too_late() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.admit()
    saga.land(("a", 1))

    assert saga.take(CANCEL) == ()
    assert saga.land(("b", 2)) == (do.Settle(),)


def test_a_cancel_while_the_pivot_runs_loses_when_the_pivot_lands() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.admit()
    saga.take(CANCEL)

    assert executed(saga.land(("a", 1))) == ["b"]
    assert saga.state.cause is Cause.NONE


def test_a_cancel_that_lost_to_the_pivot_closes_nothing_when_the_database_is_asked_again() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.admit()
    saga.take(CANCEL)
    saga.land(("a", 1))
    saga.refuse("b", Reason.INTENT_PARKED)

    assert executed(saga.admit()) == ["b"]


def test_a_cancel_that_meets_an_expiry_which_was_not_due_is_not_forgotten() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())
    saga.take(CANCEL)

    not_due = Closed(standing=saga.standing(), due_in_seconds=5.0)

    assert close_of(saga.take(on.IntentClosed(not_due))).cause is Cause.CANCELLED


def test_a_saga_that_finds_its_intent_committed_says_so_whatever_cancel_it_has_seen() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.take(CANCEL)
    saga.land(("a", 1))
    committed = saga.standing(phase=IntentPhase.COMMITTED, report=report(Outcome.COMMITTED))

    finish = finish_of(saga.take(on.IntentClosed(Closed(standing=committed))))

    assert finish.report.outcome is Outcome.COMMITTED
