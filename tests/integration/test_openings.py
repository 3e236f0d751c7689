"""The door to open intents: one envelope for every answer, also for what comes when the saga has its outcome."""

import asyncio
import json
from collections.abc import Callable

import pytest

from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.house import ANNA, ANNAS, BEN, MERCHANT, OTHER_BANK, House, amount_of, freeze_and_debit, session
from worker.opening import Openings

MONEY = {"currency": "EUR", "reason_code": "PURCHASE"}


def freeze(chat: str, *, account: str = ANNAS, **more: object) -> bytes:
    arguments = {"account_id": account, "amount_cents": amount_of(chat), **MONEY, **more}
    return json.dumps({"step_id": "freeze", "tool": "freeze_account_funds", "arguments": arguments}).encode()


def debit(chat: str) -> bytes:
    more = {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": MERCHANT, "amount_cents": amount_of(chat)}
    return json.dumps({"step_id": "debit", "tool": "debit_frozen_funds", "arguments": {**MONEY, **more}}).encode()


@pytest.fixture
def openings(home: House) -> Openings:
    return Openings(home.door, home.engine.database)


async def opened(openings: Openings, chat: str) -> str:
    envelope = await openings.open("trip", ANNA, session_id=chat)
    assert envelope.meta.intent_id is not None
    return envelope.meta.intent_id


def data(envelope: Envelope) -> JsonObject:
    return envelope.data or {}


async def test_an_intent_is_opened_grown_and_committed_with_an_envelope_for_each(openings: Openings) -> None:
    chat = session()

    first = await openings.open("trip", ANNA, session_id=chat, goal="Pay for the trip.")
    intent_id = first.meta.intent_id or ""
    frozen = await openings.add(ANNA, intent_id, freeze(chat), call_id="call-1")
    taken = await openings.add(ANNA, intent_id, debit(chat))
    done = await openings.commit(ANNA, intent_id)

    assert (first.status_code, first.exit_code) == (200, 0)
    assert data(first)["waiting_for"] == "the next step, commit or abort"
    assert (frozen.status_code, frozen.meta.step_id, frozen.meta.call_id) == (200, "freeze", "call-1")
    assert data(frozen)["step"]["output"]["hold_id"].startswith("H")
    assert taken.meta.transaction_id is not None
    assert (done.status_code, data(done)["outcome"]) == (200, "COMMITTED")
    assert [step["state"] for step in data(done)["steps"]] == ["DONE", "DONE"]


async def test_opening_the_same_again_joins_it_and_later_tells_its_outcome(openings: Openings) -> None:
    chat = session()

    both = await asyncio.gather(*(openings.open("trip", ANNA, session_id=chat) for _ in range(2)))
    other = await openings.open("another", ANNA, session_id=chat)
    await openings.abort(ANNA, both[0].meta.intent_id or "")
    after = await openings.open("trip", ANNA, session_id=chat)

    assert {envelope.status_code for envelope in both} == {200}
    assert both[0].meta.intent_id == both[1].meta.intent_id == after.meta.intent_id
    assert other.meta.intent_id != after.meta.intent_id
    assert (after.status_code, data(after)["outcome"]) == (409, "NOT_APPLIED")


async def test_a_name_that_was_used_long_ago_is_not_used_again(openings: Openings, home: House) -> None:
    chat = session()
    done = await openings.commit(ANNA, await opened(openings, chat))
    home.age(done)

    again = await openings.open("trip", ANNA, session_id=chat)

    assert again.error is not None
    assert again.error.code is Reason.OCCURRENCE_REQUIRED
    assert "another name" in again.error.message


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_what_is_said_after_the_end_is_answered_with_the_outcome(openings: Openings, end: str) -> None:
    chat = session()
    intent_id = await opened(openings, chat)
    await openings.add(ANNA, intent_id, freeze(chat))
    first = await (openings.commit(ANNA, intent_id) if end == "commit" else openings.abort(ANNA, intent_id))

    same = await openings.add(ANNA, intent_id, freeze(chat))
    more = await openings.add(ANNA, intent_id, debit(chat))
    commit = await openings.commit(ANNA, intent_id)
    abort = await openings.abort(ANNA, intent_id)

    outcome = "COMMITTED" if end == "commit" else "COMPENSATED"
    assert {data(each)["outcome"] for each in (first, same, more, commit, abort)} == {outcome}
    assert more.error is not None
    assert more.error.code is Reason.TOO_LATE
    assert (first.exit_code, same.exit_code, commit.exit_code, abort.exit_code) == (
        (0, 0, 0, 1) if end == "commit" else (0, 1, 1, 0)
    )


async def test_whatever_meets_the_end_gets_the_outcome(openings: Openings) -> None:
    chat = session()
    intent_id = await opened(openings, chat)
    await openings.add(ANNA, intent_id, freeze(chat))

    said = await asyncio.gather(
        openings.abort(ANNA, intent_id),
        openings.add(ANNA, intent_id, debit(chat)),
        openings.commit(ANNA, intent_id),
        openings.abort(ANNA, intent_id),
    )

    is_done = said[1].status_code == 200  # the add may have been the first, and was answered then
    outcomes = {data(envelope).get("outcome") for envelope in (said[0], *said[2:], *(() if is_done else said[1:2]))}
    final = data(await openings.abort(ANNA, intent_id))["outcome"]
    assert final in ("COMPENSATED", "COMMITTED")
    assert outcomes == {final}
    assert all(envelope.status_code != 500 for envelope in said)


async def test_a_refused_step_is_told_by_its_reason_and_the_intent_stays_open(openings: Openings) -> None:
    chat = session()
    intent_id = await opened(openings, chat)

    wrong = await openings.add(ANNA, intent_id, freeze(chat, account="A0"))
    right = await openings.add(ANNA, intent_id, freeze(chat))
    irreversible: JsonObject = {"step_id": "x", "tool": "purge_deleted_records", "arguments": {}}
    refused = await openings.commit(ANNA, intent_id, final_step=json.dumps(irreversible).encode())
    done = await openings.commit(ANNA, intent_id)

    assert (wrong.status_code, wrong.exit_code) == (422, 1)
    assert wrong.error is not None
    assert [problem.path for problem in wrong.error.fields] == ["arguments.account_id"]
    assert right.status_code == 200
    assert refused.error is not None
    assert refused.error.code is Reason.ARGUMENTS_INVALID
    assert data(done)["outcome"] == "COMMITTED"


async def test_a_step_that_another_body_cannot_be_read_from_never_leaves_the_door(openings: Openings) -> None:
    intent_id = await opened(openings, session())

    with pytest.raises(SagaError) as refused:
        await openings.add(ANNA, intent_id, b"[]")

    assert refused.value.reason is Reason.BODY_MALFORMED


async def test_a_step_in_which_a_key_comes_twice_never_leaves_the_door(openings: Openings) -> None:
    chat = session()
    intent_id = await opened(openings, chat)
    twice = freeze(chat).replace(b'"tool":', b'"tool": "lock_customer_account", "tool":')

    for ask in (openings.add(ANNA, intent_id, twice), openings.commit(ANNA, intent_id, final_step=twice)):
        with pytest.raises(SagaError) as refused:
            await ask
        assert refused.value.reason is Reason.BODY_MALFORMED
        assert [problem.path for problem in refused.value.info.fields] == ["tool"]


async def test_only_the_principal_of_an_open_intent_adds_to_it(openings: Openings) -> None:
    chat = session()
    intent_id = await opened(openings, chat)

    async def reason(ask: Callable[[], object]) -> Reason:
        with pytest.raises(SagaError) as refused:
            await ask()  # type: ignore[misc]
        return refused.value.reason

    assert await reason(lambda: openings.add(BEN, intent_id, freeze(chat))) is Reason.NOT_ALLOWED
    assert await reason(lambda: openings.commit(BEN, intent_id)) is Reason.NOT_ALLOWED
    assert await reason(lambda: openings.abort(OTHER_BANK, intent_id)) is Reason.INTENT_NOT_FOUND


async def test_a_closed_intent_takes_no_steps(openings: Openings, home: House) -> None:
    chat = session()
    posted = await home.door.post(freeze_and_debit(chat), ANNA)

    with pytest.raises(SagaError) as refused:
        await openings.add(ANNA, posted.meta.intent_id or "", freeze(chat))

    assert refused.value.reason is Reason.TOO_LATE


async def test_an_intent_whose_run_was_ended_tells_so(openings: Openings, home: House) -> None:
    chat = session()
    intent_id = await opened(openings, chat)
    await home.client.get_workflow_handle(intent_id).terminate("a test")

    with pytest.raises(SagaError) as refused:
        await openings.add(ANNA, intent_id, freeze(chat))

    assert refused.value.reason is Reason.INTERRUPTED
    assert "backstay sweep" in str(refused.value)


async def test_why_tells_that_the_agent_is_awaited_and_how_to_go_on(openings: Openings, home: House) -> None:
    intent_id = await opened(openings, session())

    outlook = await home.door.why(ANNA.tenant, intent_id)

    assert outlook.blocked_by == "its agent: the next step, commit or abort"
    assert f"backstay intent commit {intent_id}" in [option.command for option in outlook.options]


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_why_of_an_ended_open_intent_offers_another_name_and_no_occurrence(
    openings: Openings, home: House, end: str
) -> None:
    chat = session()
    intent_id = await opened(openings, chat)
    await openings.add(ANNA, intent_id, freeze(chat))
    await (openings.commit(ANNA, intent_id) if end == "commit" else openings.abort(ANNA, intent_id))

    outlook = await home.door.why(ANNA.tenant, intent_id)

    assert [option.command for option in outlook.options] == [f"backstay intent open NAME --session {chat}"]


async def test_a_dry_run_of_an_open_intent_shows_that_nothing_is_planned_yet(home: House) -> None:
    body = {"protocol": 1, "session_id": session(), "open": "trip"}

    envelope = await home.door.plan(json.dumps(body).encode(), ANNA)

    assert envelope.status_code == 200
    assert data(envelope)["steps"] == []


async def test_a_posted_open_intent_is_answered_as_soon_as_it_takes_steps(home: House) -> None:
    body = {"protocol": 1, "session_id": session(), "open": "trip"}

    envelope = await home.door.post(json.dumps(body).encode(), ANNA, wait_seconds=15)

    assert (envelope.status_code, envelope.exit_code) == (202, 3)
    assert data(envelope)["waiting_for"] == "the next step, commit or abort"
