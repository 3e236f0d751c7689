"""Writes that happen elsewhere, on real servers: whatever the courier does, its book and ours agree at the end."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from contracts.envelope import Envelope
from tests.support.courier import PACK, Courier, Doing, How, courier, parcel
from tests.support.sagas import CALLER, Handle, Sagas, cancellation, events, outcome, request, resolution, serve, states
from tests.support.samples import note
from worker.answers import find
from worker.check import check


@pytest.fixture
async def office() -> AsyncGenerator[Courier]:
    async with courier() as made:
        yield made


@pytest.fixture
async def sagas(office: Courier, temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    del office  # open before a tool looks for it
    async with serve(temporal_client, database_url, task_queue, packs=(PACK,)) as served:
        yield served


def attempts(sagas: Sagas) -> dict[str, str]:
    """State of each attempt, compensations under `undo:`."""
    rows = sagas.rows("select step_id, direction, state from backstay.attempts order by transaction_id")
    return {("undo:" if row["direction"] == "compensate" else "") + row["step_id"]: row["state"] for row in rows}


def noted(sagas: Sagas, kind: str) -> list[str]:
    rows = sagas.rows("select step_id from backstay.audit_log where kind = %s order by audit_id", kind)
    return [row["step_id"] for row in rows]


async def until_asked(office: Courier, doing: Doing, step_id: str, times: int = 1) -> None:
    async with asyncio.timeout(15):
        while len(office.asked(doing, step_id)) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def parked(sagas: Sagas, handle: Handle) -> Envelope:
    card = await sagas.waiting(handle)
    assert (card.data or {})["waiting_for"] == "an operator (OUTCOME_UNKNOWN)"
    return card


# --- forward ---------------------------------------------------------------------------------------------------


async def test_a_parcel_is_sent_once_and_its_effect_has_the_number_that_was_sent_along(
    sagas: Sagas, office: Courier
) -> None:
    envelope = await sagas.run(parcel("a"))

    effect = sagas.one("select transaction_id, response from backstay.effects")
    attempt = sagas.one("select transaction_id, state, sends from backstay.attempts")
    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert attempt == {"transaction_id": effect["transaction_id"], "state": "LANDED", "sends": 1}


async def test_what_only_reads_is_asked_again_and_leaves_no_attempt(sagas: Sagas, office: Courier) -> None:
    office.does("look", "who", "drop reply")

    envelope = await sagas.run({"step_id": "who", "tool": "ask_sample_courier", "arguments": {}}, note("b"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert attempts(sagas) == {}


@pytest.mark.situation(1, "F30")
@pytest.mark.parametrize("how", ["drop reply", "garbage"])
async def test_a_lost_or_broken_answer_is_looked_up_and_never_sent_again(
    sagas: Sagas, office: Courier, how: How
) -> None:
    office.does("send", "a", how)

    envelope = await sagas.run(parcel("a"), note("b"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert len(office.asked("send", "a")) == 1


@pytest.mark.situation(1, "F31")
@pytest.mark.parametrize("tool", ["ship", "carry", "mail"])
async def test_a_lost_request_is_sent_again_under_the_same_key(sagas: Sagas, office: Courier, tool: str) -> None:
    office.does("send", "a", "drop request")

    envelope = await sagas.run(parcel("a", tool))

    first, second = office.asked("send", "a")
    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert first == second


async def test_a_courier_that_knows_no_keys_is_sent_nothing_while_the_first_may_still_land(
    sagas: Sagas, office: Courier
) -> None:
    office.does("send", "a", "late")
    handle = await sagas.start(request(parcel("a", "carry")))

    await until_asked(office, "look", "a")
    office.deliver()

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert len(office.asked("send", "a")) == 1


async def test_after_the_keys_lifetime_nothing_is_sent_again(sagas: Sagas, office: Courier) -> None:
    office.forgets_keys = True
    office.does("send", "a", "drop request")

    envelope = await sagas.run(parcel("a", "rush"))

    assert outcome(envelope) == ("NOT_APPLIED", "refused")
    assert office.told() == []
    assert len(office.asked("send", "a")) == 1
    assert envelope.error is not None
    assert envelope.error.code == "DEPENDENCY_DOWN"


async def test_a_refusal_is_definite_and_turns_the_saga_back(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "refuse")

    envelope = await sagas.run(parcel("a"), parcel("b"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert office.told() == [("sent", "a"), ("returned", "a")]
    assert attempts(sagas) == {"a": "LANDED", "b": "REFUSED", "undo:a": "LANDED"}


async def test_a_refusal_of_a_second_sending_says_nothing_about_the_first(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "late", "refuse")
    handle = await sagas.start(request(parcel("a", "mail")))

    await until_asked(office, "send", "a", 2)
    office.deliver()

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.kept() == {"a": 1}


@pytest.mark.situation("F33")
async def test_a_busy_courier_is_asked_again_when_it_said(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "busy", "busy")

    envelope = await sagas.run(parcel("a"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert len(office.asked("send", "a")) == 3
    assert sagas.one("select sends from backstay.attempts")["sends"] == 1


async def test_a_courier_that_stays_busy_is_given_up_without_a_guess(sagas: Sagas, office: Courier) -> None:
    office.busy_seconds = 0.1
    office.always("send", "b", "busy")

    envelope = await sagas.run(parcel("a"), parcel("b"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert office.kept() == {}
    assert attempts(sagas)["b"] == "NOT_LANDED"


# --- what nobody knows -----------------------------------------------------------------------------------------


async def test_a_wrong_weight_is_never_taken_for_landed(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "wrong")
    office.always("look", "a", "wrong")
    handle = await sagas.start(request(note("before"), parcel("a", "carry")))

    card = await parked(sagas, handle)

    detail = sagas.one("select parked_detail from backstay.intents")["parked_detail"]
    assert states(card) == {"before": "DONE", "a": "UNKNOWN"}
    assert "weight_grams: asked 500, answered 501" in detail
    assert office.kept() == {"a": 1}
    assert noted(sagas, "effect") == ["before"]


@pytest.mark.situation(1, "F32")
async def test_when_nobody_can_say_the_saga_parks_and_an_operators_retry_looks_first(
    sagas: Sagas, office: Courier
) -> None:
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    handle = await sagas.start(request(note("before"), parcel("a", "carry")))
    await parked(sagas, handle)
    assert sagas.notes() == {"before": True}, "nothing is compensated by guess"

    office.always("look", "a", None)
    answer = await sagas.update(handle, "resolve", resolution("retry", "a"))

    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert len(office.asked("send", "a")) == 1


async def test_what_an_operator_calls_done_is_an_effect_on_his_word(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    handle = await sagas.start(request(parcel("a", "carry")))
    await parked(sagas, handle)

    await sagas.update(handle, "resolve", resolution("done", "a"))

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert sagas.one("select state, source from backstay.effects") == {"state": "LANDED", "source": "operator"}


@pytest.mark.slow
async def test_what_certainly_did_not_land_cannot_be_called_done(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "drop request")
    office.always("look", "a", "drop request")
    handle = await sagas.start(request(parcel("a", "carry")))
    await parked(sagas, handle)

    office.always("look", "a", None)
    answer = await sagas.update(handle, "resolve", resolution("done", "a"))

    assert not answer.accepted
    assert "certainly has not landed" in answer.message


async def test_what_an_operator_skips_meets_a_tombstone_when_it_lands_late(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "late")
    office.always("look", "b", "drop request")
    handle = await sagas.start(request(parcel("a"), parcel("b", "carry")))
    await parked(sagas, handle)

    await sagas.update(handle, "resolve", resolution("skip", "b"))

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "interrupted")
    assert sagas.rows("select step_id, state from backstay.effects where direction = 'execute' order by step_id") == [
        {"step_id": "a", "state": "COMPENSATED"},
        {"step_id": "b", "state": "TOMBSTONE"},
    ]
    assert attempts(sagas)["b"] == "FENCED"


# --- back ------------------------------------------------------------------------------------------------------


async def cancelled(sagas: Sagas, handle: Handle) -> None:
    answer = await sagas.update(handle, "cancel", cancellation())
    assert answer.accepted


async def test_a_cancelled_saga_waits_until_it_is_certain_that_nothing_landed(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "late")
    handle = await sagas.start(request(parcel("a"), parcel("b", "carry")))
    await until_asked(office, "look", "b")

    await cancelled(sagas, handle)

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "cancelled")
    assert office.kept() == {}
    assert attempts(sagas)["b"] == "FENCED"
    assert sagas.rows("select 1 from backstay.effects where step_id = 'b' and state = 'TOMBSTONE'")


@pytest.mark.situation(3, "F40")
async def test_what_lands_after_the_fence_is_found_and_compensated(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "late")
    handle = await sagas.start(request(parcel("a"), parcel("b", "carry")))
    await until_asked(office, "look", "b")
    await cancelled(sagas, handle)
    async with asyncio.timeout(15):
        while sagas.one("select phase from backstay.intents")["phase"] != "CLOSING":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    told = (
        await find(sagas.engine.database, CALLER.tenant, str((await sagas.status(handle)).meta.intent_id))
    ).envelope()
    in_flight = sagas.one("select in_flight_until from backstay.attempts where step_id = 'b'")["in_flight_until"]

    office.deliver()

    assert (told.status_code, told.meta.settles_at) == (202, in_flight.isoformat(timespec="seconds"))
    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "cancelled")
    assert office.told() == [("sent", "a"), ("sent", "b"), ("returned", "b"), ("returned", "a")]
    assert noted(sagas, "landed_late") == ["b"]


async def test_what_can_be_called_off_is_fenced_where_it_would_land(sagas: Sagas, office: Courier) -> None:
    office.always("send", "b", "late")
    office.always("look", "b", "drop request")
    handle = await sagas.start(request(parcel("a"), parcel("b", "lend")))
    await until_asked(office, "look", "b")
    await cancelled(sagas, handle)

    envelope = await sagas.result(handle)
    office.deliver()

    assert outcome(envelope) == ("COMPENSATED", "cancelled")
    assert office.told() == [("sent", "a"), ("returned", "a")], "the late original was refused by the courier"
    assert attempts(sagas)["b"] == "FENCED"


@pytest.mark.slow
async def test_out_of_patience_a_saga_turns_back_where_the_key_can_be_called_off(sagas: Sagas, office: Courier) -> None:
    office.always("send", "b", "drop reply")
    office.always("look", "b", "drop request")

    envelope = await sagas.run(parcel("a"), parcel("b", "lend"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert office.kept() == {}
    assert {("sent", "b"), ("returned", "b")} <= set(office.told()), "it had landed, which calling it off told"


@pytest.mark.slow
async def test_on_the_way_back_too_nothing_is_compensated_by_guess(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "drop reply")
    office.always("look", "b", "drop request")
    handle = await sagas.start(request(parcel("a"), parcel("b", "carry")))
    await until_asked(office, "look", "b")
    await cancelled(sagas, handle)

    await parked(sagas, handle)
    assert office.told() == [("sent", "a"), ("sent", "b")], "what it builds on is held"
    office.always("look", "b", None)
    await sagas.update(handle, "resolve", resolution("retry", "b"))

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "cancelled")
    assert office.told()[2:] == [("returned", "b"), ("returned", "a")]


@pytest.mark.parametrize("how", ["drop reply", "drop request", "garbage", "busy"])
async def test_a_compensation_is_sent_until_it_is_done_and_done_once(sagas: Sagas, office: Courier, how: How) -> None:
    office.does("send", "b", "refuse")
    office.does("return", "a", how)

    envelope = await sagas.run(parcel("a"), parcel("b"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert office.told() == [("sent", "a"), ("returned", "a")]
    assert len(set(office.asked("return", "a"))) == 1, "one key"


async def test_a_compensation_of_unknown_outcome_is_not_sent_again_without_keys(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "refuse")
    office.does("return", "a", "drop reply")
    handle = await sagas.start(request(parcel("a", "carry"), parcel("b")))

    card = await sagas.waiting(handle)

    assert states(card)["a"] == "PARKED"
    assert len(office.asked("return", "a")) == 1
    await sagas.update(handle, "resolve", resolution("done", "a"))
    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "refused")
    assert office.kept() == {}


@pytest.mark.situation(7, "F42")
async def test_a_refused_compensation_parks_and_may_be_tried_again(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "refuse")
    office.does("return", "a", "refuse")
    handle = await sagas.start(request(parcel("a"), parcel("b")))
    card = await sagas.waiting(handle)
    assert states(card)["a"] == "PARKED"

    await sagas.update(handle, "resolve", resolution("retry", "a"))

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "refused")
    assert office.kept() == {}


async def test_compensations_are_held_to_the_downstreams_rate(sagas: Sagas, office: Courier) -> None:
    sagas.rows("insert into backstay.compensation_rates values ('trickle', date_trunc('hour', now()) + '1 day', 1)")
    office.does("send", "b", "refuse")
    handle = await sagas.start(request(parcel("a", "trickle"), parcel("b")))

    async with asyncio.timeout(15):
        while EventType.EVENT_TYPE_TIMER_STARTED not in await events(handle):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    assert office.asked("return", "a") == []
    assert attempts(sagas) == {"a": "LANDED", "b": "REFUSED"}


# --- what cannot be undone -------------------------------------------------------------------------------------


@pytest.mark.situation(11)
async def test_a_saga_is_not_closed_over_a_pivot_that_may_have_landed(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "late")
    handle = await sagas.start(request(parcel("a"), parcel("b", "gift"), parcel("c", "after")))
    await until_asked(office, "look", "b")
    await cancelled(sagas, handle)

    office.deliver()

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a"), ("sent", "b"), ("sent", "c")]


async def test_a_pivot_that_certainly_did_not_land_lets_the_saga_turn_back(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "late")
    handle = await sagas.start(request(parcel("a"), parcel("b", "gift")))
    await until_asked(office, "look", "b")

    await cancelled(sagas, handle)

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "cancelled")
    assert office.told() == [("sent", "a"), ("returned", "a")]


@pytest.mark.slow
async def test_a_pivot_of_which_nobody_knows_parks_and_no_verb_closes_over_it(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "drop reply")
    office.always("look", "b", "drop request")
    handle = await sagas.start(request(parcel("a"), parcel("b", "gift")))
    await until_asked(office, "look", "b")
    await cancelled(sagas, handle)
    await parked(sagas, handle)

    refused = await sagas.update(handle, "resolve", resolution("close", resolution_id="r0"))
    office.always("look", "b", None)
    await sagas.update(handle, "resolve", resolution("retry", "b"))

    assert not refused.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a"), ("sent", "b")]


@pytest.mark.situation(11)
async def test_after_the_pivot_a_step_is_sent_until_it_lands(sagas: Sagas, office: Courier) -> None:
    office.busy_seconds = 0.1
    office.does("send", "c", "busy", "busy", "busy", "busy", "busy")

    envelope = await sagas.run(parcel("b", "gift"), parcel("c", "after"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "b"), ("sent", "c")]


async def test_the_books_are_right(sagas: Sagas, office: Courier) -> None:
    office.does("send", "b", "drop reply")
    office.does("send", "d", "refuse")
    await sagas.run(parcel("a"), parcel("b"))
    await sagas.run(parcel("c"), parcel("d"))

    report = await check(sagas.database_url)

    assert {one.name: one.violations for one in report.checks if not one.ok} == {}


# --- reading back ------------------------------------------------------------------------------------------------


async def test_a_tool_that_wants_it_parks_when_the_world_moved_and_nothing_more_lands(
    sagas: Sagas, office: Courier
) -> None:
    office.opened = True
    handle = await sagas.start(request(parcel("a", "guard"), note("b")))

    card = await sagas.waiting(handle)

    assert (card.data or {})["waiting_for"] == "an operator (WORLD_MOVED)"
    assert card.meta.warnings == ("a: WORLD_MOVED: somebody has opened it",)
    assert sagas.notes() == {}
    assert (await sagas.update(handle, "resolve", resolution("forward"))).accepted
    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMMITTED", "none")
    assert envelope.meta.warnings == ("a: WORLD_MOVED: somebody has opened it",)
    assert sagas.notes() == {"b": True}
    assert office.told() == [("sent", "a")]


async def test_an_operator_may_close_what_rests_because_the_world_moved(sagas: Sagas, office: Courier) -> None:
    office.opened = True
    office.does("send", "a", "drop reply")
    handle = await sagas.start(request(parcel("a", "guard")))
    await sagas.waiting(handle)

    assert (await sagas.update(handle, "resolve", resolution("close"))).accepted

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "interrupted")
    assert office.kept() == {}
    report = await check(sagas.database_url)
    assert {one.name: one.violations for one in report.checks if not one.ok} == {}
