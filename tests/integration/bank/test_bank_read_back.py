"""What the bank booked is read back: what others did is told, what is wrong calls a person, and nothing is guessed."""

import pytest

from tests.support.sagas import outcome, request, states
from tests.support.samples import note
from tests.support.trials import Trial, charge, payout

pytestmark = pytest.mark.servers


async def test_a_charge_that_stands_as_it_was_left_has_nothing_to_tell(at: Trial) -> None:
    ended = await at.sagas.run(charge())

    assert outcome(ended) == ("COMMITTED", "none")
    assert ended.meta.warnings == ()
    at.agree(ended)


@pytest.mark.parametrize("also", ["", "drop_reply", "garbage"])
async def test_what_somebody_else_gave_back_is_told_and_the_saga_goes_on(at: Trial, also: str) -> None:
    at.bank.switch("refunded_elsewhere")
    if also:
        at.bank.switch(also)

    ended = await at.sagas.run(charge(), note(f"then_{also}"))

    (row,) = [
        entry for entry in at.bank.entries() if entry["key"] == at.attempts(ended)["charge", "execute"]["remote_key"]
    ]
    said = f"1 of 500 cents of BK{row['number']:010d} were given back by somebody else"
    assert outcome(ended) == ("COMMITTED", "none")
    assert ended.meta.warnings == (f"charge: WORLD_MOVED: {said}",)
    assert at.booked(ended) == [("CHARGE", 500)]
    at.agree(ended)


async def test_what_somebody_else_gave_back_is_not_given_back_again(at: Trial) -> None:
    at.bank.switch("refunded_elsewhere")
    at.sagas.behaviour.refuse("no")

    ended = await at.sagas.run(charge(), note("no"))

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 499)]
    at.agree(ended)


@pytest.mark.parametrize("step", [charge(), payout()], ids=["charge", "payout"])
async def test_a_wrong_amount_under_its_own_key_calls_a_person_and_nothing_is_undone(
    at: Trial, step: dict[str, object]
) -> None:
    at.bank.switch("books_wrong")
    handle = await at.sagas.start(request(note(f"before_{step['step_id']}"), step))

    card = await at.sagas.waiting(handle)

    (row,) = at.attempts(card).values()
    assert (card.data or {})["waiting_for"] == "an operator (OUTCOME_UNKNOWN)"
    assert "differ" in row["known"]
    assert "amount_cents" in row["known"]
    assert states(card) == {f"before_{step['step_id']}": "DONE", step["step_id"]: "UNKNOWN"}
    assert [moved for _, moved in at.booked(card)] == [501]


async def test_what_cannot_be_read_back_has_landed_all_the_same(at: Trial) -> None:
    at.bank.switch("lookup_down")

    ended = await at.sagas.run(charge())

    (said,) = ended.meta.warnings
    assert outcome(ended) == ("COMMITTED", "none")
    assert said.startswith("charge: NOT_VERIFIED: ")
    at.agree(ended)
