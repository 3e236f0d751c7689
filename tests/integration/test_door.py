"""The front door on real servers: what it accepts, what it refuses, and what it does while something is away."""

import asyncio
import time
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from activities.database import Database
from contracts.envelope import Envelope, Status
from contracts.proof import Proof
from contracts.reasons import Reason, Retryable
from tests.support.house import (
    ANNA,
    ANNAS,
    BEN,
    CASH,
    GATED_CENTS,
    OTHER_BANK,
    POOR,
    House,
    freeze_and_debit,
    session,
    until,
)
from worker import places
from worker.door import Door
from worker.stack.temporal import free_port


def code_of(envelope: Envelope) -> Reason | None:
    return envelope.error.code if envelope.error else None


def outcome_of(envelope: Envelope) -> str | None:
    return (envelope.data or {}).get("outcome")


async def test_a_post_is_answered_with_its_outcome_and_a_complete_meta(home: House) -> None:
    answer = await home.door.post(freeze_and_debit(session()), ANNA, call_id="call-7")

    assert (answer.status_code, answer.status, outcome_of(answer)) == (200, Status.SUCCESS, "COMMITTED")
    assert answer.meta.call_id == "call-7"
    assert answer.meta.request_id is not None
    assert answer.meta.duration_ms is not None
    assert answer.meta.poll_after_ms is None
    assert not answer.meta.duplicate
    assert answer.exit_code == 0


async def test_the_harness_session_overrides_the_one_in_the_intent(home: House) -> None:
    theirs = session()

    answer = await home.door.post(freeze_and_debit("what-a-model-wrote"), ANNA, session_id=theirs)

    assert home.intent(answer)["session_id"] == theirs


async def test_a_bad_intent_leaves_one_audit_row_and_nothing_else(home: House) -> None:
    before = home.rows("select count(*) as n from backstay.intents")
    agent = ANNA.model_copy(update={"agent": "careless"})

    answer = await home.door.post(freeze_and_debit(session(), amount_cents=-5), agent)

    assert (answer.status_code, code_of(answer)) == (422, Reason.ARGUMENTS_INVALID)
    assert answer.error is not None
    assert "steps[0].arguments.amount_cents" in {field.path for field in answer.error.fields}
    noted = await until(lambda: home.rows("select result from backstay.audit_log where agent = 'careless'"))
    assert len(noted) == 1
    assert answer.meta.request_id in noted[0]["result"]
    assert home.rows("select count(*) as n from backstay.intents") == before


async def test_a_flood_of_bad_intents_leaves_sixty_audit_rows_a_minute(home: House) -> None:
    agent = ANNA.model_copy(update={"agent": "flood"})
    async with Door.of(home.client, home.engine, home.settings) as door:
        for _ in range(80):
            await door.post(b"{", agent)
            await asyncio.sleep(0.005)

    assert home.rows("select count(*) as n from backstay.audit_log where agent = 'flood'") == [{"n": 60}]


async def test_a_bad_intent_is_refused_in_milliseconds_while_the_database_is_away(home: House) -> None:
    nowhere = Database("postgresql://127.0.0.1:1/nowhere")
    door = Door(home.client, nowhere, home.engine.registry, home.settings)
    began = time.monotonic()

    answer = await door.post(b'{"protocol": 1}', ANNA)

    assert answer.status_code == 422
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    "key", ["", "k" * 256, "with blank", "tab\there", "NUL\x00", "naïve", "'; drop table intents; --"]
)
async def test_a_malformed_explicit_key_is_refused_by_name(home: House, key: str) -> None:
    answer = await home.door.post(freeze_and_debit(session()), ANNA, idempotency_key=key)

    assert code_of(answer) is Reason.ARGUMENTS_INVALID
    assert answer.error is not None
    assert [field.path for field in answer.error.fields] == ["idempotency_key"]


