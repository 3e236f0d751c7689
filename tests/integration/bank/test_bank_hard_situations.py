"""The hard situations in which the bank is the downstream, each by its number in the list of hard situations or faults.

Judged by the bank's own book: what the saga says is only believed where the book says the same.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.packs.bank import Terms
from contracts.envelope import Envelope
from tests.support.house import until
from tests.support.sagas import Handle, approval, cancellation, outcome, request, resolution
from tests.support.samples import note
from tests.support.trials import Trial, charge, payout, trial

pytestmark = pytest.mark.servers


async def sent(at: Trial, handle: Handle, step_id: str, state: str = "UNKNOWN") -> dict[str, Any]:
    """Come back when a step of the saga has been sent and its attempt is in a state."""
    rows = await until(
        lambda: at.sagas.rows(
            "select a.* from backstay.attempts a join backstay.intents using (intent_key)"
            " where workflow_id = %s and step_id = %s and direction = 'execute' and a.state = %s",
            handle.id,
            step_id,
            state,
        )
    )
    return rows[0]


async def next_attempt(handle: Handle) -> timedelta:
    """How long after its last attempt the saga's one activity is tried again."""
    async with asyncio.timeout(20):
        while True:
            (pending,) = (await handle.describe()).raw_description.pending_activities
            if pending.HasField("last_failure"):
                return pending.next_attempt_schedule_time.ToDatetime() - pending.last_attempt_complete_time.ToDatetime()
            await asyncio.sleep(0.02)


async def cancelled(at: Trial, handle: Handle) -> Envelope:
    """Cancel a saga and take its end."""
    answer = await at.sagas.update(handle, "cancel", cancellation())
    assert answer.accepted, answer.message
    return await at.sagas.result(handle)


# 1, F30, F31, F32: timed out, outcome unknown


@pytest.mark.situation(1, "F30")
async def test_1_a_timed_out_charge_is_looked_up_and_goes_on_when_it_landed(at: Trial) -> None:
    at.bank.switch("slow", milliseconds=1_100)

    ended = await at.sagas.run(charge(), note("after_timeout"))

    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("CHARGE", 500)]
    at.agree(ended)


@pytest.mark.situation(1, "F32")
@pytest.mark.slow
async def test_1_a_charge_that_stays_unknown_is_parked_and_never_given_back_by_guess(at: Trial) -> None:
    at.bank.switch("drop_reply", on=["charges"])
    at.bank.switch("lookup_down", times=None)
    at.bank.switch("drop_request", times=None, on=["cancel"])
    handle = await at.sagas.start(request(charge()))
    await sent(at, handle, "charge")
    at.bank.switch("drop_request", times=None, on=["charges", "cancel"])

    parked = await at.sagas.waiting(handle)

    assert at.sagas.intent(parked)["parked_reason"] == "OUTCOME_UNKNOWN"
    assert at.booked(parked) == [("CHARGE", 500)]

    at.bank.switch("lookup_down", times=0)
    at.bank.switch("drop_request", times=0)
    answer = await at.sagas.update(handle, "resolve", resolution("retry", "charge"))
    assert answer.accepted, answer.message
    ended = await at.sagas.result(handle)
    assert outcome(ended)[0] == "COMPENSATED"
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


@pytest.mark.situation(1, "F32")
@pytest.mark.slow
async def test_1_a_charge_that_landed_cannot_be_skipped_and_is_given_back(at: Trial) -> None:
    at.bank.switch("drop_reply", times=None, on=["charges"])
    at.bank.switch("lookup_down", times=None)
    at.bank.switch("drop_request", times=None, on=["cancel"])
    handle = await at.sagas.start(request(charge()))
    await at.sagas.waiting(handle)
    at.bank.switch("lookup_down", times=0)

    skipped = await at.sagas.update(handle, "resolve", resolution("skip", "charge", resolution_id="r1"))
    at.bank.switch("drop_request", times=0)
    at.bank.switch("drop_reply", times=0)
    await at.sagas.update(handle, "resolve", resolution("retry", "charge", resolution_id="r2"))

    ended = await at.sagas.result(handle)
    assert not skipped.accepted
    assert "it has landed as #" in skipped.message
    assert outcome(ended)[0] == "COMPENSATED"
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


