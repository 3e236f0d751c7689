"""Fallbacks on real servers: the other call runs only where the first certainly never lands, and is told."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.client import Client

from activities.barrier import execute_step
from activities.tool import AnyTool, Tool
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.proposal import propose
from contracts.reasons import Reason
from contracts.saga import Claim, StepCall
from tests.support.courier import PACK, Courier, courier, parcel
from tests.support.reserving import held
from tests.support.sagas import CALLER, Sagas, approval, cancellation, outcome, request, resolution, serve, states
from tests.support.samples import note
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


def otherwise(step: JsonObject, other: JsonObject) -> JsonObject:
    """The step, with another one's call as its fallback."""
    return {**step, "fallback": {"tool": other["tool"], "arguments": other["arguments"]}}


def tool(sagas: Sagas, name: str) -> AnyTool:
    found: Any = next(made for made in sagas.engine.tools if made.contract.name == name)
    made: AnyTool = found
    assert type(found) is Tool
    return made


async def assert_books_agree(sagas: Sagas) -> None:
    report = await check(sagas.database_url)
    assert {one.name: one.violations for one in report.checks if not one.ok} == {}


# --- a write of our own database ----------------------------------------------------------------------------------


async def test_a_refused_step_is_stood_for_by_its_fallback_and_that_is_told(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")

    envelope = await sagas.run(otherwise(note("a"), note("b", "keep")), note("c", text={"$from": "a.text"}))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert states(envelope) == {"a": "REFUSED", "a.fallback": "DONE", "c": "DONE"}
    assert envelope.meta.warnings == (
        "a: write_sample_note@1 did not land (WRONG_STATE); its fallback keep_sample_note@1 is DONE",
    )
    assert sagas.effects(envelope) == {"a.fallback": "LANDED", "a": "TOMBSTONE", "c": "LANDED"}
    assert [row["text"] for row in sagas.rows("select text from samples.notes order by note_number")] == ["b", "b"]
    await assert_books_agree(sagas)


async def test_a_fallback_that_is_not_needed_leaves_no_trace(sagas: Sagas) -> None:
    envelope = await sagas.run(otherwise(note("a"), note("b")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert states(envelope) == {"a": "DONE", "a.fallback": "PLANNED"}
    assert envelope.meta.warnings == ()
    assert sagas.notes() == {"a": True}
    await assert_books_agree(sagas)


async def test_a_used_fallback_is_compensated_as_its_step_would_be(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    sagas.behaviour.refuse("c")

    envelope = await sagas.run(otherwise(note("a"), note("b")), note("c"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert states(envelope) == {"a": "REFUSED", "a.fallback": "COMPENSATED", "c": "REFUSED"}
    assert sagas.notes() == {"b": False}
    await assert_books_agree(sagas)


async def test_when_both_are_refused_the_saga_turns_back(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    sagas.behaviour.refuse("a.fallback")

    envelope = await sagas.run(note("x"), otherwise(note("a"), note("b")))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert sagas.notes() == {"x": False}
    await assert_books_agree(sagas)


async def test_an_attempt_of_the_step_that_comes_late_lands_nowhere(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    gate = sagas.behaviour.hold("c")
    handle = await sagas.start(request(otherwise(note("a"), note("b")), note("c")))
    await gate.arrived()
    sagas.behaviour.allow("a")
    row = sagas.one("select intent_key, workflow_id, run_id, epoch from backstay.intents")
    call = StepCall(claim=Claim(**row), step_id="a", arguments={"text": "a"})

    with pytest.raises(SagaError) as refused:
        await execute_step(sagas.engine.database, tool(sagas, "write_sample_note"), call)

    assert refused.value.reason is Reason.SUPERSEDED
    assert refused.value.info.details == {"fenced_for": "a.fallback"}
    gate.open()
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert sagas.notes() == {"b": True, "c": True}


async def test_a_fallback_never_lands_beside_its_step(sagas: Sagas) -> None:
    """A message that names the fallback while its step has landed is refused by the tables."""
    gate = sagas.behaviour.hold("c")
    handle = await sagas.start(request(otherwise(note("a"), note("b")), note("c")))
    await gate.arrived()
    row = sagas.one("select intent_key, workflow_id, run_id, epoch from backstay.intents")
    call = StepCall(claim=Claim(**row), step_id="a.fallback", arguments={"text": "b"})

    with pytest.raises(SagaError, match="'a' has landed; its fallback never runs"):
        await execute_step(sagas.engine.database, tool(sagas, "write_sample_note"), call)

    gate.open()
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert sagas.notes() == {"a": True, "c": True}


async def test_a_fallback_is_approved_with_the_plan_before_anything_is_written(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    handle = await sagas.start(request(otherwise(note("a"), note("b", "guard"))))
    card = await sagas.waiting(handle)

    assert "a.fallback" in (card.data or {})["waiting_for"]
    assert sagas.behaviour.calls["a"] == 0
    answer = await sagas.update(handle, "decide", approval(card, step_id="a.fallback"))

    assert answer.accepted
    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.notes() == {"b": True}
    await assert_books_agree(sagas)


async def test_after_a_cancel_no_fallback_runs(sagas: Sagas) -> None:
    hiccup = SagaError(Reason.DEPENDENCY_DOWN, "a hiccup")
    sagas.behaviour.fail("a", hiccup, hiccup)  # two local attempts; the next one no longer shares the workflow's task
    sagas.behaviour.refuse("a")
    gate = sagas.behaviour.hold("a", "outside")
    handle = await sagas.start(request(otherwise(note("a"), note("b"))))
    await gate.arrived()
    await handle.signal("cancel", cancellation())  # pyright: ignore[reportUnknownMemberType]
    gate.open()

    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("NOT_APPLIED", "cancelled")
    assert sagas.behaviour.calls["a.fallback"] == 0
    await assert_books_agree(sagas)


async def test_what_a_fallback_names_is_judged_at_admission(sagas: Sagas) -> None:
    envelope = await sagas.run(otherwise(note("a"), note("b", book_id="B00000003")))

    assert envelope.error is not None
    assert envelope.error.code is Reason.NOT_OWNER
    assert sagas.notes() == {}


async def test_an_unused_fallback_makes_no_later_call_a_near_duplicate(sagas: Sagas) -> None:
    await sagas.run(otherwise(note("a"), note("b")), business_reference="order-1")

    envelope = await sagas.run(note("z", text="b"), business_reference="order-1")

    assert outcome(envelope) == ("COMMITTED", "none")


# --- a write that happens elsewhere ---------------------------------------------------------------------------------


async def test_what_the_courier_refuses_another_way_may_do(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "refuse")

    envelope = await sagas.run(otherwise(parcel("a"), parcel("b", "carry")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "b")]
    assert sagas.effects(envelope) == {"a": "TOMBSTONE", "a.fallback": "LANDED"}
    assert sagas.one("select state from backstay.attempts where step_id = 'a'") == {"state": "FENCED"}
    await assert_books_agree(sagas)


async def test_what_could_not_be_sent_at_all_another_way_may_do(sagas: Sagas, office: Courier) -> None:
    office.busy_seconds = 0.05
    office.always("send", "a", "busy")

    envelope = await sagas.run(otherwise(parcel("a"), note("b")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == []
    assert sagas.notes() == {"b": True}
    assert states(envelope) == {"a": "REFUSED", "a.fallback": "DONE"}
    await assert_books_agree(sagas)


async def test_what_landed_unseen_is_found_and_no_fallback_runs(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "drop reply")

    envelope = await sagas.run(otherwise(parcel("a"), parcel("b")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    assert states(envelope) == {"a": "DONE", "a.fallback": "PLANNED"}


async def test_while_nobody_knows_no_fallback_runs_and_a_person_is_called(sagas: Sagas, office: Courier) -> None:
    office.always("send", "a", "drop reply")
    office.always("look", "a", "drop reply")
    handle = await sagas.start(request(otherwise(parcel("a"), parcel("b"))))

    card = await sagas.waiting(handle)

    assert (card.data or {})["waiting_for"] == "an operator (OUTCOME_UNKNOWN)"
    assert office.told() == [("sent", "a")]
    office.always("look", "a", None)
    assert (await sagas.update(handle, "resolve", resolution("retry", "a"))).accepted
    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]
    await assert_books_agree(sagas)


# --- beside reservations ------------------------------------------------------------------------------------------


async def test_a_fallback_that_stands_is_enough_for_what_is_confirmed_after_it(sagas: Sagas) -> None:
    sagas.behaviour.refuse("b")

    envelope = await sagas.run(held("r"), otherwise(note("b"), note("c", "keep")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert states(envelope) == {"r": "DONE", "b": "REFUSED", "b.fallback": "DONE", "r.confirm": "DONE"}
    await assert_books_agree(sagas)


async def test_a_fallback_that_is_refused_gives_the_reservation_up(sagas: Sagas) -> None:
    sagas.behaviour.refuse("b")
    sagas.behaviour.refuse("b.fallback")

    envelope = await sagas.run(held("r"), otherwise(note("b"), note("c")))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert states(envelope)["r"] == "COMPENSATED"
    assert states(envelope)["r.confirm"] in ("PLANNED", "SUPERSEDED")
    await assert_books_agree(sagas)


@pytest.mark.parametrize("step", [otherwise(held("r"), note("b")), otherwise(note("r"), held("b"))])
async def test_what_reserves_neither_has_a_fallback_nor_is_one(sagas: Sagas, step: JsonObject) -> None:
    with pytest.raises(SagaError, match="reserves, and what is confirmed is said beforehand") as refused:
        propose({"protocol": 1, "session_id": "s", "steps": [step]}, CALLER, sagas.engine.registry)

    assert refused.value.info.fields[0].path == "steps[0].fallback"


# --- a fallback that is graded late --------------------------------------------------------------------------------

READ: JsonObject = {"step_id": "read", "tool": "check_account_balance", "arguments": {"account_id": "A00000001"}}


def hold_of(at_most_cents: int, account_id: str = "A00000001") -> JsonObject:
    """A freeze of what the account has, and at most so much."""
    amount = {"$fn": "min_cents", "of": [{"$from": "read.available_cents"}, at_most_cents]}
    arguments = {"account_id": account_id, "amount_cents": amount, "currency": "EUR", "reason_code": "PURCHASE"}
    return {"tool": "freeze_account_funds", "arguments": arguments}


async def test_a_late_fallback_is_graded_and_asked_about_before_the_first_write(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")
    handle = await sagas.start(request(READ, otherwise(note("a"), hold_of(1_500_000))))
    await sagas.waiting(handle)

    (asked,) = sagas.rows("select step_id, plan_digest from backstay.approval_requests")
    assert asked["step_id"] == "a.fallback"
    assert sagas.behaviour.calls["a"] == 0
    said = {"decision_id": "d1", "plan_digest": asked["plan_digest"], "verdict": "approve", "approver": "approver"}
    assert (await sagas.update(handle, "decide", {**said, "step_id": "a.fallback", "reason": "seen"})).accepted
    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.one("select amount_cents from ledger.holds") == {"amount_cents": 1_500_000}
    await assert_books_agree(sagas)


async def test_a_late_fallback_that_may_not_run_stops_nothing_while_it_is_not_needed(sagas: Sagas) -> None:
    envelope = await sagas.run(READ, otherwise(note("a"), hold_of(2_000, "A00000003")))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert states(envelope) == {"read": "DONE", "a": "DONE", "a.fallback": "REFUSED"}
    assert envelope.meta.warnings == ()
    assert sagas.notes() == {"a": True}


async def test_a_late_fallback_that_may_not_run_helps_nobody(sagas: Sagas) -> None:
    sagas.behaviour.refuse("a")

    envelope = await sagas.run(READ, otherwise(note("a"), hold_of(2_000, "A00000003")))

    assert outcome(envelope) == ("NOT_APPLIED", "refused")
    assert envelope.error is not None
    assert envelope.error.code is Reason.WRONG_STATE
