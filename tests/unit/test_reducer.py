"""The saga's rules (DESIGN.md sections 3 and 4), one claim each; all their combinations are explored in tests/model."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.envelope import Cause, IntentReport, Outcome, StepState
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
    Standing,
)
from contracts.tool import SideEffect
from tests.support.plans import KEY, admitted, ask_of, chain, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.reducer import PARALLEL_STEPS_MAX, advance, begin
from workflows.state import Stage, State

CANCEL = on.CancelRequested(Cancellation(reason="enough", requested_by="somebody"))


class Saga:
    """A reducer under test: takes events, keeps the state, returns the commands."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.state, self.first = begin()

    def take(self, event: on.Event) -> tuple[do.Command, ...]:
        self.state, commands = advance(self.state, event)
        return commands

    def admit(self, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - any field of a standing
        return self.take(on.Admitted(self.standing(**changes)))

    def standing(self, **changes: Any) -> Standing:  # noqa: ANN401 - as above
        return admitted(self.plan).model_copy(update=changes)

    def land(self, *steps: tuple[str, int]) -> tuple[do.Command, ...]:
        commands: tuple[do.Command, ...] = ()
        for step_id, number in steps:
            commands = self.take(on.StepLanded(landed(step_id, number)))
        return commands

    def refuse(self, step_id: str, reason: Reason = Reason.WRONG_STATE) -> tuple[do.Command, ...]:
        return self.take(on.StepRefused(step_id, SagaError(reason, "no").info))

    def close(self, *rows: tuple[str, str, int], cause: Cause = Cause.REFUSED) -> tuple[do.Command, ...]:
        effects = tuple(
            EffectSeen.model_validate({"step_id": step_id, "state": state, "transaction_id": number})
            for step_id, state, number in rows
        )
        standing = self.standing(phase=IntentPhase.CLOSING, cause=cause, ask=Ask())
        return self.take(on.IntentClosed(Closed(standing=standing, effects=effects)))

    def undo(self, step_id: str, residue: str | None = None) -> tuple[do.Command, ...]:
        done = CompensateResult(step_id=step_id, step_key="k", transaction_id=9, undone=True, residue=residue)
        return self.take(on.StepCompensated(done))

    def refuse_undo(self, step_id: str, reason: Reason = Reason.WRONG_STATE) -> tuple[do.Command, ...]:
        return self.take(on.CompensationRefused(step_id, SagaError(reason, "cannot").info))

    def decide(self, *, accepted: bool = True, **ask: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - as above
        return self.take(on.DecisionAdmitted(DecisionAnswer(accepted=accepted, ask=Ask(**ask))))

    def resolve(self, verb: str, step_id: str | None = None, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401
        said = Resolution.model_validate(
            {"resolution_id": "r1", "verb": verb, "operator": "op", "step_id": step_id, "evidence": "seen"}
        )
        return self.take(on.Resolved(said, ResolutionAnswer(accepted=True, standing=self.standing(**changes))))

    def park(self, reason: ParkReason, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - as above
        return self.admit(parked=reason, **changes)

    def step(self, step_id: str) -> StepState:
        return self.state.steps[step_id].state


def executed(commands: tuple[do.Command, ...]) -> list[str]:
    return [command.step_id for command in commands if isinstance(command, do.Execute)]


def compensated(commands: tuple[do.Command, ...]) -> list[str]:
    return [command.step_id for command in commands if isinstance(command, do.Compensate)]


def only(commands: tuple[do.Command, ...]) -> do.Command:
    (command,) = commands
    return command


def close_of(commands: tuple[do.Command, ...]) -> do.CloseIntent:
    command = only(commands)
    assert isinstance(command, do.CloseIntent)
    return command


def finish_of(commands: tuple[do.Command, ...]) -> do.Finish:
    command = only(commands)
    assert isinstance(command, do.Finish)
    return command


def report(outcome: Outcome, cause: Cause = Cause.NONE) -> IntentReport:
    return IntentReport(outcome=outcome, cause=cause)


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


# --- decisions -------------------------------------------------------------------------------------------------


def test_approvals_are_asked_before_the_first_write() -> None:
    saga = Saga(chain("a", "b", gated=["b"]))

    command = only(saga.admit())

    assert command == do.Ask(step_ids=("b",), expires_in_seconds=600.0)
    assert saga.step("b") is StepState.AWAITING_APPROVAL


def test_the_saga_sets_out_when_the_last_step_is_approved() -> None:
    saga = Saga(chain("a", "b", gated=["a", "b"]))
    saga.admit()

    assert saga.decide(undecided=("b",), approved=("a",)) == ()
    assert executed(saga.decide(approved=("a", "b"))) == ["a"]


def test_one_denial_denies_the_intent() -> None:
    saga = Saga(chain("a", "b", gated=["a", "b"]))
    saga.admit()

    assert close_of(saga.decide(undecided=("a",), denied=("b",))).cause is Cause.DENIED


def test_a_decision_that_does_not_count_changes_nothing() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()

    assert saga.decide(accepted=False, undecided=("a",)) == ()
    assert saga.state.stage is Stage.AWAITING_APPROVAL


def test_answers_to_decisions_may_come_in_any_order() -> None:
    saga = Saga(chain("a", "b", "c", gated=["a", "b", "c"]))
    saga.admit()

    saga.decide(undecided=("c",), approved=("a", "b"))
    saga.decide(undecided=("b", "c"), approved=("a",))

    assert saga.state.ask.undecided == ("c",)


def test_an_earlier_answer_that_comes_later_takes_no_denial_back() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())
    saga.take(on.DecisionAdmitted(DecisionAnswer(accepted=True, ask=Ask(denied=("a",)))))
    not_due = Closed(standing=saga.standing(ask=Ask(undecided=("a",), expires_in_seconds=9)), due_in_seconds=9)

    assert close_of(saga.take(on.IntentClosed(not_due))).cause is Cause.DENIED


def test_a_denial_after_an_approval_waits_for_the_running_step_and_turns_back() -> None:
    saga = Saga(chain("a", "b", gated=["b"]))
    saga.admit()
    saga.decide(approved=("b",))

    assert saga.decide(denied=("b",)) == ()
    assert close_of(saga.land(("a", 1))).cause is Cause.DENIED


@pytest.mark.parametrize("stage", [Stage.CLOSING, Stage.COMPENSATING, Stage.SETTLING, Stage.PARKED, Stage.ADMITTING])
def test_a_denial_elsewhere_starts_nothing_of_its_own(stage: Stage) -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.state = replace(saga.state, stage=stage)

    assert saga.decide(denied=("a",)) == ()
    assert saga.state.stage is stage


def test_an_expiry_is_judged_by_the_database() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()

    assert close_of(saga.take(on.ApprovalDue())).cause is Cause.EXPIRED


def test_an_expiry_that_is_not_due_waits_on() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())
    ask = ask_of(saga.plan).model_copy(update={"expires_in_seconds": 2.5})

    command = only(saga.take(on.IntentClosed(Closed(standing=saga.standing(ask=ask), due_in_seconds=2.5))))

    assert command == do.Ask(step_ids=("a",), expires_in_seconds=2.5)
    assert saga.state.cause is Cause.NONE


def test_an_approval_that_beat_the_expiry_counts() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())

    approved = saga.standing(ask=Ask(approved=("a",)))

    assert executed(saga.take(on.IntentClosed(Closed(standing=approved, due_in_seconds=0.0)))) == ["a"]


def test_an_approval_whose_answer_overtakes_the_expiry_is_not_forgotten() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.take(on.ApprovalDue())
    saga.decide(approved=("a",))

    stale = Closed(standing=saga.standing(), due_in_seconds=1.0)

    assert executed(saga.take(on.IntentClosed(stale))) == ["a"]


def test_a_timer_that_fires_after_the_decision_changes_nothing() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.decide(approved=("a",))

    assert saga.take(on.ApprovalDue()) == ()


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


# --- a lost workflow task ----------------------------------------------------------------------------------------


def test_after_a_lost_task_the_steps_are_run_again_for_their_stored_answers() -> None:
    saga = Saga(chain("a", "b"))

    assert executed(saga.admit()) == ["a"]
    assert executed(saga.land(("a", 1))) == ["b"]


def test_after_a_lost_task_a_parked_saga_still_shows_which_step_is_stuck_and_why() -> None:
    saga = Saga(chain("a", "b"))
    refusal = SagaError(Reason.FUNDS_INSUFFICIENT, "spent").info
    stuck = {"steps": [{"step_id": "a", "error": refusal.model_dump(mode="json")}]}

    saga.take(
        on.Admitted(
            saga.standing(
                phase=IntentPhase.CLOSING,
                cause=Cause.REFUSED,
                parked=ParkReason.COMPENSATION_REFUSED,
                parked_detail=stuck,
            )
        )
    )

    assert (saga.state.steps["a"].state, saga.state.steps["a"].error) == (StepState.PARKED, refusal)
    assert saga.state.stage is Stage.PARKED


def test_after_a_lost_task_a_cancel_that_comes_first_compensates_what_landed_unseen() -> None:
    saga = Saga(chain("a", "b"))
    saga.take(CANCEL)
    saga.admit()

    commands = saga.close(("a", "LANDED", 1), ("b", "LANDED", 2), cause=Cause.CANCELLED)

    assert compensated(commands) == ["b"]


def test_a_close_that_meets_a_parked_intent_leaves_it_at_rest() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.refuse("a")
    parked = saga.standing(phase=IntentPhase.CLOSING, cause=Cause.REFUSED, parked=ParkReason.COMPENSATION_REFUSED)

    commands = saga.take(
        on.IntentClosed(Closed(standing=parked, effects=(EffectSeen(step_id="a", state="LANDED", transaction_id=1),)))
    )

    assert commands == ()
    assert saga.state.stage is Stage.PARKED


def test_a_row_that_is_not_of_the_plan_parks_the_intent_instead_of_compensating_around_it() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")

    command = only(saga.close(("a", "LANDED", 1), ("stranger", "LANDED", 2)))

    assert isinstance(command, do.Park)
    assert (command.reason, command.detail) == (ParkReason.MISMATCH, {"not_in_the_plan": ["stranger"]})


def test_past_the_pivot_a_row_that_is_not_of_the_plan_is_left_to_settling() -> None:
    saga = Saga(chain("a", pivots=["a"]))
    saga.take(CANCEL)
    saga.admit()
    rows = (
        EffectSeen(step_id="a", state="LANDED", transaction_id=1),
        EffectSeen(step_id="stranger", state="LANDED", transaction_id=2),
    )

    commands = saga.take(on.IntentClosed(Closed(standing=saga.standing(), effects=rows, past_pivot=True)))

    assert executed(commands) == ["a"]
    assert saga.land(("a", 1)) == (do.Settle(),)


# --- stale runs --------------------------------------------------------------------------------------------------


def stage_of(saga: Saga, stage: Stage) -> None:
    """Lead a saga with the plan a, b to a stage in which the database is asked."""
    saga.admit()
    saga.land(("a", 1))
    if stage is Stage.SETTLING:
        saga.land(("b", 2))
        return
    saga.refuse("b")
    if stage is Stage.PARKING:
        saga.close(("a", "LANDED", 1))
        saga.refuse_undo("a")
    assert saga.state.stage is stage


@pytest.mark.parametrize("stage", [Stage.CLOSING, Stage.SETTLING, Stage.PARKING])
def test_a_run_that_another_one_replaced_asks_how_the_intent_stands(stage: Stage) -> None:
    saga = Saga(chain("a", "b"))
    stage_of(saga, stage)

    assert saga.take(on.RunStale()) == (do.Admit(),)
    assert saga.state.stage is Stage.ADMITTING


@pytest.mark.parametrize("reason", [Reason.RUN_STALE, Reason.INTENT_PARKED])
def test_a_step_refused_because_the_run_is_stale_or_the_intent_parked_asks_how_it_stands(reason: Reason) -> None:
    saga = Saga(chain("a"))
    saga.admit()

    assert saga.refuse("a", reason) == (do.Admit(),)
    assert saga.step("a") is StepState.PLANNED


def test_a_stale_run_waits_for_its_other_steps_and_starts_nothing() -> None:
    saga = Saga(plan(step("a"), step("b"), step("c", needs=["b"])))
    saga.admit()

    assert saga.refuse("a", Reason.RUN_STALE) == ()
    assert saga.land(("b", 1)) == (do.Admit(),)


def test_a_compensation_refused_because_the_run_is_stale_asks_how_it_stands() -> None:
    saga = Saga(chain("a", "b"))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    saga.close(("a", "LANDED", 1))

    assert saga.refuse_undo("a", Reason.RUN_STALE) == (do.Admit(),)


def test_a_replaced_run_ends_as_a_duplicate() -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.refuse("a", Reason.RUN_STALE)

    assert finish_of(saga.admit(duplicate=True)).duplicate


@pytest.mark.parametrize("stage", [Stage.AWAITING_APPROVAL, Stage.PARKED])
def test_a_reset_run_that_rests_finds_out_by_the_next_message_that_it_owns_nothing(stage: Stage) -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.admit()
    saga.state = replace(saga.state, stage=stage)

    assert saga.take(on.RunDoubted()) == (do.Admit(),)


@pytest.mark.parametrize("stage", [Stage.ADMITTING, Stage.FORWARD, Stage.CLOSING, Stage.SETTLING, Stage.COMPENSATING])
def test_a_doubt_changes_nothing_while_the_database_is_asked_anyway(stage: Stage) -> None:
    saga = Saga(chain("a"))
    saga.admit()
    saga.state = replace(saga.state, stage=stage)

    assert saga.take(on.RunDoubted()) == ()


# --- parked ------------------------------------------------------------------------------------------------------


def parked_on(saga: Saga, *stuck: str) -> None:
    """Lead a chain to the refused compensation of `stuck`, its last landed step."""
    saga.admit()
    steps = [step.step_id for step in saga.plan.steps]
    saga.land(*[(step_id, number) for number, step_id in enumerate(steps[:-1], 1)])
    saga.refuse(steps[-1])
    saga.close(*[(step_id, "LANDED", number) for number, step_id in enumerate(steps[:-1], 1)])
    for step_id in stuck:
        command = only(saga.refuse_undo(step_id))
        assert isinstance(command, do.Park)
    saga.park(ParkReason.COMPENSATION_REFUSED, phase=IntentPhase.CLOSING, cause=Cause.REFUSED)


def test_a_refused_compensation_parks_that_step_alone_and_names_it() -> None:
    saga = Saga(chain("a", "b", "c"))
    saga.admit()
    saga.land(("a", 1), ("b", 2))
    saga.refuse("c")
    saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))

    command = only(saga.refuse_undo("b"))

    assert isinstance(command, do.Park)
    assert command.reason is ParkReason.COMPENSATION_REFUSED
    assert [stuck["step_id"] for stuck in command.detail["steps"]] == ["b"]
    assert saga.step("a") is StepState.DONE