@pytest.mark.situation(1, 2, "F40", "F41")
async def test_1_an_unknown_charge_is_cancelled_by_key_and_lands_never_when_its_saga_closes(at: Trial) -> None:
    at.bank.switch("arrives_late", times=None, milliseconds=3_000, on=["charges"])
    handle = await at.sagas.start(request(charge()))
    await sent(at, handle, "charge")

    ended = await cancelled(at, handle)
    at.bank.switch("arrives_late", times=0)
    await at.bank.outlast(3_000)

    assert outcome(ended) == ("NOT_APPLIED", "cancelled")
    assert at.booked(ended) == []
    assert at.sagas.effects(ended) == {"charge": "TOMBSTONE"}
    at.agree(ended)


@pytest.mark.situation(1, "F30")
async def test_1_an_unknown_charge_that_had_landed_is_given_back_when_its_saga_closes(at: Trial) -> None:
    at.bank.switch("drop_reply", on=["charges"])
    at.bank.switch("lookup_down", times=None)
    handle = await at.sagas.start(request(charge(), note("never_reached")))
    await sent(at, handle, "charge")
    at.bank.switch("drop_request", times=None, on=["charges"])

    ended = await cancelled(at, handle)

    assert outcome(ended) == ("COMPENSATED", "cancelled")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


@pytest.mark.situation(1)
@pytest.mark.slow
async def test_1_a_key_past_its_lifetime_is_never_sent_again(
    temporal_client: Client, database_url: str, tmp_path: Path
) -> None:
    lifetime_seconds = 12
    terms = Terms(timeout_seconds=1.0, in_flight_seconds=1, key_lifetime_seconds=lifetime_seconds, patience_seconds=2)
    async with trial(temporal_client, database_url, tmp_path, terms=terms, key_lifetime_seconds=lifetime_seconds) as at:
        at.bank.switch("drop_reply", times=None, on=["payouts"])
        at.bank.switch("lookup_down", times=None)
        at.bank.switch("drop_request", times=None, on=["cancel"])
        handle = await at.sagas.start(request(payout()))
        await at.sagas.waiting(handle)
        await until(lambda: at.sagas.rows("select 1 from backstay.attempts where key_valid_until < now()"))
        at.bank.advance(lifetime_seconds)
        at.bank.switch("drop_reply", times=0)  # whoever sent it now would pay twice, and be answered

        await at.sagas.update(handle, "resolve", resolution("retry", "pay", resolution_id="r1"))
        parked = await at.sagas.waiting(handle)
        unsure = at.booked(parked)
        at.bank.switch("lookup_down", times=0)
        at.bank.switch("drop_request", times=0)
        await at.sagas.update(handle, "resolve", resolution("retry", "pay", resolution_id="r2"))
        ended = await at.sagas.result(handle)

        assert unsure == [("PAYOUT", 500)]
        assert outcome(ended) == ("COMMITTED", "none")
        assert at.booked(ended) == [("PAYOUT", 500)]
        at.agree(ended)


# 3, F40: the step arrives after its compensation


@pytest.mark.situation(3, "F40")
async def test_3_a_charge_that_arrives_after_its_cancellation_moves_nothing(at: Trial) -> None:
    at.bank.switch("lands_late", milliseconds=3_000, on=["charges"])
    handle = await at.sagas.start(request(charge()))
    await sent(at, handle, "charge")

    ended = await cancelled(at, handle)
    at.bank.advance(10)

    assert outcome(ended) == ("NOT_APPLIED", "cancelled")
    assert at.booked(ended) == []
    at.agree(ended)


# 5, F35: same key, other arguments


@pytest.mark.situation(5, "F35")
async def test_5_a_key_that_somebody_used_for_another_order_parks_and_touches_nothing(at: Trial) -> None:
    at.bank.switch("unavailable", times=None, retry_after="0", on=["charges"])
    handle = await at.sagas.start(request(charge()))
    row = await until(
        lambda: at.sagas.rows(
            "select remote_key from backstay.attempts join backstay.intents using (intent_key) where workflow_id = %s",
            handle.id,
        )
    )
    foreign = {"account_id": "B00000001", "payee_id": "P00000001", "amount_cents": 9, "currency": "EUR"}
    at.bank.order("payouts", row[0]["remote_key"], foreign)
    at.bank.switch("unavailable", times=0)

    parked = await at.sagas.waiting(handle)

    assert at.sagas.intent(parked)["parked_reason"] == "OUTCOME_UNKNOWN"
    assert at.booked(parked) == [("PAYOUT", 9)]
    assert at.sagas.effects(parked) == {}


