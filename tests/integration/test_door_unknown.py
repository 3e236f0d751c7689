"""What the door may not promise: outcomes that nobody told it, and runs that its own tables know nothing of."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.database import Database
from contracts.envelope import Envelope, Status
from contracts.intent import IntentRequest
from contracts.proposal import propose
from contracts.reasons import EffectOutcome, Reason
from tests.support.house import ANNA, GATED_CENTS, House, freeze_and_debit, session, until
from worker.door import Door


def outcome_of(envelope: Envelope) -> str | None:
    return (envelope.data or {}).get("outcome")


def assert_promises_nothing(envelope: Envelope, intent_id: str) -> None:
    """The answer names the intent, says that its outcome is unknown, and where it can be seen."""
    assert envelope.error is not None
    assert (envelope.status, envelope.exit_code) == (Status.PENDING, 3)
    assert (envelope.error.outcome, envelope.meta.intent_id) == (EffectOutcome.UNKNOWN, intent_id)
    assert f"`backstay intent show {intent_id}`" in envelope.error.suggestion


class LossyClient:
    """A client whose starts are taken and never acknowledged."""

    def __init__(self, client: Client, status: RPCStatusCode) -> None:
        self._client = client
        self._status = status

    async def start_workflow(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever a client takes
        await self._client.start_workflow(*arguments, **named)
        raise RPCError("no acknowledgement", self._status, b"")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the rest is the client's
        return getattr(self._client, name)


@pytest.mark.parametrize(
    "status",
    [
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.INTERNAL,
    ],
)
async def test_a_start_that_nobody_acknowledged_is_unknown_and_the_same_post_joins(
    home: House, status: RPCStatusCode
) -> None:
    lossy: Any = LossyClient(home.client, status)
    body = freeze_and_debit(session())

    async with Door.of(lossy, home.engine, home.settings) as door:
        lost = await door.post(body, ANNA)
    joined = await home.door.post(body, ANNA)

    assert joined.meta.intent_id is not None
    assert_promises_nothing(lost, joined.meta.intent_id)
    assert (outcome_of(joined), joined.meta.duplicate, home.effect_count(joined)) == ("COMMITTED", True, 2)


@pytest.mark.parametrize("key", [None, "order-4711"])
async def test_a_repeat_is_unknown_while_the_tables_cannot_be_read(home: House, key: str | None) -> None:
    body = freeze_and_debit(session())
    first = await home.door.post(body, ANNA)
    assert first.meta.intent_id is not None
    nowhere = Database("postgresql://127.0.0.1:1/nowhere")

    async with nowhere:
        again = await Door(home.client, nowhere, home.engine.registry, home.settings).post(
            body, ANNA, idempotency_key=key
        )

    assert_promises_nothing(again, first.meta.intent_id)
    assert again.error is not None
    assert (again.status_code, "Connection refused" in again.error.message) == (503, True)


@pytest.fixture
async def other_door(home: House, idle_home: House) -> AsyncGenerator[Door]:
    """A door to the same Temporal and workers, before another database."""
    async with Door(home.client, idle_home.engine.database, home.engine.registry, home.settings) as door:
        yield door


async def test_what_the_own_tables_do_not_know_is_never_committed(home: House, other_door: Door) -> None:
    answer = await other_door.post(freeze_and_debit(session()), ANNA)

    assert answer.error is not None
    assert answer.meta.intent_id is not None
    assert (outcome_of(answer), answer.error.code) == (None, Reason.MISMATCH)
    assert_promises_nothing(answer, answer.meta.intent_id)
    assert "DATABASE_URL" in answer.error.suggestion
    assert home.effect_count(answer) == 2


async def test_what_a_restored_database_forgot_is_neither_committed_nor_run_again(
    home: House, other_door: Door
) -> None:
    body = freeze_and_debit(session())
    first = await home.door.post(body, ANNA)

    again = await other_door.post(body, ANNA)

    assert again.error is not None
    assert (again.error.code, again.meta.intent_id) == (Reason.MISMATCH, first.meta.intent_id)
    assert home.effect_count(first) == 2


async def raw_start(home: House, body: bytes, workflow_id: str) -> Any:  # noqa: ANN401 - a generic of the SDK
    """Start a saga past the door, under an id of somebody's choice."""
    request = IntentRequest(caller=ANNA, intent=json.loads(body))
    return await home.client.start_workflow(
        "IntentWorkflow", request, id=workflow_id, task_queue=home.settings.task_queue, result_type=Envelope
    )


def intent_id_of(home: House, body: bytes) -> str:
    return propose(json.loads(body), ANNA, home.engine.registry).intent_id


async def test_an_intent_whose_workflow_id_another_one_took_is_carried_out_all_the_same(home: House) -> None:
    honest, other = freeze_and_debit(session()), freeze_and_debit(session(), amount_cents=700)
    occupied = await (await raw_start(home, other, intent_id_of(home, honest))).result()

    answer = await home.door.post(honest, ANNA)
    again = await home.door.post(honest, ANNA)

    assert occupied.meta.intent_id == intent_id_of(home, other)
    assert (outcome_of(answer), answer.meta.intent_id) == ("COMMITTED", intent_id_of(home, honest))
    assert (answer.meta.duplicate, home.effect_count(answer)) == (False, 2)
    assert (again.data, again.meta.duplicate) == (answer.data, True)


async def test_a_workflow_id_taken_by_a_mere_repeat_of_another_intent_is_free_again(home: House) -> None:
    honest, other = freeze_and_debit(session()), freeze_and_debit(session(), amount_cents=700)
    await home.door.post(other, ANNA)
    await (await raw_start(home, other, intent_id_of(home, honest))).result()

    answer = await home.door.post(honest, ANNA)

    assert (outcome_of(answer), answer.meta.intent_id) == ("COMMITTED", intent_id_of(home, honest))


async def test_a_workflow_id_that_another_intent_still_holds_is_refused_by_name(home: House) -> None:
    honest, other = freeze_and_debit(session()), freeze_and_debit(session(), amount_cents=GATED_CENTS)
    others_id = intent_id_of(home, other)
    raw = await raw_start(home, other, intent_id_of(home, honest))
    await until(lambda: home.rows("select 1 from backstay.intents where intent_id = %s", others_id))

    refused = await home.door.post(honest, ANNA, wait_seconds=5)
    await home.door.messages.cancel(ANNA.tenant, others_id, requested_by="carl")
    await raw.result()
    answer = await home.door.post(honest, ANNA)

    assert refused.error is not None
    assert (refused.status_code, refused.error.code) == (423, Reason.RESOURCE_LOCKED)
    assert (refused.error.outcome, others_id in refused.error.message) == (EffectOutcome.NOT_APPLIED, True)
    assert (outcome_of(answer), home.effect_count(answer)) == ("COMMITTED", 2)