def test_an_independent_compensation_goes_on_when_another_is_refused() -> None:
    saga = Saga(plan(step("a"), step("b"), step("c", needs=["a", "b"])))
    saga.admit()
    saga.land(("a", 1), ("b", 2))
    saga.refuse("c")
    saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))

    assert saga.refuse_undo("a") == ()
    assert isinstance(only(saga.undo("b")), do.Park)


def test_a_retry_closes_again_and_compensates_what_the_list_says() -> None:
    saga = Saga(chain("a", "b", "c"))
    parked_on(saga, "b")

    commands = saga.resolve("retry", "b", phase=IntentPhase.CLOSING, cause=Cause.REFUSED)

    assert close_of(commands).cause is Cause.REFUSED
    assert compensated(saga.close(("a", "LANDED", 1), ("b", "LANDED", 2))) == ["b"]


def test_after_skip_and_done_the_steps_before_are_compensated() -> None:
    saga = Saga(chain("a", "b", "c"))
    parked_on(saga, "b")

    saga.resolve("skip", "b", phase=IntentPhase.CLOSING, cause=Cause.REFUSED)

    assert compensated(saga.close(("a", "LANDED", 1), ("b", "COMPENSATED", 2))) == ["a"]


def test_a_close_resolution_goes_back_and_a_forward_one_goes_on() -> None:
    back, forth = Saga(chain("a", "b")), Saga(chain("a", "b"))
    back.park(ParkReason.INTERRUPTED, epoch=2)
    forth.park(ParkReason.INTERRUPTED, epoch=2)

    closing = back.resolve("close", phase=IntentPhase.CLOSING, cause=Cause.INTERRUPTED, epoch=2)

    assert close_of(closing).cause is Cause.INTERRUPTED
    assert executed(forth.resolve("forward", epoch=2)) == ["a"]
    assert forth.state.epoch == 2