async def test_a_final_rejection_is_claimed_and_told_again(home: House) -> None:
    body = freeze_and_debit(session(), account="A99999999")

    first = await home.door.post(body, ANNA)
    second = await home.door.post(body, ANNA)

    assert (first.status_code, code_of(first), outcome_of(first)) == (404, Reason.OBJECT_NOT_FOUND, "NOT_APPLIED")
    assert home.intent(first)["phase"] == "NOT_APPLIED"
    assert (second.status_code, code_of(second), second.meta.duplicate) == (404, Reason.OBJECT_NOT_FOUND, True)


async def test_a_rejection_that_may_be_retried_claims_nothing_and_the_same_post_may_succeed_later(home: House) -> None:
    body = freeze_and_debit(session(), account=POOR, amount_cents=500)

    refused = await home.door.post(body, ANNA)
    home.rows("select ledger.fund_account(%s, %s, 500)", POOR, CASH)
    accepted = await home.door.post(body, ANNA)

    assert (refused.status_code, code_of(refused)) == (409, Reason.FUNDS_INSUFFICIENT)
    assert refused.error is not None
    assert refused.error.retryable is Retryable.ALWAYS
    assert (outcome_of(accepted), accepted.meta.intent_id) == ("COMMITTED", refused.meta.intent_id)


async def test_another_tenants_account_does_not_exist_and_another_principals_is_not_owned(home: House) -> None:
    stranger = await home.door.post(freeze_and_debit(session()), OTHER_BANK)
    neighbour = await home.door.post(freeze_and_debit(session()), BEN)

    assert (stranger.status_code, code_of(stranger)) == (404, Reason.OBJECT_NOT_FOUND)
    assert (neighbour.status_code, code_of(neighbour)) == (403, Reason.NOT_OWNER)


async def test_an_intent_that_waits_for_people_answers_at_once_and_gives_its_place_back(home: House) -> None:
    async with Door.of(home.client, home.engine, home.settings, in_flight_max=1) as door:
        waiting = await door.post(freeze_and_debit(session(), amount_cents=GATED_CENTS), ANNA)
        following = await door.post(freeze_and_debit(session()), ANNA)

    assert (waiting.status_code, outcome_of(waiting), waiting.exit_code) == (202, "PENDING", 3)
    assert {step["state"] for step in (waiting.data or {})["steps"]} == {"AWAITING_APPROVAL"}
    assert waiting.meta.poll_after_ms is not None
    assert home.rows("select held_cents from ledger.accounts where account_id = %s", ANNAS) == [{"held_cents": 0}]
    assert outcome_of(following) == "COMMITTED"


async def test_no_wait_answers_as_soon_as_it_is_accepted(home: House) -> None:
    body = freeze_and_debit(session())

    accepted = await home.door.post(body, ANNA, wait_seconds=0)
    joined = await home.door.post(body, ANNA)

    assert (accepted.status_code, outcome_of(accepted)) == (202, "PENDING")
    assert accepted.meta.intent_id == joined.meta.intent_id
    assert (outcome_of(joined), joined.meta.duplicate) == ("COMMITTED", True)


async def test_a_post_beyond_the_places_is_told_to_come_later_and_starts_nothing(
    idle_home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PLACE_WAIT_SECONDS_MAX", 0.1)
    async with Door.of(idle_home.client, idle_home.engine, idle_home.settings, in_flight_max=1) as door:
        carried = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)
        busy = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)

    assert carried.status_code == 202
    assert (busy.status_code, code_of(busy)) == (429, Reason.RATE_LIMITED)
    assert busy.error is not None
    assert busy.error.details["in_flight"] == busy.error.details["in_flight_max"] == 1
    assert busy.error.details["retry_after_seconds"] > 0


async def test_a_full_queue_refuses_at_once(idle_home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "QUEUE_FACTOR", 1)
    async with Door.of(idle_home.client, idle_home.engine, idle_home.settings, in_flight_max=1) as door:
        await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)
        queued = asyncio.create_task(door.post(freeze_and_debit(session()), ANNA, wait_seconds=0))
        await asyncio.sleep(0.05)
        began = time.monotonic()

        refused = await door.post(freeze_and_debit(session()), ANNA)

        assert time.monotonic() - began < 1
        assert code_of(refused) is Reason.RATE_LIMITED
        queued.cancel()
        await asyncio.wait({queued})


