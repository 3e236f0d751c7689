"""The saga's rules about what people say, one claim each: decisions, and verbs about what is parked."""

from dataclasses import replace

import pytest

from contracts.envelope import Cause, StepState
from contracts.saga import (
    Ask,
    Closed,
    DecisionAnswer,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
)
from tests.support.memory import CANCEL, Saga, close_of, compensated, executed, only
from tests.support.plans import ask_of, chain, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.state import Stage

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