# 6, 19: the bank dies with the order in its hand; its reply is lost after its commit


@pytest.mark.situation(6, 19, "F30", "F31")
@pytest.mark.parametrize("switch", ["slow", "lands_late", "drop_reply"])
async def test_6_a_bank_killed_with_the_order_in_hand_has_it_once(at: Trial, switch: str) -> None:
    at.bank.switch(switch, milliseconds=800, on=["payouts"])
    handle = await at.sagas.start(request(payout()))
    await until(lambda: not at.bank.switches())

    at.bank.kill()
    at.bank.start_again()

    ended = await at.sagas.result(handle)
    await at.bank.outlast(800)
    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]
    at.agree(ended)


@pytest.mark.situation(6, "F31")
async def test_6_a_bank_that_is_away_is_waited_for_and_nothing_counts_as_sent(at: Trial) -> None:
    at.bank.kill()
    handle = await at.sagas.start(request(payout()))
    await sent(at, handle, "pay", "NOT_LANDED")

    at.bank.start_again()

    ended = await at.sagas.result(handle)
    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]
    at.agree(ended)


# 8, 9: cancel while the bank works


@pytest.mark.situation(8)
async def test_8_a_cancel_during_a_charge_waits_for_it_and_gives_it_back(at: Trial) -> None:
    at.bank.switch("slow", milliseconds=500, on=["charges"])
    handle = await at.sagas.start(request(charge(), note("after_cancel")))
    await sent(at, handle, "charge", "SENT")

    ended = await cancelled(at, handle)

    assert outcome(ended) == ("COMPENSATED", "cancelled")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    assert at.sagas.behaviour.calls["after_cancel"] == 0
    at.agree(ended)


@pytest.mark.situation(9)
async def test_9_a_cancel_during_a_refund_changes_nothing_and_it_is_given_back_once(at: Trial) -> None:
    at.bank.switch("slow", milliseconds=600, on=["refunds"])
    at.sagas.behaviour.refuse("refused_nine")
    handle = await at.sagas.start(request(charge(), note("refused_nine")))
    await until(lambda: "slow" not in at.bank.switches())

    await handle.cancel()
    ended = await at.sagas.result(handle)

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [("CHARGE", 500), ("REFUND", 500)]
    at.agree(ended)


# 10: three of five done


@pytest.mark.situation(10, "F36")
async def test_10_of_several_charges_exactly_those_that_landed_are_given_back_last_first(at: Trial) -> None:
    charges = [charge(f"c{number}", 100 + number) for number in range(3)]

    ended = await at.sagas.run(*charges, charge("c3", 103, card_id="K90000001"), charge("c4", 104))

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert at.booked(ended) == [
        *(("CHARGE", 100), ("CHARGE", 101), ("CHARGE", 102)),
        *(("REFUND", 102), ("REFUND", 101), ("REFUND", 100)),
    ]
    at.agree(ended)


# 11: after the pivot only forward


@pytest.mark.situation(11)
async def test_11_an_unknown_payout_that_landed_is_never_followed_by_a_refund(at: Trial) -> None:
    at.bank.switch("drop_reply", on=["payouts"])
    at.bank.switch("lookup_down", times=3)
    handle = await at.sagas.start(request(charge(), payout()))
    await sent(at, handle, "pay")

    await handle.cancel()
    ended = await at.sagas.result(handle)

    assert outcome(ended)[0] == "COMMITTED"
    assert at.booked(ended) == [("CHARGE", 500), ("PAYOUT", 500)]
    at.agree(ended)


# 12, F42: the world moved before the compensation


@pytest.mark.situation(12, "F42")
@pytest.mark.parametrize("given_cents", [200, 500])
async def test_12_what_somebody_gave_back_before_is_not_given_back_again(at: Trial, given_cents: int) -> None:
    step = f"refused_twelve_{given_cents}"
    gate = at.sagas.behaviour.hold(step)
    at.sagas.behaviour.refuse(step)
    handle = await at.sagas.start(request(charge(), note(step)))
    await gate.arrived()
    number = max(entry["number"] for entry in at.bank.entries() if entry["event"] == "LANDED")
    refund = {"charge_id": f"BK{number:010d}", "amount_cents": given_cents, "currency": "EUR"}
    at.bank.order("refunds", f"a-person-{given_cents}", refund)

    gate.open()
    ended = await at.sagas.result(handle)

    assert outcome(ended) == ("COMPENSATED", "refused")
    assert sum(at.bank.moved("REFUND", f"BK{number:010d}")) == 500
    at.agree(ended)


