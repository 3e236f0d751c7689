"""Reservations at the tables: confirm, cancel and expiry have one winner; nothing is confirmed early, late or short.

The engine's activities are called as a saga would call them, on a real PostgreSQL; whole sagas are in
test_confirmations.py.
"""

import asyncio
from collections import Counter
from datetime import datetime
from typing import Any, Final

import psycopg
import pytest

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.base import JsonObject
from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import IntentPhase, ParkReason, StepResult
from tests.support.desk import Desk, Desked, refused, same_bytes
from tests.support.ledger import invariants
from tests.support.reserving import held
from tests.support.samples import note

ROUNDS: Final = 60
PAYER: Final = "A00000001"
SHOP: Final = "S00000002"
FRIEND: Final = "A00000003"
OPENED_CENTS: Final = 100_000_000


def reserve(step_id: str = "pay", amount_cents: int = 700, payee: str = SHOP, **more: object) -> JsonObject:
    """A step that sets an amount aside for a payee."""
    arguments = {
        "account_id": PAYER,
        "payee_account_id": payee,
        "amount_cents": amount_cents,
        "currency": "EUR",
        "reason_code": "BOOKING",
        **more,
    }
    return {"step_id": step_id, "tool": "reserve_customer_payment", "arguments": arguments}


def filled(intent: Desked, reserved: StepResult) -> JsonObject:
    """The arguments of a confirmation, its bindings filled in."""
    return {"step": intent.plan.by_id[reserved.step_id].arguments, "reservation": reserved.output}


async def confirm(intent: Desked, reserved: StepResult) -> StepResult:
    """Confirm what a step reserved."""
    return await intent.execute(f"{reserved.step_id}.confirm", **filled(intent, reserved))


def money(desk: Desk, account: str = PAYER) -> tuple[int, int]:
    """Balance and held amount, in cents."""
    row = desk.one("select balance_cents, held_cents from ledger.account_balances where account_id = %s", account)
    return row["balance_cents"], row["held_cents"]


def broken(desk: Desk) -> dict[str, list[dict[str, Any]]]:
    """What breaks an invariant."""
    found = {name: desk.rows(query.replace("%", "%%")) for name, query in invariants()}
    return {name: rows for name, rows in found.items() if rows}


def hold_state(desk: Desk, reserved: StepResult) -> str:
    """State of the hold that keeps a reservation."""
    assert reserved.output is not None
    state: str = desk.one("select state from ledger.holds where hold_id = %s", reserved.output["reservation_id"])[
        "state"
    ]
    return state


def expire(desk: Desk, reserved: StepResult, milliseconds: int = -1) -> None:
    """Let a reservation's time be over at a moment of the database's clock."""
    assert reserved.output is not None
    desk.rows(
        "update ledger.holds set expires_at = clock_timestamp() + make_interval(secs => %s) where hold_id = %s",
        milliseconds / 1000,
        reserved.output["reservation_id"],
    )


async def sweep(desk: Desk) -> int:
    """Free what is overdue."""

    async def work(transaction: Transaction) -> int:
        return await expire_holds(transaction, 10)

    return await desk.database.run(work)


async def undo(intent: Desked) -> None:
    """Close and compensate, as a cancelled saga does."""
    closed = await intent.close(Cause.CANCELLED)
    if closed.standing.phase is IntentPhase.CLOSING:
        await intent.compensate("pay")


# --- confirm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payee", [SHOP, FRIEND])
async def test_a_confirmed_reservation_has_moved_the_whole_amount_to_its_payee(desk: Desk, payee: str) -> None:
    before = money(desk, payee)[0]
    intent = await desk.intent(reserve(payee=payee))

    reserved = await intent.execute("pay")
    assert money(desk) == (OPENED_CENTS, 700)
    await confirm(intent, reserved)
    standing = await intent.settle()

    assert standing.phase is IntentPhase.COMMITTED
    assert (money(desk), money(desk, payee)[0]) == ((OPENED_CENTS - 700, 0), before + 700)
    assert intent.effects() == {"pay/execute": "LANDED", "pay.confirm/execute": "LANDED"}


