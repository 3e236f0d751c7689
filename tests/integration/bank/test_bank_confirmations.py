"""Reservations beside a payout that cannot be called back: both are final, or neither; the bank's own book says so."""

from typing import Any

import pytest

from tests.support.sagas import cancellation, outcome, request, resolution, states
from tests.support.trials import Trial, payout

pytestmark = pytest.mark.servers


def reserve(amount_cents: int, step_id: str = "fee") -> dict[str, Any]:
    """A step that sets an amount aside for the tenant."""
    return {
        "step_id": step_id,
        "tool": "reserve_customer_payment",
        "arguments": {
            "account_id": "A00000001",
            "payee_account_id": "S00000002",
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "PURCHASE",
        },
    }


def freeze_and_debit(amount_cents: int) -> list[dict[str, Any]]:
    """The reference chain."""
    given = {"amount_cents": amount_cents, "currency": "EUR", "reason_code": "PURCHASE"}
    return [
        {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": {"account_id": "A00000001", **given}},
        {
            "step_id": "debit",
            "tool": "debit_frozen_funds",
            "arguments": {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": "S00000002", **given},
        },
    ]


def money(at: Trial) -> tuple[int, int]:
    """Balance and held amount, in cents."""
    row = at.sagas.one("select balance_cents, held_cents from ledger.account_balances where account_id = 'A00000001'")
    return row["balance_cents"], row["held_cents"]


async def test_a_reservation_is_confirmed_after_the_payout_that_cannot_be_undone(at: Trial) -> None:
    balance, held = money(at)

    ended = await at.sagas.run(reserve(31), *freeze_and_debit(32), payout())

    assert outcome(ended) == ("COMMITTED", "none")
    assert list(at.sagas.effects(ended)) == ["fee", "freeze", "debit", "pay", "fee.confirm"]
    assert at.booked(ended) == [("PAYOUT", 500)]
    assert money(at) == (balance - 63, held)
    at.agree(ended)


async def test_a_payout_that_the_bank_declines_cancels_the_reservation(at: Trial) -> None:
    balance, held = money(at)

    ended = await at.sagas.run(reserve(33), *freeze_and_debit(34), payout(payee_id="P90000001"))

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == []
    assert money(at) == (balance, held)
    assert "fee.confirm" not in at.sagas.effects(ended)


async def test_a_payout_whose_answer_is_lost_is_looked_up_before_anything_is_confirmed(at: Trial) -> None:
    balance, held = money(at)
    at.bank.switch("drop_reply", on=["payouts"])

    ended = await at.sagas.run(reserve(35), payout())

    assert outcome(ended) == ("COMMITTED", "none")
    assert list(at.sagas.effects(ended)) == ["fee", "pay", "fee.confirm"]
    assert at.booked(ended) == [("PAYOUT", 500)]
    assert money(at) == (balance - 35, held)


async def test_a_cancel_while_the_payout_is_under_way_confirms_if_it_landed_and_cancels_if_not(at: Trial) -> None:
    balance, held = money(at)
    at.bank.switch("slow", milliseconds=600, on=["payouts"])
    handle = await at.sagas.start(request(reserve(36), payout()))
    await at.sagas.waiting(handle, lambda told: "EXECUTING" in str(told.data))

    await at.sagas.update(handle, "cancel", cancellation())
    ended = await at.sagas.result(handle)

    paid_out = at.booked(ended) == [("PAYOUT", 500)]
    assert outcome(ended) == (("COMMITTED", "none") if paid_out else ("COMPENSATED", "cancelled"))
    assert money(at) == (balance - 36 * paid_out, held)
    at.agree(ended)


async def test_past_the_payout_a_reservation_that_expired_is_left_to_an_operator_and_holds_up_no_other(
    at: Trial,
) -> None:
    balance, held = money(at)
    at.bank.switch("slow", milliseconds=600, on=["payouts"])
    handle = await at.sagas.start(request(reserve(37), reserve(38, "tip"), payout()))
    await at.sagas.waiting(handle, lambda told: states(told).get("pay") == "EXECUTING")
    at.sagas.rows(
        "update ledger.holds set expires_at = now() - interval '1 second' where state = 'OPEN' and amount_cents = 37"
    )

    parked = await at.sagas.waiting(handle)
    reason = at.sagas.intent(parked)["parked_reason"]
    refused = await at.sagas.update(handle, "resolve", resolution("close"))
    answer = await at.sagas.update(handle, "resolve", resolution("skip", "fee.confirm", resolution_id="r2"))
    ended = await at.sagas.result(handle)

    assert reason == "STUCK_AFTER_PIVOT"
    assert states(parked)["tip.confirm"] == "DONE"
    assert (refused.accepted, answer.accepted) == (False, True)
    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]
    assert money(at) == (balance - 38, held + 37)
