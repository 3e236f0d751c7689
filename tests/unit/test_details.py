"""The card that Temporal's own UI shows: true, complete, and ready to be pasted."""

import json
from dataclasses import replace

import pytest

from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import Decision, IntentPhase, ParkReason, Resolution, Standing
from contracts.tool import Duty
from tests.support.plans import admitted, chain, landed, plan, step
from workflows import events as on
from workflows.details import markdown
from workflows.reducer import advance, begin
from workflows.state import State


def after(made: Plan, *events: on.Event) -> State:
    state, _ = begin()
    for event in (on.Admitted(admitted(made)), *events):
        state, _ = advance(state, event)
    return state


def blocks(card: str) -> list[str]:
    return [part.split("```")[0] for part in card.split("```json\n")[1:]]


def parked(reason: ParkReason, **changes: object) -> Standing:
    return admitted(chain("a", "b")).model_copy(update={"parked": reason, **changes})


def test_before_admission_the_card_says_what_is_awaited() -> None:
    state, _ = begin()

    assert "Waiting for admission" in markdown(state)


def test_each_step_has_a_line_with_its_state_level_duty_and_transaction() -> None:
    state = after(chain("a", "b"), on.StepLanded(landed("a", 7)))

    card = markdown(state).splitlines()

    assert "| a | work_a@1 | DONE | L0 | NONE | 7 |  |" in card
    assert "| b | work_b@1 | EXECUTING | L0 | NONE |  |  |" in card


def test_a_refused_step_shows_its_reason() -> None:
    state = after(chain("a"), on.StepRefused("a", SagaError(Reason.FUNDS_INSUFFICIENT, "no").info))

    assert "| a | work_a@1 | REFUSED | L0 | NONE |  | FUNDS_INSUFFICIENT |" in markdown(state)


def test_while_people_are_awaited_the_card_has_a_decision_to_paste_and_all_that_is_decided() -> None:
    made = plan(step("a", duty=Duty.ONE, arguments={"amount_cents": 5, "payee": "\u0430dmin"}), step("b"))

    decision, told = blocks(markdown(after(made)))

    assert Decision.model_validate_json(decision).plan_digest == made.digest
    assert json.loads(told) == {"tool": "work_a@1", "arguments": {"amount_cents": 5, "payee": "\u0430dmin"}}
    assert "\\u0430dmin" in told  # a look-alike letter is shown as what it is


@pytest.mark.parametrize(
    ("standing", "verb", "step_id"),
    [
        (parked(ParkReason.INTERRUPTED), "close", None),
        (parked(ParkReason.MISMATCH), "close", None),
        (parked(ParkReason.STUCK_AFTER_PIVOT, parked_detail={"steps": [{"step_id": "b"}]}), "forward", None),
        (
            parked(
                ParkReason.COMPENSATION_REFUSED,
                phase=IntentPhase.CLOSING,
                parked_detail={"steps": [{"step_id": "a"}]},
            ),
            "retry",
            "a",
        ),
    ],
    ids=lambda value: str(value) if not isinstance(value, Standing) else str(value.parked),
)
def test_a_parked_intent_shows_a_resolution_that_is_possible(
    standing: Standing, verb: str, step_id: str | None
) -> None:
    state, _ = advance(begin()[0], on.Admitted(standing))

    (block,) = blocks(markdown(state))

    resolution = Resolution.model_validate_json(block)
    assert (resolution.verb, resolution.step_id) == (verb, step_id)


def test_text_from_outside_cannot_break_the_table() -> None:
    state = after(chain("a"))
    state = state.with_step("a", residue="1 | 2\n| forged | `row` |")

    lines = markdown(state).splitlines()

    assert "| a | work_a@1 | EXECUTING | L0 | NONE |  | 1 \\| 2 \\| forged \\| 'row' \\| |" in lines


def test_the_card_of_a_finished_intent_names_its_outcome() -> None:
    state = after(chain("a"))
    done = admitted(chain("a")).model_copy(update={"phase": IntentPhase.NOT_APPLIED})
    state, _ = advance(replace(state), on.Admitted(done))

    assert markdown(state).startswith("### NOT_APPLIED (finished)")
