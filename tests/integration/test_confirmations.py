"""Whole sagas that reserve and confirm, on the real Temporal server and the real PostgreSQL.

What the tables do is in test_reservations.py, processes that are really killed in tests/faults/test_confirmed.py.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.reserving import held
from tests.support.sagas import (
    Sagas,
    approval,
    cancellation,
    events,
    freeze_and_debit,
    outcome,
    request,
    resolution,
    serve,
    states,
)
from tests.support.samples import look, note

pytestmark = pytest.mark.filterwarnings("default:Cannot find activity to cancel")  # of the SDK, when one timed out
SWITCH: Final = (
    "insert into backstay.kill_switches (scope, subject, reason, set_by) values ('tool', 'hold_sample_note', '', 'x')"
)
Serve = Callable[..., AbstractAsyncContextManager[Sagas]]


@pytest.fixture
def serving(temporal_client: Client, database_url: str, task_queue: str) -> Serve:
    return partial(serve, temporal_client, database_url, task_queue)


@pytest.fixture
async def sagas(serving: Serve) -> AsyncGenerator[Sagas]:
    async with serving() as served:
        yield served


def reserve(step_id: str = "pay", amount_cents: int = 700, payee: str = "S00000002", **more: object) -> JsonObject:
    """A step that sets an amount aside for a payee."""
    arguments = {
        "account_id": "A00000001",
        "payee_account_id": payee,
        "amount_cents": amount_cents,
        "currency": "EUR",
        "reason_code": "BOOKING",
    }
    return {"step_id": step_id, "tool": "reserve_customer_payment", "arguments": arguments | more}


def notes(sagas: Sagas) -> dict[str, str]:
    """Notes that were written: confirmed, struck, or only reserved."""
    rows = sagas.rows("select text, struck, memo from samples.notes order by text")
    return {row["text"]: "struck" if row["struck"] else row["memo"] or "reserved" for row in rows}


def money(sagas: Sagas, account: str = "A00000001") -> tuple[int, int]:
    """Balance and held amount, in cents."""
    row = sagas.one("select balance_cents, held_cents from ledger.account_balances where account_id = %s", account)
    return row["balance_cents"], row["held_cents"]


def transient(count: int) -> list[SagaError]:
    return [SagaError(Reason.IN_PROGRESS, "come back") for _ in range(count)]


def order(envelope: Envelope, sagas: Sagas) -> list[str]:
    """Steps in landing order."""
    return list(sagas.effects(envelope))


# --- forward ---------------------------------------------------------------------------------------------------------


async def test_reservations_are_confirmed_when_all_else_has_landed_in_one_task(sagas: Sagas) -> None:
    envelope = await sagas.run(reserve("hotel"), reserve("train", 900), *freeze_and_debit(500))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert order(envelope, sagas)[4:] == ["hotel.confirm", "train.confirm"]
    assert set(states(envelope).values()) == {"DONE"}
    assert (money(sagas), money(sagas, "S00000002")[0]) == ((100_000_000 - 2_100, 0), 2_100)
    kinds = await events(sagas.handles[0])
    assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED) == 1


async def test_a_confirmation_is_told_with_its_own_key_and_transaction(sagas: Sagas) -> None:
    envelope = await sagas.run(held("a"))

    reserved, confirmed = (envelope.data or {})["steps"]
    assert confirmed["tool"] == "hold_sample_note@1.confirm"
    assert confirmed["step_key"] == reserved["step_key"].replace("/a/", "/a.confirm/")
    assert confirmed["transaction_id"] > reserved["transaction_id"]
    assert confirmed["output"] == {"note_number": reserved["output"]["note_number"]}


async def test_what_is_reserved_may_be_bound_and_is_bound_from(sagas: Sagas) -> None:
    envelope = await sagas.run(look("r"), held("a", text={"$from": "r.text"}), note("b", text={"$from": "a.text"}))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert order(envelope, sagas) == ["a", "b", "a.confirm"]


async def test_a_posted_again_reservation_joins_the_first(sagas: Sagas) -> None:
    body = request(held("a"))
    first = await sagas.result(await sagas.start(body))

    again = await sagas.result(await sagas.start(body))

    assert again.meta.duplicate
    assert outcome(again) == outcome(first) == ("COMMITTED", "none")
    assert notes(sagas) == {"a": "confirmed"}


# --- back ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusing", ["a", "b", "c"])
async def test_a_refusal_before_the_first_confirmation_cancels_every_reservation(sagas: Sagas, refusing: str) -> None:
    sagas.behaviour.refuse(refusing)

    envelope = await sagas.run(held("a"), held("b"), note("c"))

    assert outcome(envelope) == ("NOT_APPLIED" if refusing == "a" else "COMPENSATED", "refused")
    assert set(notes(sagas).values()) <= {"struck"}
    assert [step for step in sagas.effects(envelope) if step.endswith(".confirm")] == []


async def test_a_cancel_while_the_last_reservation_is_made_cancels_all(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("b", "after")
    handle = await sagas.start(request(held("a"), held("b")))
    await gate.arrived()
    await handle.signal("cancel", cancellation())
    gate.open()

    envelope = await sagas.result(handle)

    # The signal is delivered with the end of the task in which all of it ran, or before: the tables say who won.
    confirmed = "a.confirm" in sagas.effects(envelope)
    assert outcome(envelope) == (("COMMITTED", "none") if confirmed else ("COMPENSATED", "cancelled"))
    assert set(notes(sagas).values()) == ({"confirmed"} if confirmed else {"struck"})


async def test_a_cancel_that_comes_while_an_ordinary_activity_reserves_wins(sagas: Sagas) -> None:
    sagas.behaviour.fail("b", *transient(2))
    gate = sagas.behaviour.hold("b", "outside")
    handle = await sagas.start(request(held("a"), held("b")))
    await gate.arrived()

    answer = await sagas.update(handle, "cancel", cancellation())
    gate.open()
    envelope = await sagas.result(handle)

    assert answer.accepted
    assert outcome(envelope) == ("COMPENSATED", "cancelled")
    assert notes(sagas) == {"a": "struck", "b": "struck"}


async def test_a_cancel_while_the_first_confirmation_runs_loses_against_it(sagas: Sagas) -> None:
    sagas.behaviour.fail("a.confirm", *transient(2))
    gate = sagas.behaviour.hold("a.confirm", "outside")
    handle = await sagas.start(request(held("a"), held("b")))
    await gate.arrived()

    await sagas.update(handle, "cancel", cancellation())
    gate.open()
    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("COMMITTED", "none")
    assert notes(sagas) == {"a": "confirmed", "b": "confirmed"}


async def test_a_cancel_after_the_first_confirmation_is_too_late(sagas: Sagas) -> None:
    sagas.behaviour.fail("b.confirm", *transient(2))
    gate = sagas.behaviour.hold("b.confirm", "outside")
    handle = await sagas.start(request(held("a"), held("b")))
    await gate.arrived()

    answer = await sagas.update(handle, "cancel", cancellation())
    gate.open()
    envelope = await sagas.result(handle)

    assert not answer.accepted
    assert outcome(envelope) == ("COMMITTED", "none")


async def test_a_first_confirmation_that_fails_for_good_cancels_what_was_reserved(sagas: Sagas) -> None:
    sagas.behaviour.fail("a.confirm", *transient(4))  # two local attempts, two ordinary ones

    envelope = await sagas.run(held("a"), held("b"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert notes(sagas) == {"a": "struck", "b": "struck"}
    assert sagas.behaviour.calls["b.confirm"] == 0


async def test_a_reservation_that_expired_is_not_confirmed_and_its_intent_is_undone(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("n", "before")
    handle = await sagas.start(request(reserve(), note("n")))
    await gate.arrived()
    sagas.rows("update ledger.holds set expires_at = now() - interval '1 second'")
    gate.open()

    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert envelope.error is not None
    assert (envelope.error.code, envelope.error.details["state"]) == (Reason.WRONG_STATE, "EXPIRED")
    assert sagas.one("select state from ledger.holds")["state"] == "EXPIRED"
    assert money(sagas) == (100_000_000, 0)


async def test_a_denied_reservation_holds_nothing(sagas: Sagas) -> None:
    handle = await sagas.start(request(reserve(payee="A00000002")))  # another customer's: a person is asked
    card = await sagas.waiting(handle)

    await sagas.update(handle, "decide", approval(card, "deny"))

    assert outcome(await sagas.result(handle)) == ("NOT_APPLIED", "denied")
    assert sagas.rows("select * from ledger.holds") == []


async def test_an_approved_reservation_is_confirmed_without_another_question(sagas: Sagas) -> None:
    handle = await sagas.start(request(reserve(payee="A00000002")))
    card = await sagas.waiting(handle)

    await sagas.update(handle, "decide", approval(card))

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert money(sagas, "A00000002") == (700, 0)


# --- past the point of no return -------------------------------------------------------------------------------------


async def test_a_later_confirmation_is_tried_as_long_as_the_intent_may_take(sagas: Sagas) -> None:
    sagas.behaviour.fail("b.confirm", *transient(5))  # more than the tool's attempts

    envelope = await sagas.run(held("a"), held("b"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.behaviour.calls["b.confirm"] == 6
    assert notes(sagas) == {"a": "confirmed", "b": "confirmed"}


@pytest.mark.parametrize("verb", ["retry", "done", "skip"])
async def test_a_later_confirmation_that_is_refused_parks_until_an_operator_speaks(sagas: Sagas, verb: str) -> None:
    sagas.behaviour.refuse("b.confirm")
    handle = await sagas.start(request(held("a"), held("b"), held("c")))
    parked = await sagas.waiting(handle)
    row = sagas.intent(parked)
    sagas.behaviour.allow("b.confirm")

    answer = await sagas.update(handle, "resolve", resolution(verb, "b.confirm"))
    envelope = await sagas.result(handle)

    assert (row["parked_reason"], row["phase"]) == ("STUCK_AFTER_PIVOT", "ADMITTED")
    assert answer.accepted, answer.message
    assert outcome(envelope) == ("COMMITTED", "none")
    assert notes(sagas) == {"a": "confirmed", "b": "confirmed" if verb == "retry" else "reserved", "c": "confirmed"}
    residue = {step["step_id"]: step["residue"] for step in (envelope.data or {})["steps"]}["b.confirm"]
    assert residue == ("not confirmed: looked at it" if verb == "skip" else None)


@pytest.mark.parametrize("first", [True, False])
async def test_a_kill_switch_turns_back_before_the_first_confirmation_and_holds_up_a_later_one(
    sagas: Sagas,
    first: bool,  # noqa: FBT001
) -> None:
    gate = sagas.behaviour.hold("n" if first else "a.confirm", "after")
    handle = await sagas.start(request(held("a"), held("b"), note("n")))
    await gate.arrived()
    sagas.rows(SWITCH)
    gate.open()
    if not first:
        await sagas.waiting(handle, lambda told: states(told).get("b.confirm") in ("EXECUTING", "PLANNED"))
        sagas.rows("delete from backstay.kill_switches")

    envelope = await sagas.result(handle)

    expected = ("COMPENSATED", "refused") if first else ("COMMITTED", "none")
    assert outcome(envelope) == expected
    assert set(notes(sagas).values()) == ({"struck"} if first else {"confirmed", "reserved"})


# --- at the door -----------------------------------------------------------------------------------------------------


async def test_a_large_payment_that_cannot_be_undone_once_confirmed_needs_two_approvers(sagas: Sagas) -> None:
    envelope = await sagas.run(reserve(amount_cents=1_500_000))

    assert envelope.error is not None
    assert envelope.error.code is Reason.DUTY_NOT_AVAILABLE


async def test_a_confirmation_is_no_tool_that_anybody_may_call(sagas: Sagas) -> None:
    step: JsonObject = {"step_id": "x", "tool": "hold_sample_note@1.confirm", "arguments": {}}

    with pytest.raises(Exception, match="Workflow execution failed") as error:
        await sagas.run(step)

    assert "tool" in str(error.value.__cause__)
