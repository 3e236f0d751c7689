"""Repeats at the front door: one intent is one saga, whoever posts it how often, and whatever Temporal remembers."""

import asyncio
import json
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from contracts.envelope import Envelope
from contracts.intent import IntentRequest
from contracts.reasons import Reason
from tests.support.house import ANNA, BEN, BENS, GATED_CENTS, House, freeze_and_debit, session, until
from worker.door import Door


def code_of(envelope: Envelope) -> Reason | None:
    return envelope.error.code if envelope.error else None


def outcome_of(envelope: Envelope) -> str | None:
    return (envelope.data or {}).get("outcome")


async def forget(home: House, workflow_id: str) -> None:
    """Let Temporal forget a workflow, as it does after its retention time."""
    await home.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace="default", workflow_execution=WorkflowExecution(workflow_id=workflow_id)
        )
    )
    async with asyncio.timeout(90):
        while await has_run(home.client, workflow_id):  # noqa: ASYNC110 - Temporal tells nobody when it forgets
            await asyncio.sleep(0.05)


async def has_run(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        return error.status is not RPCStatusCode.NOT_FOUND
    return True


async def test_concurrent_identical_posts_are_one_saga(home: House) -> None:
    body = freeze_and_debit(session())

    answers = await asyncio.gather(*(home.door.post(body, ANNA) for _ in range(12)))

    assert {(answer.status_code, outcome_of(answer)) for answer in answers} == {(200, "COMMITTED")}
    assert len({answer.meta.intent_id for answer in answers}) == 1
    assert sum(not answer.meta.duplicate for answer in answers) == 1
    assert home.effect_count(answers[0]) == 2


async def test_a_repeat_within_the_window_gets_the_stored_outcome(home: House) -> None:
    body = freeze_and_debit(session())

    first = await home.door.post(body, ANNA)
    second = await home.door.post(body, ANNA)

    assert second.data == first.data
    assert second.meta.duplicate
    assert second.meta.duplicate_of == first.meta.intent_id


async def test_key_order_and_spaces_make_no_other_intent(home: House) -> None:
    body = freeze_and_debit(session())
    first = await home.door.post(body, ANNA)

    again = await home.door.post(json.dumps(json.loads(body), indent=3, sort_keys=True).encode(), ANNA)

    assert (again.meta.intent_id, again.meta.duplicate) == (first.meta.intent_id, True)


async def test_a_plain_repeat_after_the_window_must_say_its_occurrence(home: House) -> None:
    theirs = session()
    first = await home.door.post(freeze_and_debit(theirs), ANNA)
    home.age(first)

    plain = await home.door.post(freeze_and_debit(theirs), ANNA)
    said = await home.door.post(freeze_and_debit(theirs, occurrence=2), ANNA)

    assert (plain.status_code, code_of(plain)) == (409, Reason.OCCURRENCE_REQUIRED)
    assert plain.error is not None
    assert plain.error.details["intent_id"] == first.meta.intent_id
    assert plain.error.details["occurrence"] == 2
    assert said.meta.intent_id != first.meta.intent_id
    assert not said.meta.duplicate


async def test_the_next_occurrence_has_to_wait_for_the_one_before(home: House) -> None:
    theirs = session()
    await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)

    early = await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS, occurrence=2), ANNA)

    assert (early.status_code, code_of(early)) == (409, Reason.OCCURRENCE_NOT_READY)


async def test_the_same_explicit_key_always_replays(home: House) -> None:
    body, key = freeze_and_debit(session()), session()
    first = await home.door.post(body, ANNA, idempotency_key=key)
    home.age(first)

    again = await home.door.post(body, ANNA, idempotency_key=key)

    assert (again.data, again.meta.duplicate) == (first.data, True)


async def test_a_new_explicit_key_of_a_repeat_names_the_intent_from_then_on(home: House) -> None:
    body, key = freeze_and_debit(session()), session()
    first = await home.door.post(body, ANNA)

    repeat = await home.door.post(body, ANNA, idempotency_key=key)
    home.age(first)
    later = await home.door.post(body, ANNA, idempotency_key=key)

    assert (repeat.meta.duplicate, later.meta.duplicate) == (True, True)
    assert later.data == first.data


