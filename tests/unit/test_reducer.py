"""The saga's rules (DESIGN.md sections 3 and 4), one claim each: admission, forward, the pivot, the end.

All their combinations are explored in tests/model.
"""

import pytest

from contracts.envelope import Cause, Outcome, StepState
from contracts.errors import SagaError
from contracts.locks import ASK_AGAIN, taken_away
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Cancellation,
    Closed,
    CompensateResult,
    DecisionAnswer,
    EffectSeen,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
)
from contracts.tool import SideEffect
from tests.support.memory import CANCEL, Saga, close_of, compensated, executed, finish_of, only, report
from tests.support.plans import KEY, admitted, chain, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.reducer import PARALLEL_STEPS_MAX, advance, begin
from workflows.state import Stage, State

# --- admission -------------------------------------------------------------------------------------------------


def test_a_saga_begins_by_asking_the_database() -> None:
    saga = Saga(chain("a"))

    assert saga.first == (do.Admit(),)
    assert saga.state.stage is Stage.ADMITTING


def test_a_rejection_that_claimed_nothing_fails_the_run_so_that_the_same_id_may_start_again() -> None:
    saga = Saga(chain("a"))
    error = SagaError(Reason.FUNDS_INSUFFICIENT, "too little").info

    finish = finish_of(saga.take(on.Rejected(error)))

    assert finish.failed
    assert finish.error == error
    assert finish.report == report(Outcome.NOT_APPLIED, Cause.REJECTED)


def test_a_rejection_that_was_claimed_ends_the_run_with_its_stored_report() -> None:
    saga = Saga(chain("a"))
    told = report(Outcome.NOT_APPLIED, Cause.REJECTED)
    error = SagaError(Reason.NOT_OWNER, "not yours").info

    finish = finish_of(
        saga.admit(plan=None, phase=IntentPhase.NOT_APPLIED, cause=Cause.REJECTED, report=told, error=error)
    )

    assert (finish.failed, finish.error, finish.report) == (False, error, told)


def test_a_duplicate_of_a_running_intent_ends_pending_and_writes_nothing() -> None:
    saga = Saga(chain("a"))

    finish = finish_of(saga.admit(duplicate=True))

    assert finish.duplicate
    assert finish.report.outcome is Outcome.PENDING


@pytest.mark.parametrize("phase", [IntentPhase.COMMITTED, IntentPhase.COMPENSATED, IntentPhase.NOT_APPLIED])
def test_a_final_phase_met_at_admission_is_answered_as_it_is_stored_whatever_cancel_was_seen(
    phase: IntentPhase,
) -> None:
    saga = Saga(chain("a"))
    saga.take(CANCEL)

    finish = finish_of(saga.admit(phase=phase, report=report(phase.outcome)))

    assert finish.report.outcome is phase.outcome


def test_an_adopted_intent_rests_for_an_operator() -> None:
    saga = Saga(chain("a"))

    commands = saga.park(ParkReason.INTERRUPTED, epoch=2)

    assert commands == ()
    assert (saga.state.stage, saga.state.parked, saga.state.epoch) == (Stage.PARKED, ParkReason.INTERRUPTED, 2)


def test_an_intent_that_is_closing_is_closed_again_for_its_list() -> None:
    saga = Saga(chain("a"))

    commands = saga.admit(phase=IntentPhase.CLOSING, cause=Cause.CANCELLED)

    assert close_of(commands).cause is Cause.CANCELLED


# --- forward ---------------------------------------------------------------------------------------------------


def test_steps_run_one_after_another_and_then_the_intent_is_settled() -> None:
    saga = Saga(chain("a", "b"))

    assert executed(saga.admit()) == ["a"]
    assert executed(saga.land(("a", 1))) == ["b"]
    assert saga.land(("b", 2)) == (do.Settle(),)
    assert saga.state.stage is Stage.SETTLING


def test_independent_steps_run_at_once_and_a_join_waits_for_both() -> None:
    saga = Saga(plan(step("a"), step("b"), step("c", needs=["a", "b"])))

    assert executed(saga.admit()) == ["a", "b"]
    assert saga.land(("b", 1)) == ()
    assert executed(saga.land(("a", 2))) == ["c"]


def test_no_more_than_eight_steps_run_at_once() -> None:
    saga = Saga(plan(*(step(f"s{number}") for number in range(10))))

    assert len(saga.admit()) == PARALLEL_STEPS_MAX
    assert executed(saga.land(("s3", 1))) == ["s8"]


def test_a_binding_is_filled_from_the_recorded_output() -> None:
    bound = {"hold_id": {"$from": "a.hold.id"}, "memo": "as sent "}
    saga = Saga(plan(step("a"), step("b", needs=["a"], arguments=bound)))
    saga.admit()

    command = only(saga.take(on.StepLanded(landed("a", 1, {"hold": {"id": "H1"}}))))

    assert command == do.Execute("b", {"hold_id": "H1", "memo": "as sent "})