def test_forward_plans_a_refused_step_again() -> None:
    saga = Saga(chain("a", "b", pivots=["a"]))
    saga.admit()
    saga.land(("a", 1))
    saga.refuse("b")
    saga.park(ParkReason.STUCK_AFTER_PIVOT)

    assert executed(saga.resolve("forward")) == ["b"]


def test_forward_asks_again_what_nobody_decided() -> None:
    saga = Saga(chain("a", gated=["a"]))
    saga.park(ParkReason.INTERRUPTED)

    assert isinstance(only(saga.resolve("forward")), do.Ask)


def test_forward_overrules_an_earlier_cancel_and_a_new_one_counts() -> None:
    saga = Saga(chain("a", "b"))
    saga.take(CANCEL)
    saga.park(ParkReason.INTERRUPTED)

    assert executed(saga.resolve("forward")) == ["a"]
    saga.take(CANCEL)
    assert close_of(saga.land(("a", 1))).cause is Cause.CANCELLED


def test_a_resolution_that_was_refused_leaves_the_intent_at_rest() -> None:
    saga = Saga(chain("a"))
    saga.park(ParkReason.INTERRUPTED)
    said = Resolution(resolution_id="r1", verb="retry", operator="op")
    refused = ResolutionAnswer(accepted=False, standing=saga.standing(parked=ParkReason.INTERRUPTED))

    assert saga.take(on.Resolved(said, refused)) == ()
    assert saga.state.stage is Stage.PARKED


def test_a_repeated_resolution_does_not_act_twice() -> None:
    saga = Saga(chain("a", "b"))
    parked_on(saga, "a")

    commands = saga.resolve(
        "retry", "a", phase=IntentPhase.CLOSING, cause=Cause.REFUSED, parked=ParkReason.COMPENSATION_REFUSED
    )

    assert commands == ()
    assert saga.state.stage is Stage.PARKED


def test_a_resolution_whose_answer_was_lost_is_found_by_the_next_one() -> None:
    saga = Saga(chain("a"))
    saga.park(ParkReason.INTERRUPTED)
    said = Resolution(resolution_id="r2", verb="forward", operator="op")
    closing = saga.standing(phase=IntentPhase.CLOSING, cause=Cause.INTERRUPTED)

    commands = saga.take(on.Resolved(said, ResolutionAnswer(accepted=False, standing=closing)))

    assert close_of(commands).cause is Cause.INTERRUPTED


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