async def test_a_new_explicit_key_after_the_window_is_refused_and_not_kept(home: House) -> None:
    body, key = freeze_and_debit(session()), session()
    home.age(await home.door.post(body, ANNA))

    for _ in range(2):
        assert code_of(await home.door.post(body, ANNA, idempotency_key=key)) is Reason.OCCURRENCE_REQUIRED
    other = await home.door.post(freeze_and_debit(session()), ANNA, idempotency_key=key)

    assert outcome_of(other) == "COMMITTED"


async def test_an_explicit_key_names_one_intent(home: House) -> None:
    key = session()
    await home.door.post(freeze_and_debit(session()), ANNA, idempotency_key=key)

    other = await home.door.post(freeze_and_debit(session()), ANNA, idempotency_key=key)

    assert (other.status_code, code_of(other)) == (422, Reason.KEY_REUSED)


async def test_an_explicit_key_of_another_principal_is_another_key(home: House) -> None:
    key = session()
    annas = await home.door.post(freeze_and_debit(session()), ANNA, idempotency_key=key)

    bens = await home.door.post(freeze_and_debit(session(), account=BENS), BEN, idempotency_key=key)

    assert (outcome_of(annas), outcome_of(bens), bens.meta.duplicate) == ("COMMITTED", "COMMITTED", False)


@pytest.mark.situation(5)
@pytest.mark.parametrize("amount_cents", [500, GATED_CENTS])
async def test_other_arguments_under_one_key_are_refused(home: House, amount_cents: int) -> None:
    theirs = session()
    await home.door.post(freeze_and_debit(theirs, amount_cents=amount_cents, business_reference="INV-1"), ANNA)

    other = await home.door.post(freeze_and_debit(theirs, amount_cents=amount_cents, business_reference="INV-2"), ANNA)

    assert (other.status_code, code_of(other)) == (422, Reason.KEY_REUSED)


async def test_other_arguments_are_refused_also_before_admission(idle_home: House) -> None:
    theirs = session()
    first = await idle_home.door.post(freeze_and_debit(theirs, business_reference="INV-1"), ANNA, wait_seconds=0)

    same = await idle_home.door.post(freeze_and_debit(theirs, business_reference="INV-1"), ANNA, wait_seconds=0)
    other = await idle_home.door.post(freeze_and_debit(theirs, business_reference="INV-2"), ANNA, wait_seconds=0)

    assert (same.status_code, same.meta.duplicate, same.meta.intent_id) == (202, True, first.meta.intent_id)
    assert code_of(other) is Reason.KEY_REUSED


async def test_a_reference_of_the_harness_makes_another_intent(home: House) -> None:
    theirs = session()

    one = await home.door.post(freeze_and_debit(theirs), ANNA, business_reference="INV-1")
    two = await home.door.post(freeze_and_debit(theirs), ANNA, business_reference="INV-2")

    assert one.meta.intent_id != two.meta.intent_id
    assert (outcome_of(one), outcome_of(two)) == ("COMMITTED", "COMMITTED")


async def test_what_left_nothing_behind_may_be_tried_again(home: House) -> None:
    theirs = session()
    first = await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)
    assert first.meta.intent_id is not None
    await home.door.messages.decide(ANNA.tenant, first.meta.intent_id, "deny", approver="carl")
    body = freeze_and_debit(theirs, amount_cents=GATED_CENTS, retry_of=first.meta.intent_id)

    again = await home.door.post(body, ANNA)
    repeat = await home.door.post(body, ANNA)

    assert again.status_code == 202
    assert home.intent(again)["attempt"] == 2
    assert not again.meta.duplicate
    assert (repeat.meta.intent_id, repeat.meta.duplicate) == (again.meta.intent_id, True)


async def test_what_committed_may_not_be_tried_again(home: House) -> None:
    theirs = session()
    first = await home.door.post(freeze_and_debit(theirs), ANNA)

    again = await home.door.post(freeze_and_debit(theirs, retry_of=first.meta.intent_id), ANNA)

    assert (again.status_code, code_of(again)) == (409, Reason.RETRY_NOT_ALLOWED)