def test_a_binding_that_the_output_lacks_refuses_the_step_and_turns_back() -> None:
    saga = Saga(plan(step("a"), step("b", needs=["a"], arguments={"x": {"$from": "a.gone"}})))
    saga.admit()

    commands = saga.take(on.StepLanded(landed("a", 1, {})))

    assert close_of(commands).cause is Cause.REFUSED
    assert saga.step("b") is StepState.REFUSED


def test_nothing_starts_beside_a_step_whose_binding_cannot_be_filled() -> None:
    saga = Saga(plan(step("a"), step("b", needs=["a"]), step("c", needs=["a"], arguments={"x": {"$from": "a.gone"}})))
    saga.admit()

    commands = saga.land(("a", 1))

    assert close_of(commands).cause is Cause.REFUSED
    assert saga.step("b") is StepState.PLANNED


def test_the_settled_phase_is_the_outcome() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.land(("a", 1))
    told = report(Outcome.COMMITTED)

    finish = finish_of(saga.admit(phase=IntentPhase.COMMITTED, report=told))

    assert finish == do.Finish(report=told)
    assert saga.state.outcome() is Outcome.COMMITTED


def test_rows_that_disagree_with_the_plan_park_the_intent() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.land(("a", 1))

    assert saga.park(ParkReason.MISMATCH) == ()
    assert saga.state.outcome() is Outcome.PARKED


# --- the pivot ---------------------------------------------------------------------------------------------------


def test_after_the_pivot_a_refusal_parks_and_nothing_is_compensated() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.admit()
    saga.land(("a", 1))

    command = only(saga.refuse("b"))

    assert isinstance(command, do.Park)
    assert command.reason is ParkReason.STUCK_AFTER_PIVOT
    assert [stuck["step_id"] for stuck in command.detail["steps"]] == ["b"]


def test_after_the_pivot_the_other_steps_go_on_before_the_saga_parks() -> None:
    saga = Saga(plan(step("p", effect=SideEffect.IRREVERSIBLE), step("a", needs=["p"]), step("b", needs=["p"])))
    saga.admit()
    saga.land(("p", 1))

    assert saga.refuse("a") == ()
    assert isinstance(only(saga.land(("b", 2))), do.Park)


def test_what_is_switched_off_after_the_pivot_waits_longer_each_time_and_parks_at_the_deadline() -> None:
    saga = Saga(plan(step("p", effect=SideEffect.IRREVERSIBLE), step("a", needs=["p"])))
    saga.admit()
    saga.land(("p", 1))

    waits = [only(saga.refuse("a", Reason.KILL_SWITCH_ON)) for _ in range(8)]

    assert [wait.after_seconds for wait in waits if isinstance(wait, do.Execute)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert isinstance(only(saga.refuse("a", Reason.DEADLINE_EXCEEDED)), do.Park)


def test_after_the_pivot_a_step_that_had_not_begun_runs_though_another_refused() -> None:
    saga = Saga(plan(step("p", effect=SideEffect.IRREVERSIBLE), *(step(one, needs=["p"]) for one in "ab"),
                     step("c", needs=["b"])))  # fmt: skip
    saga.admit()
    saga.land(("p", 1))
    saga.refuse("a")

    assert executed(saga.land(("b", 2))) == ["c"]


def test_a_close_that_meets_a_landed_pivot_goes_forward_and_runs_the_unseen_steps_again() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.take(CANCEL)
    saga.admit()
    shut = Closed(
        standing=saga.standing(), effects=(EffectSeen(step_id="a", state="LANDED", transaction_id=1),), past_pivot=True
    )

    assert executed(saga.take(on.IntentClosed(shut))) == ["a"]
    assert executed(saga.land(("a", 1))) == ["b"]
    assert saga.land(("b", 2)) == (do.Settle(),)


def test_a_pivot_that_landed_unseen_while_people_were_awaited_is_run_again_for_its_stored_answer() -> None:
    saga = Saga(chain("a", "b", gated=["a"], pivots=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())
    shut = Closed(
        standing=saga.standing(ask=Ask(approved=("a",))),
        effects=(EffectSeen(step_id="a", state="LANDED", transaction_id=1),),
        past_pivot=True,
    )

    assert executed(saga.take(on.IntentClosed(shut))) == ["a"]


# --- locks ---------------------------------------------------------------------------------------------------------


def locked(step_id: str, *, ask_again_seconds: float | None = None) -> on.StepRefused:
    details = {} if ask_again_seconds is None else {ASK_AGAIN: ask_again_seconds}
    return on.StepRefused(step_id, SagaError(Reason.RESOURCE_LOCKED, "somebody has it", details=details).info)


def test_a_step_that_waits_for_a_lock_is_tried_again_after_as_long_as_the_database_said() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()

    command = only(saga.take(locked("a", ask_again_seconds=1.5)))

    assert isinstance(command, do.Execute)
    assert (command.step_id, command.after_seconds) == ("a", 1.5)
    assert saga.step("a") is StepState.EXECUTING
    assert executed(saga.land(("a", 1))) == ["b"]


def test_a_lock_that_is_not_to_be_had_turns_the_saga_back() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))

    close = close_of(saga.take(locked("b")))

    assert close.cause is Cause.REFUSED
    assert close.error is not None
    assert close.error.code is Reason.RESOURCE_LOCKED
    assert compensated(saga.close(("a", "LANDED", 1))) == ["a"]