async def test_a_saga_that_takes_long_gives_its_place_back(idle_home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CARRY_SECONDS_MAX", 0.1)
    async with Door.of(idle_home.client, idle_home.engine, idle_home.settings, in_flight_max=1) as door:
        first = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)
        second = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)

    assert (first.status_code, second.status_code) == (202, 202)


async def test_temporal_down_is_a_503_and_the_same_post_goes_through_later(home: House) -> None:
    body = freeze_and_debit(session())
    nobody = await Client.connect(f"127.0.0.1:{free_port()}", lazy=True, data_converter=pydantic_data_converter)

    async with Door.of(nobody, home.engine, home.settings) as door:
        down = await door.post(body, ANNA)
    later = await home.door.post(body, ANNA)

    assert (down.status_code, code_of(down)) == (503, Reason.DEPENDENCY_DOWN)
    assert down.error is not None
    assert down.error.retryable is Retryable.ALWAYS
    assert (outcome_of(later), later.meta.duplicate) == ("COMMITTED", False)


async def test_a_post_is_accepted_while_the_database_is_away(idle_home: House) -> None:
    nowhere = Database("postgresql://127.0.0.1:1/nowhere")

    async with nowhere, Door(idle_home.client, nowhere, idle_home.engine.registry, idle_home.settings) as door:
        accepted = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)
        repeat = await door.post(freeze_and_debit(session()), ANNA, wait_seconds=0, idempotency_key="k-1")

    assert (accepted.status_code, outcome_of(accepted)) == (202, "PENDING")
    assert (repeat.status_code, code_of(repeat)) == (503, Reason.DEPENDENCY_DOWN)


class DeafClient:
    """A client that starts workflows and never hears that they were started."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start_workflow(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - whatever a client takes
        await self._client.start_workflow(*arguments, **named)
        raise RPCError("the reply was lost", RPCStatusCode.UNAVAILABLE, b"")


async def test_a_lost_acknowledgement_is_a_503_and_the_same_post_joins_what_was_started(home: House) -> None:
    body = freeze_and_debit(session())
    deaf: Any = DeafClient(home.client)

    async with Door.of(deaf, home.engine, home.settings) as door:
        lost = await door.post(body, ANNA)
    joined = await home.door.post(body, ANNA)

    assert code_of(lost) is Reason.DEPENDENCY_DOWN
    assert (outcome_of(joined), joined.meta.duplicate) == ("COMMITTED", True)
    assert home.effect_count(joined) == 2


async def test_a_dry_run_shows_the_plan_and_writes_nothing(home: House) -> None:
    before = home.rows("select count(*) as n from backstay.audit_log")
    theirs = session()

    answer = await home.door.plan(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)

    assert answer.status is Status.SUCCESS
    shown = answer.data or {}
    assert shown["asks"] == ["freeze", "debit"]
    refused = [row for row in shown["ends"] if row["fault"] == "REFUSED"]
    assert [(row["landed"], row["step_id"], row["ends"][0]["outcome"]) for row in refused] == [
        ([], "freeze", "NOT_APPLIED"),
        (["freeze"], "debit", "COMPENSATED"),
    ]
    assert shown["posted_before"] is None
    assert home.rows("select count(*) as n from backstay.audit_log") == before
    posted = await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)
    assert home.intent(posted)["plan_digest"] == shown["plan_digest"]
    assert (home.intent(posted)["proof_digest"], home.intent(posted)["proof"]) == (
        shown["proof_digest"],
        Proof.model_validate(shown["proof"]).text,
    )


async def test_a_dry_run_is_refused_for_the_reason_of_admission(home: House) -> None:
    answer = await home.door.plan(freeze_and_debit(session(), account="A99999999"), ANNA)

    assert (answer.status_code, code_of(answer)) == (404, Reason.OBJECT_NOT_FOUND)