# F33, F36: what the bank says of itself


@pytest.mark.situation("F33")
@pytest.mark.parametrize("said", ["-3", "soon", "", "Thu, 01 Jan 1970 00:00:00 GMT"])
async def test_f33_a_senseless_retry_after_is_left_aside_and_the_same_key_sent_again(at: Trial, said: str) -> None:
    at.bank.switch("too_many", times=1, retry_after=said)

    ended = await at.sagas.run(payout())

    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]
    at.agree(ended)


@pytest.mark.situation("F33")
@pytest.mark.parametrize("said", ["1000000000", "Fri, 31 Dec 2055 23:59:59 GMT"])
async def test_f33_a_retry_after_of_thirty_years_is_five_minutes(at: Trial, said: str) -> None:
    at.bank.switch("too_many", times=1, retry_after=said)
    handle = await at.sagas.start(request(payout()))
    row = await sent(at, handle, "pay", "NOT_LANDED")

    waits = await next_attempt(handle)

    assert waits.total_seconds() == pytest.approx(300, abs=5)
    assert [entry for entry in at.bank.entries() if entry["key"] == row["remote_key"]] == []


# Authority: whose cards, accounts and payees


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (charge(card_id="K00000002"), "NOT_OWNER"),
        (charge(card_id="K00000009"), "OBJECT_NOT_FOUND"),
        (charge(card_id="K00000003"), "WRONG_STATE"),
        (payout(bank_account_id="B00000003"), "NOT_OWNER"),
        (payout(payee_id="P00000009"), "OBJECT_NOT_FOUND"),
    ],
)
async def test_what_is_not_the_principals_is_refused_before_anything_is_sent(
    at: Trial, step: dict[str, Any], reason: str
) -> None:
    before = at.bank.entries()

    ended = await at.sagas.run(step)

    assert ended.error is not None
    assert ended.error.code == reason
    assert at.bank.entries() == before


async def test_a_payout_of_the_tenants_own_money_asks_a_person_first(at: Trial) -> None:
    handle = await at.sagas.start(request(payout(bank_account_id="B00000002")))
    card = await at.sagas.waiting(handle)
    assert at.booked(card) == []

    await at.sagas.update(handle, "decide", approval(card))

    ended = await at.sagas.result(handle)
    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("PAYOUT", 500)]


async def test_a_charge_is_refunded_by_a_later_intent_once_a_person_agreed(at: Trial) -> None:
    charged = await at.sagas.run(charge())
    (step,) = (charged.data or {})["steps"]
    refund = {
        "step_id": "refund",
        "tool": "refund_bank_charge",
        "arguments": {
            "charge_id": step["output"]["charge_id"],
            "amount_cents": 200,
            "currency": "EUR",
            "reason_code": "GOODS_RETURNED",
        },
    }
    handle = await at.sagas.start(request(refund))
    await at.sagas.update(handle, "decide", approval(await at.sagas.waiting(handle)))

    ended = await at.sagas.result(handle)

    assert outcome(ended) == ("COMMITTED", "none")
    assert at.booked(ended) == [("REFUND", 200)]


# A broken bank must not cause a refund storm


async def test_compensations_of_all_intents_together_keep_to_the_banks_rate(
    temporal_client: Client, database_url: str, tmp_path: Path
) -> None:
    terms = Terms(timeout_seconds=1.0, in_flight_seconds=1, key_lifetime_seconds=3_600, compensations_per_minute=2)
    async with trial(temporal_client, database_url, tmp_path, terms=terms) as at:
        steps = [f"storm_{number}" for number in range(6)]
        for step in steps:
            at.sagas.behaviour.refuse(step)
        handles = [await at.sagas.start(request(charge(), note(step))) for step in steps]

        async with asyncio.timeout(20):
            while sum([await waits_for_rate(handle) for handle in handles]) + len(at.bank.moved("REFUND")) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert len(at.bank.moved("CHARGE")) == 6
        assert len(at.bank.moved("REFUND")) in {2, 4}  # four when a new minute has begun meanwhile


async def waits_for_rate(handle: Handle) -> bool:
    """True once the saga's compensation was held back for the sake of the bank."""
    failed = [event.activity_task_failed_event_attributes for event in (await handle.fetch_history()).events]
    return any("compensations a minute" in attributes.failure.message for attributes in failed)