def test_a_step_that_waits_for_a_lock_does_not_start_once_the_saga_turns_back() -> None:
    saga = Saga(plan(step("a"), step("b", needs=())))
    saga.admit()
    assert saga.refuse("a") == ()

    assert close_of(saga.take(locked("b", ask_again_seconds=1.0))).cause is Cause.REFUSED
    assert saga.step("b") is StepState.PLANNED


def test_past_the_pivot_a_lock_is_waited_for_and_then_a_person_is_called() -> None:
    saga = Saga(chain("a", "b", pivots=("a",)))
    saga.admit()
    saga.land(("a", 1))

    assert executed(saga.take(locked("b", ask_again_seconds=1.0))) == ["b"]
    command = only(saga.take(locked("b")))

    assert isinstance(command, do.Park)
    assert command.reason is ParkReason.STUCK_AFTER_PIVOT


# --- a lock that was taken away ----------------------------------------------------------------------------------

LOST = taken_away("book:B00000011").info


def test_a_lost_lock_turns_the_saga_back_with_the_lock_as_its_error() -> None:
    made = chain("a")
    state = settling(made)

    state, commands = advance(state, on.Admitted(admitted(made).model_copy(update={"lost": LOST})))

    assert commands == (do.CloseIntent(cause=Cause.REFUSED, error=LOST),)
    assert state.stage is Stage.CLOSING


def test_a_wish_to_stop_comes_before_a_lost_lock() -> None:
    made = chain("a")
    state, _ = begin()
    state, _ = advance(state, on.CancelRequested(Cancellation(requested_by="anna")))

    _, commands = advance(state, on.Admitted(admitted(made).model_copy(update={"lost": LOST})))

    assert commands == (do.CloseIntent(cause=Cause.CANCELLED, actor="anna"),)


def test_past_the_pivot_a_lost_lock_is_left_to_settling_which_parks() -> None:
    made = chain("a", pivots=("a",))
    state = settling(made)
    state, _ = advance(state, on.Admitted(admitted(made).model_copy(update={"lost": LOST})))
    effects = (EffectSeen(step_id="a", state="LANDED", transaction_id=1),)

    state, commands = advance(state, on.IntentClosed(Closed(standing=admitted(made), effects=effects, past_pivot=True)))

    assert commands == (do.Settle(),)
    assert state.past_pivot


def settling(made: Plan) -> State:
    """All of a plan of one step has landed."""
    state, _ = begin()
    state, _ = advance(state, on.Admitted(admitted(made)))
    state, commands = advance(state, on.StepLanded(landed("a", 1)))
    assert commands == (do.Settle(),)
    return state


# --- the end -----------------------------------------------------------------------------------------------------


def test_a_finished_saga_ignores_everything() -> None:
    saga = Saga(chain("a"))
    saga.admit(phase=IntentPhase.COMMITTED, report=report(Outcome.COMMITTED))
    ended = saga.state
    error = SagaError(Reason.WRONG_STATE, "no").info
    events: list[on.Event] = [
        on.Admitted(saga.standing()),
        on.Rejected(error),
        on.DecisionAdmitted(DecisionAnswer(accepted=True, ask=Ask(denied=("a",)))),
        on.ApprovalDue(),
        on.StepLanded(landed("a", 1)),
        on.StepRefused("a", error),
        CANCEL,
        on.RunStale(),
        on.RunDoubted(),
        on.IntentClosed(Closed(standing=saga.standing(phase=IntentPhase.CLOSING))),
        on.StepCompensated(CompensateResult(step_id="a", step_key=KEY, transaction_id=1, undone=True)),
        on.CompensationRefused("a", error),
        on.Resolved(
            Resolution(resolution_id="r", verb="close", operator="op"),
            ResolutionAnswer(accepted=True, standing=saga.standing()),
        ),
    ]

    assert [saga.take(event) for event in events] == [()] * len(events)
    assert saga.state == ended


def test_a_timer_before_admission_changes_nothing() -> None:
    state, _ = begin()

    assert advance(state, on.ApprovalDue()) == (state, ())
