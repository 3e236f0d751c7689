"""The same call in other words: a person says whether it is meant a second time."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.client import Client

from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.intent import Caller
from tests.support.sagas import (
    CALLER,
    LARGE_CENTS,
    Handle,
    Sagas,
    approval,
    freeze_and_debit,
    outcome,
    request,
    serve,
    states,
)
from tests.support.samples import look, note
from worker.answers import find


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


def said(*steps: JsonObject, reference: str | None = None, **more: Any) -> JsonObject:  # noqa: ANN401 - fields of the request
    """Ask in a conversation of its own, without a reference of the harness unless one is given."""
    return request(*steps, business_reference=reference, **more)


def gated(envelope: Envelope) -> set[str]:
    return {step_id for step_id, state in states(envelope).items() if state == "AWAITING_APPROVAL"}


async def committed(sagas: Sagas, body: JsonObject) -> Envelope:
    envelope = await sagas.result(await sagas.start(body))
    assert outcome(envelope) == ("COMMITTED", "none")
    return envelope


async def waiting(sagas: Sagas, body: JsonObject) -> tuple[Handle, Envelope]:
    handle = await sagas.start(body)
    return handle, await sagas.waiting(handle)


def reasons(sagas: Sagas) -> list[str]:
    return [row["reason"] for row in sagas.rows("select reason from backstay.approval_requests order by step_id")]


async def test_the_same_payment_from_another_conversation_waits_and_holds_nothing_meanwhile(sagas: Sagas) -> None:
    first = await committed(sagas, said(*freeze_and_debit()))
    before = sagas.one("select balance_cents, held_cents from ledger.accounts where account_id = 'A00000001'")

    handle, card = await waiting(sagas, said(*freeze_and_debit()))
    meanwhile = sagas.one("select balance_cents, held_cents from ledger.accounts where account_id = 'A00000001'")
    asked = reasons(sagas)
    told = (await find(sagas.engine.database, CALLER.tenant, str(card.meta.intent_id))).envelope()
    assert (await sagas.update(handle, "decide", approval(card))).accepted

    assert told.meta.warnings == tuple(
        f"{step_id}: POSSIBLE_DUPLICATE: {first.meta.intent_id} did the same" for step_id in ("freeze", "debit")
    )
    assert gated(card) == {"freeze", "debit"}
    assert meanwhile == before
    assert all(f"POSSIBLE_DUPLICATE: {first.meta.intent_id} did the same" in reason for reason in asked)
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_a_payment_with_another_memo_waits_like_the_same_one(sagas: Sagas) -> None:
    hold, debit = freeze_and_debit()
    arguments: JsonObject = hold["arguments"]
    first = await committed(sagas, said(hold | {"arguments": {**arguments, "memo": "Invoice 1"}}, debit))

    _, card = await waiting(sagas, said(hold | {"arguments": {**arguments, "memo": "Invoice 1."}}, debit))

    assert gated(card) == {"freeze", "debit"}
    assert f"POSSIBLE_DUPLICATE: {first.meta.intent_id} did the same" in reasons(sagas)[0]


async def test_step_names_and_what_stands_around_a_call_do_not_hide_it(sagas: Sagas) -> None:
    await committed(sagas, said(note("a", text="pay rent")))

    _, card = await waiting(sagas, said(note("other"), note("renamed", text="pay rent")))

    assert gated(card) == {"renamed"}


async def test_a_bound_argument_counts_as_the_call_that_it_comes_from(sagas: Sagas) -> None:
    freeze, debit = freeze_and_debit()
    await committed(sagas, said(freeze, debit))
    larger = {**freeze, "arguments": {**freeze["arguments"], "amount_cents": 600}}

    envelope = await committed(sagas, said(larger, debit))

    assert set(states(envelope).values()) == {"DONE"}


@pytest.mark.parametrize(
    ("steps", "more"),
    [
        ([note("a", text="other words")], {}),
        ([note("a", text="same", memo="with more")], {}),
        ([note("a", "keep", text="same")], {}),
        ([note("a", text="same")], {"reference": "order-2"}),
    ],
    ids=["other arguments", "another argument more", "another tool", "a reference of its own"],
)
async def test_what_differs_is_no_duplicate(sagas: Sagas, steps: list[JsonObject], more: dict[str, str]) -> None:
    await committed(sagas, said(note("a", text="same"), reference="order-1" if more else None))

    await committed(sagas, said(*steps, **more))


async def test_another_principals_call_is_no_duplicate(sagas: Sagas) -> None:
    await committed(sagas, said(note("a", text="same")))

    other = Caller(tenant="bank", principal="somebody-else", agent="agent")

    await committed(sagas, said(note("a", text="same"), caller=other))


async def test_two_equal_steps_of_one_intent_both_run(sagas: Sagas) -> None:
    await committed(sagas, said(note("one", text="same"), note("two", text="same")))

    assert sagas.one("select count(*) as n from samples.notes")["n"] == 2


async def test_reading_twice_is_no_duplicate(sagas: Sagas) -> None:
    await committed(sagas, said(look("a")))

    await committed(sagas, said(look("a")))


async def test_what_left_nothing_behind_does_not_count(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    refused = await sagas.result(await sagas.start(said(note("a", text="same"))))
    sagas.behaviour.allow("a")

    await committed(sagas, said(note("a", text="same")))

    assert outcome(refused) == ("NOT_APPLIED", "refused")


async def test_after_the_window_it_is_a_new_wish(sagas: Sagas) -> None:
    await committed(sagas, said(note("a", text="same")))
    sagas.rows("update backstay.intents set final_at = final_at - interval '25 hours'")

    await committed(sagas, said(note("a", text="same")))


async def test_one_that_is_still_under_way_counts(sagas: Sagas) -> None:
    await waiting(sagas, said(*freeze_and_debit(LARGE_CENTS)))

    _, card = await waiting(sagas, said(*freeze_and_debit(LARGE_CENTS)))

    assert gated(card) == {"freeze", "debit"}
    assert sum("POSSIBLE_DUPLICATE" in reason for reason in reasons(sagas)) == 2


async def test_of_many_that_come_at_once_one_runs_unasked(sagas: Sagas) -> None:
    handles = await asyncio.gather(*(sagas.start(said(note("a", text="same"))) for _ in range(8)))

    async def rests(handle: Handle) -> str:
        envelope = await sagas.waiting(
            handle, lambda seen: (seen.data or {})["outcome"] == "COMMITTED" or bool(gated(seen))
        )
        return str((envelope.data or {})["outcome"])

    outcomes = await asyncio.gather(*(rests(handle) for handle in handles))

    assert sorted(outcomes) == ["COMMITTED", *["PENDING"] * 7]
    assert sagas.one("select count(*) as n from samples.notes")["n"] == 1


async def test_an_occurrence_that_was_said_is_judged_as_an_occurrence(sagas: Sagas) -> None:
    session = f"s-{uuid.uuid4().hex}"
    await committed(sagas, said(note("a", text="same"), session=session))

    await committed(sagas, said(note("a", text="same"), session=session, intent={"occurrence": 2}))

    assert reasons(sagas) == []
