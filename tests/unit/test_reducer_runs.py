"""The saga's rules about runs, one claim each: a lost workflow task, a run that another one replaced."""

from dataclasses import replace

import pytest

from contracts.envelope import Cause, StepState
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import (
    Closed,
    EffectSeen,
    IntentPhase,
    ParkReason,
)
from tests.support.memory import CANCEL, Saga, compensated, executed, finish_of, only
from tests.support.plans import chain, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.state import Stage

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