async def test_a_repeated_confirmation_gets_the_stored_answer_and_moves_nothing(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")

    first = await confirm(intent, reserved)
    again = await confirm(intent, reserved)

    assert same_bytes(first, again)
    assert money(desk) == (OPENED_CENTS - 700, 0)


async def test_nothing_is_confirmed_before_all_else_has_landed_whatever_the_saga_believes(desk: Desk) -> None:
    intent = await desk.intent(reserve(), note("other"))
    reserved = await intent.execute("pay")

    assert await refused(confirm(intent, reserved)) is Reason.MISMATCH
    await intent.execute("other")
    await confirm(intent, reserved)

    assert money(desk) == (OPENED_CENTS - 700, 0)


async def test_a_confirmation_leaves_no_words_of_the_customer_in_the_audit_log(desk: Desk) -> None:
    intent = await desk.intent(reserve(memo="between us"))
    reserved = await intent.execute("pay")
    await confirm(intent, reserved)

    row = desk.one("select string_agg(concat(arguments, result), '') as told from backstay.audit_log")

    assert "between us" not in row["told"]


async def test_what_is_reserved_for_a_payee_is_captured_by_nobody_else(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")
    assert reserved.output is not None
    money_of = {"amount_cents": 700, "currency": "EUR", "reason_code": "PURCHASE"}
    taking: JsonObject = {
        "step_id": "take",
        "tool": "debit_frozen_funds",
        "arguments": {"hold_id": reserved.output["reservation_id"], "credit_account_id": "S00000001", **money_of},
    }

    other = await desk.intent(taking)

    assert other.standing.phase is IntentPhase.NOT_APPLIED
    assert other.standing.error is not None
    assert other.standing.error.code is Reason.WRONG_STATE
    assert "is RESERVED" in other.standing.error.message


# --- expiry ----------------------------------------------------------------------------------------------------------


async def test_an_expired_reservation_cannot_be_confirmed_and_its_cancel_has_nothing_to_do(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")
    expire(desk, reserved)

    assert await refused(confirm(intent, reserved)) is Reason.WRONG_STATE
    assert await sweep(desk) == 1
    await undo(intent)
    standing = await intent.settle()

    assert standing.phase is IntentPhase.COMPENSATED
    assert (money(desk), hold_state(desk, reserved)) == ((OPENED_CENTS, 0), "EXPIRED")


async def test_a_reservation_that_lasts_less_than_its_intent_may_take_is_refused_before_anything_is_written(
    desk: Desk,
) -> None:
    intent = await desk.intent(reserve(hold_ttl_seconds=86_399))

    assert intent.standing.phase is IntentPhase.NOT_APPLIED
    assert intent.standing.error is not None
    assert intent.standing.error.code is Reason.ARGUMENTS_INVALID
    assert intent.standing.error.details["deadline_seconds"] == 86_400
    assert desk.count("ledger.holds") == 0


async def test_a_reservation_whose_length_is_known_late_is_refused_in_its_own_transaction(desk: Desk) -> None:
    intent = await desk.intent(reserve(hold_ttl_seconds=86_400))
    desk.rows("update backstay.intents set deadline_at = deadline_at + interval '1 minute'")

    with pytest.raises(SagaError) as error:
        await intent.execute("pay")

    assert error.value.reason is Reason.WINDOW_CLOSED
    deadline = desk.one("select deadline_at from backstay.intents")["deadline_at"]
    assert datetime.fromisoformat(error.value.info.details["deadline_at"]) == deadline
    assert money(desk) == (OPENED_CENTS, 0)
    assert desk.count("ledger.holds") == 0


# --- one winner ------------------------------------------------------------------------------------------------------


async def test_of_confirm_cancel_and_expiry_at_once_exactly_one_wins(desk: Desk) -> None:
    """Each round all three start together; what the tables say of hold, phase, effects and money is one story."""
    won: Counter[str] = Counter()
    paid = 0
    for number in range(ROUNDS):
        intent = await desk.intent(reserve())
        reserved = await intent.execute("pay")
        expire(desk, reserved, milliseconds=number % 12)
        starts: list[Any] = [confirm(intent, reserved), undo(intent), sweep(desk)]
        order = [starts[(number + place) % 3] for place in range(3)]
        for result in await asyncio.gather(*order, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, SagaError):
                raise result

        standing = await settled(desk, intent)
        confirmed = intent.effects().get("pay.confirm/execute") == "LANDED"
        story = (standing, hold_state(desk, reserved), intent.effects()["pay/execute"], confirmed)
        assert story in (
            ("COMMITTED", "CAPTURED", "LANDED", True),
            ("COMPENSATED", "RELEASED", "COMPENSATED", False),
            ("COMPENSATED", "EXPIRED", "COMPENSATED", False),
        ), f"round {number}"
        paid += 700 * confirmed
        won[story[1]] += 1
        assert money(desk) == (OPENED_CENTS - paid, 0), f"round {number}"

    assert sum(won.values()) == ROUNDS
    assert set(won) >= {"CAPTURED", "EXPIRED"}, won


async def settled(desk: Desk, intent: Desked) -> str:
    """Bring a round to its end as its saga would: what nobody had the time to undo is undone."""
    await sweep(desk)
    if intent.effects().get("pay.confirm/execute") != "LANDED":
        await undo(intent)
    return str((await intent.settle()).phase.value)


async def test_what_was_released_is_never_captured_whoever_writes(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")
    await undo(intent)

    with pytest.raises(psycopg.errors.CheckViolation):
        desk.rows("update ledger.holds set state = 'CAPTURED', captured_cents = 700")

    assert hold_state(desk, reserved) == "RELEASED"


async def test_a_close_that_comes_first_fences_every_confirmation(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")

    closed = await intent.close(Cause.CANCELLED)

    assert closed.standing.phase is IntentPhase.CLOSING
    assert await refused(confirm(intent, reserved)) is Reason.SUPERSEDED


async def test_a_confirmation_that_comes_first_shuts_the_way_back(desk: Desk) -> None:
    intent = await desk.intent(reserve(), reserve("more"))
    reserved, more = await intent.execute("pay"), await intent.execute("more")
    await confirm(intent, reserved)

    closed = await intent.close(Cause.CANCELLED)

    assert closed.past_pivot
    assert closed.standing.phase is IntentPhase.ADMITTED
    assert await refused(intent.compensate("pay")) is Reason.SUPERSEDED
    await confirm(intent, more)
    assert (await intent.settle()).phase is IntentPhase.COMMITTED


async def test_of_a_confirmation_and_a_close_at_once_one_wins_in_every_round(desk: Desk) -> None:
    won: Counter[str] = Counter()
    for number in range(ROUNDS):
        intent = await desk.intent(held("a"))
        reserved = await intent.execute("a")
        both = [confirm(intent, reserved), intent.close(Cause.CANCELLED)]
        results = await asyncio.gather(*(both if number % 2 else reversed(both)), return_exceptions=True)

        phase = intent.row()["phase"]
        confirmed = "a.confirm/execute" in intent.effects()
        assert (phase, confirmed) in (("ADMITTED", True), ("CLOSING", False)), f"round {number}: {results}"
        won[phase] += 1

    assert sum(won.values()) == ROUNDS
    assert len(won) == 2, won


# --- parked ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "residue"), [("done", None), ("skip", "not confirmed: looked at it")])
async def test_an_operators_word_stands_for_a_stuck_confirmation(desk: Desk, verb: str, residue: str | None) -> None:
    intent = await desk.intent(reserve(), reserve("more", 900))
    reserved, more = await intent.execute("pay"), await intent.execute("more")
    await confirm(intent, reserved)
    expire(desk, more)
    assert await refused(confirm(intent, more)) is Reason.WRONG_STATE
    await intent.park(ParkReason.STUCK_AFTER_PIVOT, "more.confirm")

    answer = await intent.resolve(verb, "more.confirm")
    stored = await confirm(intent, more)
    standing = await intent.settle()

    assert answer.accepted, answer.error
    assert answer.residue == residue
    assert stored.output == {}
    assert standing.phase is IntentPhase.COMMITTED
    assert standing.report is not None
    assert standing.report.steps[-1].residue == residue
    assert await sweep(desk) == 1
    assert money(desk) == (OPENED_CENTS - 700, 0)
    assert broken(desk) == {}


async def test_an_operators_word_changes_nothing_about_a_confirmation_that_landed_after_all(desk: Desk) -> None:
    intent = await desk.intent(reserve())
    reserved = await intent.execute("pay")
    landed = await confirm(intent, reserved)
    await intent.park(ParkReason.STUCK_AFTER_PIVOT, "pay.confirm")

    answer = await intent.resolve("skip", "pay.confirm")

    assert answer.accepted
    assert same_bytes(landed, await confirm(intent, reserved))
    assert intent.effects()["pay.confirm/execute"] == "LANDED"


async def test_a_step_that_is_no_confirmation_is_only_retried_past_the_pivot(desk: Desk) -> None:
    intent = await desk.intent(note("a", "seal"), note("b", "keep"))
    await intent.execute("a")
    await intent.park(ParkReason.STUCK_AFTER_PIVOT, "b")

    answer = await intent.resolve("done", "b")

    assert not answer.accepted
    assert answer.error is not None
    assert answer.error.details["offered"] == {"": ["forward"], "b": ["retry"]}
