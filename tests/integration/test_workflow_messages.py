"""Messages to a saga that come wrong, twice, early or late: each gets a definite answer and none wedges the saga."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from contracts import saga
from contracts.reasons import Reason
from tests.support.sagas import (
    Handle,
    Sagas,
    approval,
    cancellation,
    freeze_and_debit,
    outcome,
    request,
    resolution,
    serve,
)
from tests.support.samples import note
from workflows import hearing

pytestmark = pytest.mark.filterwarnings("default:Cannot find activity to cancel")

Start = WithStartWorkflowOperation[Any, Any]
WHOLE = (
    b'{"protocol":1,"caller":{"tenant":"bank","principal":"customer","agent":"agent"},'
    b'"intent":{"protocol":1,"session_id":"s","steps":[{"step_id":"a","tool":"write_sample_note","arguments":%s}]}}'
)


def raw(data: bytes, encoding: bytes = b"json/plain") -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


# --- the start ---------------------------------------------------------------------------------------------------


GARBAGE: tuple[list[Any], ...] = (
    [],
    [None],
    [[request(note("a"))]],
    ["text"],
    [5],
    [{}],
    [{"intent": {}}],
    [raw(b"{oops")],
    [raw(b"")],
    [raw(b"\xff\x00", b"binary/plain")],
    [raw(b"x", b"unheard/of")],
    [raw(b"[" * 5_000 + b"]" * 5_000)],
    [raw(WHOLE % b'{"text":"a","memo":NaN}')],
    [raw(WHOLE % b'{"text":"\\ud800"}')],
    [raw(WHOLE % b'{"text":"a\\u0000b"}')],
    [raw(WHOLE % b'{"text":"a","memo":%s}' % (b"9" * 5_000))],
    [raw(WHOLE % b'{"text":5}')],
    [raw(WHOLE % b'{"text":"a","more":1}')],
    [request(note("a"), intent={"protocol": 2})],
    [request(note("a"), intent={"steps": []})],
    [request({"step_id": "a", "tool": "no_such_tool", "arguments": {}})],
    [request(note("a"), attempt="2")],
)


async def test_a_start_with_garbage_fails_the_run_with_a_typed_reason_and_claims_nothing(sagas: Sagas) -> None:
    async def reason_of(number: int, arguments: list[Any]) -> Reason:
        handle: Handle = await sagas.client.start_workflow(
            saga.WORKFLOW, args=arguments, id=f"{sagas.task_queue}-{number}", task_queue=sagas.task_queue
        )
        sagas.handles.append(handle)
        with pytest.raises(WorkflowFailureError) as failed:
            await sagas.result(handle)
        assert isinstance(failed.value.cause, ApplicationError)
        return Reason(failed.value.cause.type or "")

    reasons = await asyncio.gather(*(reason_of(number, arguments) for number, arguments in enumerate(GARBAGE)))

    assert set(reasons) == {Reason.ARGUMENTS_INVALID, Reason.BODY_MALFORMED, Reason.TOOL_UNKNOWN}
    assert sagas.one("select count(*) as n from backstay.intents")["n"] == 0


# --- wrong bodies ------------------------------------------------------------------------------------------------

WRONG_BODIES: tuple[Any, ...] = (
    None,
    "text",
    5,
    [],
    {"verdict": "perhaps"},
    raw(b"{oops"),
    raw(b"\xff", b"binary/plain"),
)


@pytest.mark.parametrize("name", ["decide", "cancel", "resolve"])
async def test_updates_with_wrong_bodies_are_refused_and_the_saga_goes_on(sagas: Sagas, name: str) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)

    for body in WRONG_BODIES:
        with pytest.raises(WorkflowUpdateFailedError):
            await sagas.update(handle, name, body)
    for number in (0, 2):
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(name, args=[cancellation()] * number)  # pyright: ignore[reportUnknownMemberType]

    await sagas.update(handle, "decide", approval(card))
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_signals_with_wrong_bodies_are_dropped_and_the_saga_goes_on(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)

    for name in ("decide", "cancel", "resolve", "no-such-signal"):
        for body in WRONG_BODIES:
            await handle.signal(name, body)
        await handle.signal(name)
        await handle.signal(name, args=[cancellation(), cancellation()])

    await sagas.update(handle, "decide", approval(card))
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_unknown_updates_and_queries_are_refused(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    await sagas.waiting(handle)

    with pytest.raises(WorkflowUpdateFailedError):
        await sagas.update(handle, "no-such-update", {})
    with pytest.raises(WorkflowQueryFailedError):
        await handle.query("no-such-query")


# --- early -------------------------------------------------------------------------------------------------------


async def test_a_decision_that_comes_with_the_start_gets_a_definite_answer(sagas: Sagas) -> None:
    body = request(note("a", "guard"), session="early")
    first = await sagas.start(body)
    card = await sagas.waiting(first)
    await sagas.update(first, "cancel", cancellation())
    await sagas.result(first)
    # The digest is known from a dry run or, as here, from an equal intent in another conversation: it does not fit.
    start: Start = WithStartWorkflowOperation(
        saga.WORKFLOW,
        request(note("a", "guard"), session="other"),
        id=f"early-{sagas.task_queue}",
        task_queue=sagas.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )

    answer = await sagas.update_with_start("decide", approval(card), start)

    assert not answer.accepted
    assert answer.error is not None
    assert answer.error.code is Reason.DECISION_INVALID


async def test_an_approval_that_comes_with_the_start_counts_when_it_names_the_plan(sagas: Sagas) -> None:
    body = request(note("a", "guard"), session="early")
    probe = await sagas.start(body, workflow_id=f"probe-{sagas.task_queue}")
    card = await sagas.waiting(probe)
    await probe.terminate()
    sagas.rows("truncate backstay.intents cascade")
    start: Start = WithStartWorkflowOperation(
        saga.WORKFLOW,
        body,
        id=f"early-{sagas.task_queue}",
        task_queue=sagas.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )

    answer = await sagas.update_with_start("decide", approval(card), start)

    handle = await start.workflow_handle()
    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_a_decision_signalled_with_the_start_counts(sagas: Sagas) -> None:
    body = request(note("a", "guard"), session="early")
    probe = await sagas.start(body)
    card = await sagas.waiting(probe)
    await probe.terminate()
    sagas.rows("truncate backstay.intents cascade")

    handle = await sagas.start(body, start_signal="decide", start_signal_args=[approval(card)])

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_a_decision_sent_to_a_start_that_is_rejected_gets_a_definite_answer(sagas: Sagas) -> None:
    start: Start = WithStartWorkflowOperation(
        saga.WORKFLOW,
        request(note("a", book_id="B99999999")),
        id=f"early-{sagas.task_queue}",
        task_queue=sagas.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )
    decision = {"decision_id": "d1", "plan_digest": "0" * 64, "verdict": "approve", "approver": "approver"}

    answer = await sagas.update_with_start("decide", decision, start)

    assert not answer.accepted
    assert answer.outcome == "NOT_APPLIED"


async def test_a_cancel_sent_to_a_second_start_of_a_finished_intent_is_told_that_it_is_too_late(sagas: Sagas) -> None:
    body = request(note("a"), session="early")
    await sagas.result(await sagas.start(body))
    start: Start = WithStartWorkflowOperation(
        saga.WORKFLOW,
        body,
        id=f"second-{sagas.task_queue}",
        task_queue=sagas.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )

    answer = await sagas.update_with_start("cancel", cancellation(), start)

    assert (answer.accepted, answer.outcome) == (False, "COMMITTED")
    assert sagas.notes() == {"a": True}


async def test_a_cancel_that_comes_with_the_start_is_answered_when_nothing_can_land_any_more(sagas: Sagas) -> None:
    start: Start = WithStartWorkflowOperation(
        saga.WORKFLOW,
        request(note("a"), session="early"),
        id=f"early-{sagas.task_queue}",
        task_queue=sagas.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )

    answer = await sagas.update_with_start("cancel", cancellation(), start)

    handle = await start.workflow_handle()
    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("NOT_APPLIED", "cancelled")


# --- twice -------------------------------------------------------------------------------------------------------


async def test_the_same_update_id_twice_is_one_decision_and_one_answer(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard"), note("b", "guard")))
    card = await sagas.waiting(handle)
    decision = approval(card, step_id="a")

    first = await sagas.update(handle, "decide", decision, id="u1")
    again = await sagas.update(handle, "decide", decision, id="u1")

    assert first == again
    assert sagas.one("select count(*) as n from backstay.decisions")["n"] == 1


async def test_the_same_decision_again_is_accepted_and_changes_nothing(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard"), note("b", "guard")))
    card = await sagas.waiting(handle)

    answers = [await sagas.update(handle, "decide", approval(card, step_id="a")) for _ in range(2)]

    assert [answer.accepted for answer in answers] == [True, True]
    assert sagas.one("select count(*) as n from backstay.decisions")["n"] == 1


async def test_of_ten_different_approvals_at_once_exactly_one_counts(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard"), note("b", "guard")))
    card = await sagas.waiting(handle)

    answers = await asyncio.gather(
        *(sagas.update(handle, "decide", approval(card, step_id="a", decision_id=f"d{number}")) for number in range(10))
    )

    assert sum(answer.accepted for answer in answers) == 1
    assert {answer.error.code for answer in answers if answer.error} == {Reason.DECISION_LATE}


async def test_messages_that_come_to_nothing_are_bounded_each_word_by_itself(
    sagas: Sagas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "REFUSALS_MAX", 2)
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)
    for number in range(2):
        await sagas.update(handle, "decide", approval(card, plan_digest="0" * 64, decision_id=f"d{number}"))

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await sagas.update(handle, "decide", approval(card))
    await handle.signal("decide", approval(card))  # dropped
    denied = await sagas.update(handle, "decide", approval(card, "deny"))

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == Reason.RATE_LIMITED
    assert "backstay sweep" in str(refused.value.cause)
    assert denied.accepted
    assert outcome(await sagas.result(handle)) == ("NOT_APPLIED", "denied")


@pytest.mark.parametrize("changes", [{"reason": "a\x00b"}, {"step_id": "a\x00"}, {"step_id": "../a"}], ids=repr)
async def test_what_no_table_holds_is_no_message_and_wedges_nothing(sagas: Sagas, changes: dict[str, str]) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)

    await handle.signal("decide", approval(card, **changes))
    with pytest.raises(WorkflowUpdateFailedError):
        await sagas.update(handle, "decide", approval(card, **changes))
    answer = await sagas.update(handle, "decide", approval(card))

    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_evidence_that_no_table_holds_is_refused_and_the_intent_stays_resolvable(sagas: Sagas) -> None:
    sagas.behaviour.refuse("no")
    sagas.behaviour.refuse("undo:a")
    handle = await sagas.start(request(note("a"), note("no")))
    await sagas.waiting(handle)

    await handle.signal("resolve", {**resolution("skip", "a"), "evidence": "a\x00b"})
    answer = await sagas.update(handle, "resolve", resolution("skip", "a"))

    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "refused")


async def test_an_approver_is_not_the_agent_in_other_letters(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)

    answer = await sagas.update(handle, "decide", approval(card, approver="AGENT"))

    assert not answer.accepted


# --- out of place ------------------------------------------------------------------------------------------------


async def test_a_resolution_of_an_intent_that_is_not_parked_is_refused(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    await sagas.waiting(handle)

    answer = await sagas.update(handle, "resolve", resolution("close"))

    assert not answer.accepted
    assert "not parked" in answer.message


async def test_an_agent_cannot_approve_its_own_intent(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)

    answer = await sagas.update(handle, "decide", approval(card, approver="agent"))

    assert not answer.accepted
    assert answer.error is not None
    assert answer.error.code is Reason.NOT_ALLOWED


async def attributes(handle: Handle) -> dict[str, Any]:
    """Read our own search attributes of a run."""
    pairs: Any = (await handle.describe()).typed_search_attributes
    return {pair.key.name: pair.value for pair in pairs if pair.key.name.startswith("Backstay")}


# --- what people see ---------------------------------------------------------------------------------------------


async def test_the_card_in_temporals_own_ui_can_be_pasted_back(sagas: Sagas) -> None:
    handle = await sagas.start(request(*freeze_and_debit(1_500_000)))
    await sagas.waiting(handle)

    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    block = metadata.current_details.split("```json\n")[1].split("```")[0]
    pasted = block.replace("choose-one", "d1").replace("your-name", "approver")
    answer = await sagas.update(handle, "decide", raw(pasted.encode()))

    assert "freeze_account_funds@1" in metadata.current_details
    assert answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_a_waiting_saga_can_be_found_by_its_search_attributes(sagas: Sagas) -> None:
    handle = await sagas.start(request(*freeze_and_debit(1_500_000)))
    await sagas.waiting(handle)

    assert await attributes(handle) == {
        saga.SEARCH_STATE: "AWAITING_APPROVAL",
        saga.SEARCH_TENANT: "bank",
        saga.SEARCH_AGENT: "agent",
        saga.SEARCH_RISK: "L4",
        saga.SEARCH_TOOLS: ["debit_frozen_funds@1", "freeze_account_funds@1"],
    }


async def test_a_finished_saga_says_its_outcome_as_a_search_attribute(sagas: Sagas) -> None:
    await sagas.run(note("a"))

    assert (await attributes(sagas.handles[0]))[saga.SEARCH_STATE] == "COMMITTED"


async def test_status_tells_a_finished_saga_as_its_result_does(sagas: Sagas) -> None:
    envelope = await sagas.run(note("a"))

    asked = await sagas.status(sagas.handles[0])

    assert (asked.data, asked.error, asked.status_code) == (envelope.data, envelope.error, envelope.status_code)
