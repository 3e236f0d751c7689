"""What a saga remembers and tells people on its way: numbers, arguments, errors, residue and why it rests."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.envelope import Cause, Outcome, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.keys import execute_key
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Closed,
    EffectSeen,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
    StepResult,
)
from tests.support.memory import CANCEL, Saga, close_of, compensated, executed, finish_of, only
from tests.support.plans import KEY, chain, landed, plan, step
from tests.unit.test_reducer_remote import Remote, looked_up, park_of
from workflows import commands as do
from workflows import events as on
from workflows.reducer import PARALLEL_STEPS_MAX
from workflows.state import Stage

ERROR = SagaError(Reason.FUNDS_INSUFFICIENT, "too little", details={"balance_cents": 1}).info


def effect(step_id: str, state: str, number: int, **more: Any) -> EffectSeen:  # noqa: ANN401 - fields of an effect
    return EffectSeen.model_validate({"step_id": step_id, "state": state, "transaction_id": number, **more})


def closing(saga: Saga, *effects: EffectSeen, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - as above
    standing = saga.standing(**{"phase": IntentPhase.CLOSING, "cause": Cause.REFUSED, "ask": Ask(), **changes})
    return saga.take(on.IntentClosed(Closed(standing=standing, effects=effects)))


def test_a_running_step_has_its_key_and_a_landed_one_all_that_it_answered() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    assert saga.state.steps["a"].step_key == execute_key(KEY, "a")

    saga.take(
        on.StepLanded(
            StepResult(step_id="a", step_key="as-stored", transaction_id=7, applied_args={"x": 1}, output={"y": 2})
        )
    )

    told = saga.state.steps["a"].report()
    assert (told.step_key, told.transaction_id, told.applied_args, told.output) == ("as-stored", 7, {"x": 1}, {"y": 2})


def test_what_was_looked_up_and_had_landed_is_looked_up_no_more() -> None:
    saga = Remote("a", "b")
    saga.unsure("a")

    saga.see("a", "LANDED")

    assert saga.state.steps["a"].is_looking is False
    assert saga.state.running() == ("b",)


def test_a_sighting_ends_the_looking_and_keeps_what_is_known() -> None:
    saga = Remote("a")
    saga.unsure("a")

    commands = saga.see("a", "UNKNOWN", over=True, known={"status": "PENDING"})

    assert saga.state.steps["a"].is_looking is False
    assert saga.state.steps["a"].known == {"status": "PENDING"}
    (stuck,) = park_of(commands).detail["steps"]
    assert stuck["known"] == {"status": "PENDING"}


def test_a_parked_intent_names_each_stuck_step_with_its_error() -> None:
    saga = Remote("a", pivots=("a",))
    saga.unsure("a", Reason.DEPENDENCY_DOWN)

    command = park_of(saga.see("a", "UNKNOWN", over=True))

    (stuck,) = command.detail["steps"]
    assert set(stuck) == {"step_id", "error", "known"}
    assert ErrorInfo.model_validate(stuck["error"]).code is Reason.DEPENDENCY_DOWN
    assert stuck["error"]["code"] == "DEPENDENCY_DOWN"
    assert type(stuck["error"]["code"]) is str
    assert saga.state.parked is ParkReason.OUTCOME_UNKNOWN


def test_a_stuck_step_of_which_nothing_was_said_is_named_without_an_error() -> None:
    saga = Remote("a", pivots=("a",))
    saga.take(CANCEL)
    saga.closed(unknown=("a",), pivot_unknown=True)

    command = park_of(saga.see("a", "UNKNOWN", over=True, closing=True))

    assert command.detail == {"steps": [{"step_id": "a", "error": None, "known": {}}]}


def test_out_of_patience_the_saga_turns_back_with_the_steps_that_nobody_knows_of() -> None:
    saga = Remote("a", cancel_by_key=True)
    saga.unsure("a")

    command = close_of(saga.see("a", "UNKNOWN", over=True))

    assert command.error is not None
    assert command.error.details == {"steps": ["a"]}
    assert command.error.message.startswith("The outcome of a was not known in time")


def test_what_certainly_did_not_land_is_told_by_its_step() -> None:
    saga = Remote("a")
    saga.unsure("a")

    command = close_of(saga.see("a", "NOT_LANDED"))

    assert command.error is not None
    assert (command.error.code, command.error.details) == (Reason.DEPENDENCY_DOWN, {"step_id": "a"})


def test_what_did_not_land_keeps_the_error_that_it_was_sent_with() -> None:
    saga = Remote("a")
    saga.unsure("a", Reason.RATE_LIMITED)

    command = close_of(saga.see("a", "NOT_LANDED"))

    assert command.error is not None
    assert command.error.code is Reason.RATE_LIMITED


def test_a_refused_step_tells_why() -> None:
    saga = Saga(chain("a"))
    saga.admit()

    saga.take(on.StepRefused("a", ERROR))

    assert saga.state.steps["a"].error == ERROR


def test_a_lookup_without_an_answer_is_told_and_not_asked_again() -> None:
    saga = Remote("a", pivots=("a",))
    saga.unsure("a")

    command = park_of(saga.refuse("a", Reason.INTERNAL))

    assert command.reason is ParkReason.OUTCOME_UNKNOWN
    remembered = saga.state.steps["a"]
    assert (remembered.is_looking, remembered.looked_closing) == (False, True)
    assert remembered.error is not None
    assert remembered.error.code is Reason.INTERNAL


def test_a_step_of_a_stale_run_is_planned_again_and_no_longer_looked_up() -> None:
    saga = Remote("a")
    saga.unsure("a")

    commands = saga.refuse("a", Reason.RUN_STALE)

    assert commands == (do.Admit(),)
    assert saga.state.steps["a"].is_looking is False


def test_after_the_pivot_what_is_switched_off_says_so_while_it_waits() -> None:
    saga = Saga(chain("p", "k", pivots=("p",)))
    saga.admit()
    saga.land(("p", 1))

    saga.refuse("k", Reason.KILL_SWITCH_ON)

    error = saga.state.steps["k"].error
    assert error is not None
    assert error.code is Reason.KILL_SWITCH_ON


def test_the_databases_word_is_taken_whole() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.take(on.RunStale())
    detail = {"steps": [{"step_id": "a", "error": ERROR.model_dump(mode="json")}]}

    saga.refuse("a", Reason.RUN_STALE)
    saga.admit(
        parked=ParkReason.COMPENSATION_REFUSED,
        phase=IntentPhase.CLOSING,
        cause=Cause.REFUSED,
        parked_detail=detail,
        epoch=4,
        error=ERROR,
    )

    state = saga.state
    assert (state.plan_digest, state.intent_id, state.epoch) == (saga.plan.digest, saga.plan.intent_id, 4)
    assert (state.parked, state.parked_steps) == (ParkReason.COMPENSATION_REFUSED, ("a",))
    assert (state.error, state.steps["a"].error, state.stale) == (ERROR, ERROR, False)


def test_a_word_without_digest_or_error_leaves_what_was_known() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.take(on.StepRefused("b", ERROR))

    closing(saga, effect("a", "LANDED", 1), plan=None, plan_digest=None)

    assert (saga.state.plan_digest, saga.state.error) == (saga.plan.digest, ERROR)


def test_stuck_steps_without_an_error_are_stuck_all_the_same() -> None:
    saga = Saga(chain("a"))

    saga.park(
        ParkReason.COMPENSATION_REFUSED,
        phase=IntentPhase.CLOSING,
        parked_detail={"steps": [{"step_id": "a", "error": None}]},
    )

    assert (saga.step("a"), saga.state.steps["a"].error) == (StepState.PARKED, None)


def test_a_final_phase_without_a_report_is_told_with_its_cause() -> None:
    saga = Saga(chain("a"))

    report = finish_of(saga.admit(phase=IntentPhase.NOT_APPLIED, cause=Cause.CANCELLED)).report

    assert (report.outcome, report.cause) == (Outcome.NOT_APPLIED, Cause.CANCELLED)


def test_a_rejection_is_remembered_as_it_was_told() -> None:
    saga = Saga(chain("a"))

    command = finish_of(saga.take(on.Rejected(ERROR)))

    state = saga.state
    assert (state.stage, state.cause, state.error) == (Stage.FINISHED, Cause.REJECTED, ERROR)
    assert (state.report, command.report.outcome) == (command.report, Outcome.NOT_APPLIED)


def test_closing_takes_epoch_cause_and_error_from_the_database() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.take(CANCEL)
    saga.land(("a", 1))

    closing(saga, effect("a", "LANDED", 1), cause=Cause.INTERRUPTED, error=ERROR, epoch=3)

    assert (saga.state.cause, saga.state.error, saga.state.epoch) == (Cause.INTERRUPTED, ERROR, 3)
    assert saga.state.stage is Stage.COMPENSATING


def test_an_undone_steps_residue_is_in_the_list_of_the_close() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")

    closing(saga, effect("a", "COMPENSATED", 1, residue="a fee"))

    assert saga.state.steps["a"].residue == "a fee"
    assert saga.state.stage is Stage.SETTLING


def test_whoever_was_awaited_when_it_closed_is_awaited_no_more() -> None:
    saga = Saga(chain("a", "g", gated=("g",)))
    saga.admit()
    assert saga.step("g") is StepState.AWAITING_APPROVAL
    saga.take(CANCEL)

    closing(saga)

    assert (saga.step("a"), saga.step("g")) == (StepState.PLANNED, StepState.PLANNED)


def test_an_effect_that_no_plan_names_parks_before_anything_is_undone() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.land(("a", 1))
    saga.take(CANCEL)

    command = park_of(closing(saga, effect("stranger", "LANDED", 2)))

    assert command.detail == {"not_in_the_plan": ["stranger"]}
    assert saga.state.stage is Stage.PARKING


def test_past_the_pivot_the_wish_to_cancel_is_gone_and_the_epoch_is_the_databases() -> None:
    saga = Saga(chain("p", "k", pivots=("p",)))
    saga.admit()
    saga.take(CANCEL)
    saga.refuse("p", Reason.DEPENDENCY_DOWN)
    standing = saga.standing(epoch=5)

    commands = saga.take(
        on.IntentClosed(Closed(standing=standing, effects=(effect("p", "LANDED", 1),), past_pivot=True))
    )

    assert executed(commands) == ["p"]
    assert (saga.state.past_pivot, saga.state.cancellation, saga.state.epoch) == (True, None, 5)
    assert saga.state.steps["p"].error is None


def test_while_a_pivot_is_in_doubt_the_epoch_is_the_databases() -> None:
    saga = Remote("a", pivots=("a",))
    saga.take(CANCEL)
    saga.refuse("a", Reason.SUPERSEDED)
    standing = saga.standing(epoch=6, ask=Ask())

    commands = saga.take(on.IntentClosed(Closed(standing=standing, effects=(), unknown=("a",), pivot_unknown=True)))

    assert looked_up(commands) == [("a", True)]
    assert saga.state.epoch == 6


def test_a_cancel_that_comes_second_is_not_remembered() -> None:
    saga = Saga(chain("a"))
    saga.take(CANCEL)
    first = saga.state.cancellation

    saga.take(on.CancelRequested(replace(CANCEL).cancellation.model_copy(update={"requested_by": "somebody else"})))

    assert saga.state.cancellation == first


def test_an_operator_is_not_heard_unless_it_rests() -> None:
    saga = Saga(chain("a"))
    saga.admit()

    assert saga.resolve("forward") == ()
    assert saga.state.stage is Stage.FORWARD


def test_no_more_compensations_run_at_once_than_may() -> None:
    ids = [f"s{number}" for number in range(PARALLEL_STEPS_MAX + 2)]
    saga = Saga(plan(*(step(step_id) for step_id in ids)))
    saga.admit()
    for number, step_id in enumerate(ids[:PARALLEL_STEPS_MAX], 1):
        saga.take(on.StepLanded(landed(step_id, number)))
    for number, step_id in enumerate(ids[PARALLEL_STEPS_MAX:], PARALLEL_STEPS_MAX + 1):
        saga.take(on.StepLanded(landed(step_id, number)))

    first = closing(saga, *(effect(step_id, "LANDED", number) for number, step_id in enumerate(ids, 1)))
    second = saga.undo(compensated(first)[0])

    assert len(compensated(first)) == PARALLEL_STEPS_MAX
    assert len(compensated(second)) == 1


def test_settling_on_the_way_back_is_a_stage_of_its_own() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.refuse("a")

    command = only(closing(saga))

    assert command == do.Settle()
    assert saga.state.stage is Stage.SETTLING


@pytest.mark.parametrize("reason", [Reason.WRONG_STATE, Reason.FUNDS_INSUFFICIENT])
def test_a_cancelled_saga_closes_without_the_error_of_a_step(reason: Reason) -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.take(CANCEL)

    command = close_of(saga.refuse("a", reason))

    assert (command.cause, command.error) == (Cause.CANCELLED, None)


def test_what_is_seen_on_the_way_back_not_to_have_landed_is_fenced_and_what_it_held_is_undone() -> None:
    saga = Remote("a", "b")
    saga.land(("a", 1))
    saga.unsure("b")
    saga.take(CANCEL)
    saga.see("b", "UNKNOWN")
    saga.closed(("a", "LANDED", 1), unknown=("b",))

    commands = saga.see("b", "NOT_LANDED")

    assert saga.step("b") is StepState.SUPERSEDED
    assert compensated(commands) == ["a"]


def test_an_undone_step_is_compensated_and_no_longer_in_error() -> None:
    saga = Saga(chain("a"))
    saga.park(
        ParkReason.COMPENSATION_REFUSED,
        phase=IntentPhase.CLOSING,
        parked_detail={"steps": [{"step_id": "a", "error": ERROR.model_dump(mode="json")}]},
    )
    saga.resolve("retry", "a", phase=IntentPhase.CLOSING)
    closing(saga, effect("a", "LANDED", 1))

    saga.undo("a")

    assert (saga.step("a"), saga.state.steps["a"].error) == (StepState.COMPENSATED, None)


def test_a_refused_compensation_is_parked_with_what_was_said() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    closing(saga, effect("a", "LANDED", 1))

    command = park_of(saga.take(on.CompensationRefused("a", ERROR)))

    assert saga.state.steps["a"].error == ERROR
    assert command.detail == {"steps": [{"step_id": "a", "error": ERROR.model_dump(mode="json")}]}


def test_a_compensation_of_a_stale_run_leaves_its_step_done() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    closing(saga, effect("a", "LANDED", 1))

    commands = saga.refuse_undo("a", Reason.RUN_STALE)

    assert commands == (do.Admit(),)
    assert saga.step("a") is StepState.DONE


def test_what_was_approved_once_stays_approved_whatever_answer_comes_later() -> None:
    saga = Saga(chain("g", "h", gated=("g", "h")))
    saga.admit()

    saga.decide(undecided=("h",), approved=("g",))
    saga.decide(undecided=("g",), approved=("h",))

    assert (saga.state.ask.approved, saga.state.ask.undecided) == (("g", "h"), ())
    assert executed(saga.land(("g", 1))) == ["h"]


def test_an_operator_who_sends_it_back_finds_it_parked_no_more() -> None:
    saga = Remote("a")
    saga.park(ParkReason.OUTCOME_UNKNOWN, cause=Cause.CANCELLED)
    saga.state = replace(saga.state, cause=Cause.CANCELLED, parked_steps=("a",))

    command = close_of(saga.resolve("close", cause=Cause.CANCELLED))

    assert command.cause is Cause.CANCELLED
    assert (saga.state.parked, saga.state.parked_steps) == (None, ())


def test_whoever_sends_several_unknown_steps_back_is_told_all_of_them() -> None:
    saga = Remote("a", "b", cancel_by_key=True)
    free = tuple(one.model_copy(update={"needs": ()}) for one in saga.plan.steps)
    saga.plan = saga.plan.model_copy(update={"steps": free})
    saga.admit()
    saga.unsure("a")
    saga.unsure("b")
    saga.see("a", "UNKNOWN", over=True)

    command = close_of(saga.see("b", "UNKNOWN", over=True))

    assert command.error is not None
    assert "outcome of a, b was" in command.error.message


def test_what_an_operator_has_run_again_is_no_longer_in_error() -> None:
    saga = Saga(chain("p", "k", pivots=("p",)))
    saga.admit()
    saga.land(("p", 1))
    saga.take(on.StepRefused("k", ERROR))
    saga.admit(parked=ParkReason.STUCK_AFTER_PIVOT)
    assert saga.state.steps["k"].error == ERROR

    commands = saga.resolve("retry", "k")

    assert executed(commands) == ["k"]
    assert saga.state.steps["k"].error is None


def test_a_resolution_that_nobody_could_take_changes_nothing() -> None:
    saga = Saga(chain("a"))
    saga.park(ParkReason.INTERRUPTED)
    said = Resolution(resolution_id="r1", verb="close", operator="op", evidence="seen")

    commands = saga.take(on.Resolved(said, ResolutionAnswer(accepted=False, error=ERROR)))

    assert commands == ()
    assert saga.state.stage is Stage.PARKED
