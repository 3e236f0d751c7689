"""Every way in which the bank can go wrong, in a saga on real servers: outcome, tables and the bank's book agree."""

import pytest

from tests.support.house import until
from tests.support.sagas import cancellation, outcome, request, states
from tests.support.samples import note
from tests.support.trials import Trial, charge, payout

pytestmark = pytest.mark.servers
SWITCHES = (
    "slow",
    "drop_reply",
    "drop_request",
    "lands_late",
    "arrives_late",
    "too_many",
    "unavailable",
    "conflict",
    "garbage",
    "wrong_amount",
)
_SENT = "select 1 from backstay.attempts join backstay.intents using (intent_key) where workflow_id = %s"
ON_ITS_WAY = ("slow", "lands_late", "arrives_late")
MILLISECONDS = 1_200


async def settled(at: Trial, switch: str) -> None:
    """Come back when nothing of a test is on its way any more."""
    if switch in ON_ITS_WAY:
        await at.bank.outlast(MILLISECONDS)


@pytest.mark.situation(
    19, "F30", "F31", "F33", "F34", claims=["drop_reply", "drop_request", "too_many", "unavailable", "conflict"]
)
@pytest.mark.parametrize("switch", SWITCHES)
async def test_a_payout_lands_once_whatever_goes_wrong_with_its_sending(at: Trial, switch: str) -> None:
    at.bank.switch(switch, milliseconds=MILLISECONDS, retry_after="1")

    ended = await at.sagas.run(payout())
    await settled(at, switch)

    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]
    assert at.attempts(ended)["pay", "execute"]["state"] == "LANDED"
    at.agree(ended)


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
async def test_a_charge_is_given_back_once_whatever_went_wrong_with_its_sending(at: Trial, switch: str) -> None:
    at.bank.switch(switch, milliseconds=MILLISECONDS, on=["charges"])
    at.sagas.behaviour.refuse(f"no_{switch}")

    ended = await at.sagas.run(charge(), note(f"no_{switch}"))
    await settled(at, switch)

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
async def test_a_refund_lands_once_whatever_goes_wrong_with_its_sending(at: Trial, switch: str) -> None:
    at.bank.switch(switch, milliseconds=MILLISECONDS, on=["refunds"])
    at.sagas.behaviour.refuse(f"back_{switch}")

    ended = await at.sagas.run(charge(), note(f"back_{switch}"))
    await settled(at, switch)

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
async def test_a_saga_that_closes_with_its_charge_in_doubt_leaves_nothing_behind(at: Trial, switch: str) -> None:
    at.bank.switch(switch, times=None, milliseconds=MILLISECONDS, on=["charges"])
    handle = await at.sagas.start(request(charge(), note(f"not_{switch}")))
    await until(lambda: at.sagas.rows(_SENT, handle.id))

    answer = await at.sagas.update(handle, "cancel", cancellation())
    at.bank.switch(switch, times=0)
    ended = await at.sagas.result(handle)
    await settled(at, switch)

    assert answer.accepted
    found = outcome(ended), at.booked(ended)
    assert found in [
        (("NOT_APPLIED", "cancelled"), []),
        (("COMPENSATED", "cancelled"), [("CHARGE", 500), ("REFUND", 500)]),
    ]
    at.agree(ended)


@pytest.mark.situation("F36")
async def test_a_declined_card_is_a_refusal_and_what_came_before_is_taken_back(at: Trial) -> None:
    ended = await at.sagas.run(note("before_decline"), charge(card_id="K90000001"))

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert states(ended) == {"before_decline": "COMPENSATED", "charge": "REFUSED"}
    assert at.booked(ended) == []
    at.agree(ended)


async def test_a_decline_whose_answer_is_lost_is_found_by_its_key_and_not_sent_again(at: Trial) -> None:
    at.bank.switch("drop_reply")

    ended = await at.sagas.run(charge(card_id="K90000001"))

    assert outcome(ended) == ("NOT_APPLIED", "refused")
    assert states(ended) == {"charge": "REFUSED"}
    assert ended.error is not None
    assert ended.error.code == "WRONG_STATE"
    attempt = at.attempts(ended)["charge", "execute"]
    assert (attempt["state"], attempt["sends"]) == ("REFUSED", 1)
    assert at.booked(ended) == []


@pytest.mark.situation("F36")
async def test_a_declined_payout_gives_the_charge_before_it_back(at: Trial) -> None:
    ended = await at.sagas.run(charge(), payout(payee_id="P90000001"))

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


async def test_two_equal_payments_in_one_intent_both_land(at: Trial) -> None:
    ended = await at.sagas.run(charge("first"), charge("second"))

    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("CHARGE", 500), ("CHARGE", 500)]
    at.agree(ended)