async def test_only_ones_own_intents_can_be_tried_again(home: House) -> None:
    first = await home.door.post(freeze_and_debit(session()), ANNA)

    unknown = await home.door.post(freeze_and_debit(session(), retry_of=f"int_{'a' * 26}"), ANNA)
    neighbours = await home.door.post(freeze_and_debit(session(), account=BENS, retry_of=first.meta.intent_id), BEN)

    assert (unknown.status_code, code_of(unknown)) == (404, Reason.INTENT_NOT_FOUND)
    assert code_of(neighbours) is Reason.INTENT_NOT_FOUND


class ForgetfulClient:
    """A client of a Temporal that has forgotten every closed run, as it does after the retention time."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start_workflow(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever a client takes
        named["id_reuse_policy"] = WorkflowIDReusePolicy.ALLOW_DUPLICATE
        return await self._client.start_workflow(*arguments, **named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the rest is the client's
        return getattr(self._client, name)


async def test_an_outcome_outlives_temporals_memory_and_so_does_the_window(home: House) -> None:
    body = freeze_and_debit(session())
    first = await home.door.post(body, ANNA)
    forgetful: Any = ForgetfulClient(home.client)

    async with Door.of(forgetful, home.engine, home.settings) as door:
        within = await door.post(body, ANNA)
        home.age(first)
        later = await door.post(body, ANNA)

    assert (within.data, within.meta.duplicate) == (first.data, True)
    assert code_of(later) is Reason.OCCURRENCE_REQUIRED
    assert (home.intent(first)["epoch"], home.effect_count(first)) == (1, 2)


@pytest.mark.situation(17)
@pytest.mark.slow
async def test_a_post_after_temporal_really_forgot_gets_the_stored_outcome(home: House) -> None:
    body = freeze_and_debit(session())
    first = await home.door.post(body, ANNA)
    assert first.meta.intent_id is not None

    await forget(home, first.meta.intent_id)
    again = await home.door.post(body, ANNA)

    assert (again.data, again.meta.duplicate, home.effect_count(first)) == (first.data, True, 2)


async def test_the_window_holds_for_raw_starts_under_other_ids_too(home: House) -> None:
    theirs = session()
    first = await home.door.post(freeze_and_debit(theirs), ANNA)
    request = IntentRequest(caller=ANNA, intent=json.loads(freeze_and_debit(theirs)))

    async def start(name: str) -> Envelope:
        answer: Envelope = await home.client.execute_workflow(
            "IntentWorkflow", request, id=name, task_queue=home.settings.task_queue, result_type=Envelope
        )
        return answer

    within = await start(session())
    home.age(first)
    with pytest.raises(WorkflowFailureError) as later:
        await start(session())

    assert (within.meta.duplicate, within.meta.duplicate_of) == (True, first.meta.intent_id)
    assert isinstance(later.value.cause, ApplicationError)
    assert later.value.cause.type == Reason.OCCURRENCE_REQUIRED


async def test_a_post_joins_an_intent_that_a_raw_start_owns(home: House) -> None:
    theirs = session()
    request = IntentRequest(caller=ANNA, intent=json.loads(freeze_and_debit(theirs, amount_cents=GATED_CENTS)))
    raw = await home.client.start_workflow(
        "IntentWorkflow", request, id=session(), task_queue=home.settings.task_queue, result_type=Envelope
    )
    await until(lambda: home.rows("select 1 from backstay.intents where session_id = %s", theirs))

    joined = await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)
    assert joined.meta.intent_id is not None
    await home.door.messages.decide(ANNA.tenant, joined.meta.intent_id, "approve", approver="carl")
    finished = await raw.result()
    again = await home.door.post(freeze_and_debit(theirs, amount_cents=GATED_CENTS), ANNA)

    assert (joined.status_code, joined.meta.duplicate) == (202, True)
    assert (outcome_of(finished), again.data) == ("COMMITTED", finished.data)
    assert again.meta.duplicate


async def test_a_post_of_an_intent_whose_run_was_terminated_finds_it_parked(home: House) -> None:
    body = freeze_and_debit(session(), amount_cents=GATED_CENTS)
    first = await home.door.post(body, ANNA)
    assert first.meta.intent_id is not None
    await home.client.get_workflow_handle(first.meta.intent_id).terminate("by a test")

    again = await home.door.post(body, ANNA)

    assert (again.status_code, outcome_of(again), again.exit_code) == (202, "PARKED", 4)
    assert again.meta.duplicate
    assert home.intent(first)["epoch"] == 2
