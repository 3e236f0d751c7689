"""Sagas on the real Temporal server and the real PostgreSQL: outcome and tables agree, whoever says what and when.

Processes that are really killed are in tests/faults; messages that come wrong, twice or too early in test_messages.py.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from contracts.envelope import Envelope, IntentReport
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.risk import Policy
from tests.support.sagas import (
    LARGE_CENTS,
    Handle,
    Sagas,
    approval,
    cancellation,
    events,
    freeze_and_debit,
    outcome,
    request,
    reset,
    resolution,
    serve,
    states,
)
from tests.support.samples import look, note

pytestmark = pytest.mark.filterwarnings("default:Cannot find activity to cancel")  # of the SDK, when one timed out
Serve = Callable[..., AbstractAsyncContextManager[Sagas]]
DOORS = ("update", "signal")


@pytest.fixture
def serving(temporal_client: Client, database_url: str, task_queue: str) -> Serve:
    return partial(serve, temporal_client, database_url, task_queue)


@pytest.fixture
async def sagas(serving: Serve) -> AsyncGenerator[Sagas]:
    async with serving() as served:
        yield served


async def say(sagas: Sagas, handle: Handle, door: str, name: str, message: dict[str, object]) -> None:
    """Send a message by one of the two doors; an update has to be accepted."""
    if door == "signal":
        await handle.signal(name, message)
        return
    answer = await sagas.update(handle, name, message)
    assert answer.accepted, answer.message


def transient(count: int = 2) -> list[SagaError]:
    """As many hiccups as local attempts, so that the step goes on as an ordinary activity."""
    return [SagaError(Reason.IN_PROGRESS, "come back") for _ in range(count)]


# --- forward ---------------------------------------------------------------------------------------------------


async def test_freeze_then_debit_commits_in_one_task_and_ten_events(sagas: Sagas) -> None:
    envelope = await sagas.run(*freeze_and_debit())

    kinds = await events(sagas.handles[0])
    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.effects(envelope) == {"freeze": "LANDED", "debit": "LANDED"}
    assert len(kinds) == 10
    assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED) == 1
    assert sagas.one("select count(*) as n from backstay.audit_log")["n"] == 4


async def test_a_binding_carries_one_steps_output_into_the_next(sagas: Sagas) -> None:
    bound = note("b", text={"$from": "r.text"})

    envelope = await sagas.run(note("a"), look("r"), bound)

    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.notes() == {"a": True, "1 notes": True}


async def test_transaction_ids_are_those_of_the_rows_and_of_the_business(sagas: Sagas) -> None:
    envelope = await sagas.run(note("a"))

    (step,) = (envelope.data or {})["steps"]
    assert step["transaction_id"] == sagas.one("select transaction_id from samples.notes")["transaction_id"]
    assert step["transaction_id"] == sagas.one("select transaction_id from backstay.effects")["transaction_id"]


async def test_hiccups_move_a_step_from_local_attempts_to_an_ordinary_activity_with_the_same_key(sagas: Sagas) -> None:
    sagas.behaviour.fail("a", *transient())

    envelope = await sagas.run(note("a"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.behaviour.calls["a"] == 3
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED in await events(sagas.handles[0])
    assert sagas.notes() == {"a": True}


# --- failure ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusing", ["a", "b", "c"])
async def test_a_refusal_compensates_what_landed_before_it(sagas: Sagas, refusing: str) -> None:
    sagas.behaviour.refuse(refusing)

    envelope = await sagas.run(note("a"), note("b"), note("c"))

    assert outcome(envelope) == ("COMPENSATED" if refusing != "a" else "NOT_APPLIED", "refused")
    assert set(sagas.effects(envelope).values()) <= {"COMPENSATED"}
    assert not any(sagas.notes().values())
    assert states(envelope)[refusing] == "REFUSED"
    assert envelope.error is not None
    assert (envelope.error.code, envelope.status_code) == (Reason.WRONG_STATE, 409)


async def test_a_refusal_by_an_ordinary_activity_compensates_as_one_by_a_local_activity_does(sagas: Sagas) -> None:
    sagas.behaviour.fail("b", *transient())
    sagas.behaviour.refuse("b")

    envelope = await sagas.run(note("a"), note("b"))

    assert EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED in await events(sagas.handles[0])
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert envelope.error is not None
    assert envelope.error.details == {"step": "b"}


async def test_a_step_whose_attempts_run_out_turns_the_saga_back(sagas: Sagas) -> None:
    sagas.behaviour.fail("b", *transient(4))

    envelope = await sagas.run(note("a"), note("b"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert envelope.error is not None
    assert envelope.error.code is Reason.IN_PROGRESS
    assert sagas.behaviour.calls["b"] == 4  # two local attempts, then as many as its contract allows


async def test_a_bug_in_a_handler_leaves_nothing_and_says_nothing_of_its_text(sagas: Sagas) -> None:
    sagas.behaviour.fail("b", *[ValueError("secret=hunter2") for _ in range(4)], moment="after")

    envelope = await sagas.run(note("a"), note("b"))

    history = (await sagas.handles[0].fetch_history()).to_json()
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert sagas.notes() == {"a": False}
    assert "hunter2" not in history + envelope.model_dump_json()


async def test_what_a_compensation_could_not_restore_is_in_the_envelope(sagas: Sagas) -> None:
    sagas.behaviour.refuse("b")
    sagas.behaviour.leave("undo:a", "the ink stays")

    envelope = await sagas.run(note("a"), note("b"))

    assert [step["residue"] for step in (envelope.data or {})["steps"]] == ["the ink stays", None]


async def test_a_step_after_the_deadline_does_not_land(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)
    sagas.rows("update backstay.intents set deadline_at = now() - interval '1 second'")

    await sagas.update(handle, "decide", approval(card))

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("NOT_APPLIED", "deadline")
    assert sagas.notes() == {}


async def test_a_kill_switch_thrown_while_people_are_awaited_stops_the_step(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)
    sagas.rows("insert into backstay.kill_switches values ('tool', 'guard_sample_note', 'drill', 'tester')")

    await sagas.update(handle, "decide", approval(card))

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("NOT_APPLIED", "refused")
    assert envelope.error is not None
    assert envelope.error.code is Reason.KILL_SWITCH_ON


# --- decisions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
async def test_a_large_amount_waits_holds_nothing_and_runs_when_approved(sagas: Sagas, door: str) -> None:
    handle = await sagas.start(request(*freeze_and_debit(LARGE_CENTS)))
    card = await sagas.waiting(handle)
    held = sagas.one("select count(*) as n from ledger.holds")["n"]

    await say(sagas, handle, door, "decide", approval(card))

    envelope = await sagas.result(handle)
    assert held == 0
    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.one("select count(*) as n from backstay.approval_consumptions")["n"] == 2


@pytest.mark.parametrize("door", DOORS)
async def test_a_denied_intent_does_nothing(sagas: Sagas, door: str) -> None:
    handle = await sagas.start(request(note("a"), note("b", "guard")))
    card = await sagas.waiting(handle)

    await say(sagas, handle, door, "decide", approval(card, "deny"))

    envelope = await sagas.result(handle)
    assert (outcome(envelope), envelope.status_code) == (("NOT_APPLIED", "denied"), 403)
    assert sagas.notes() == {}


async def test_a_denial_after_an_approval_that_is_not_spent_turns_the_saga_back(sagas: Sagas) -> None:
    sagas.behaviour.fail("a", *transient())
    gate = sagas.behaviour.hold("a", "outside")
    handle = await sagas.start(request(note("a"), note("b", "guard")))
    card = await sagas.waiting(handle)
    await sagas.update(handle, "decide", approval(card))
    await gate.arrived()

    answer = await sagas.update(handle, "decide", approval(card, "deny"))
    gate.open()

    envelope = await sagas.result(handle)
    assert answer.accepted
    assert outcome(envelope) == ("COMPENSATED", "denied")
    assert sagas.notes() == {"a": False}


async def test_nobody_decides_in_time(serving: Serve) -> None:
    async with serving(Policy(approval_expiry_seconds=1)) as sagas:
        envelope = await sagas.run(note("a", "guard"))

    assert (outcome(envelope), envelope.status_code) == (("NOT_APPLIED", "expired"), 403)


async def test_an_approval_that_is_too_old_when_the_step_runs_does_not_count(serving: Serve) -> None:
    async with serving(Policy(approval_valid_seconds=0)) as sagas:
        handle = await sagas.start(request(note("a", "guard")))
        await sagas.update(handle, "decide", approval(await sagas.waiting(handle)))
        envelope = await sagas.result(handle)

    assert envelope.error is not None
    assert envelope.error.code is Reason.APPROVAL_MISSING
    assert sagas.notes() == {}


# --- cancel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", [*DOORS, "temporal"])
async def test_a_cancel_while_people_are_awaited_ends_it_with_nothing_done(sagas: Sagas, door: str) -> None:
    handle = await sagas.start(request(note("a", "guard")))
    await sagas.waiting(handle)

    if door == "temporal":
        await handle.cancel()
    else:
        await say(sagas, handle, door, "cancel", cancellation())

    envelope = await sagas.result(handle)
    assert (outcome(envelope), envelope.status_code) == (("NOT_APPLIED", "cancelled"), 409)


@pytest.mark.parametrize("door", [*DOORS, "temporal"])
async def test_a_cancel_while_a_step_runs_waits_for_it_and_compensates_it(sagas: Sagas, door: str) -> None:
    sagas.behaviour.fail("a", *transient())
    gate = sagas.behaviour.hold("a", "outside")
    handle = await sagas.start(request(note("a"), note("b")))
    await gate.arrived()

    if door == "temporal":
        await handle.cancel()
    else:
        await say(sagas, handle, door, "cancel", cancellation())
    gate.open()

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMPENSATED", "cancelled")
    assert sagas.notes() == {"a": False}
    assert sagas.behaviour.calls["b"] == 0


@pytest.mark.parametrize("door", ["signal", "temporal"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_cancel_inside_a_task_leaves_outcome_and_tables_in_agreement(
    sagas: Sagas, door: str, moment: str
) -> None:
    gate = sagas.behaviour.hold("b", "before" if moment == "before" else "after")
    handle = await sagas.start(request(note("a"), note("b")))
    await gate.arrived()

    if door == "temporal":
        await handle.cancel()
    else:
        await handle.signal("cancel", cancellation())
    gate.open()

    envelope = await sagas.result(handle)
    stands = outcome(envelope)[0] == "COMMITTED"
    assert sagas.notes() == {"a": stands, "b": stands}
    assert set(sagas.effects(envelope).values()) == {"LANDED" if stands else "COMPENSATED"}


async def test_a_cancel_before_the_first_task_ends_with_nothing_done(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("a")), start_signal="cancel", start_signal_args=[cancellation()])

    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("NOT_APPLIED", "cancelled")
    assert sagas.behaviour.calls["a"] == 0


async def test_a_cancel_while_compensating_changes_nothing(sagas: Sagas) -> None:
    sagas.behaviour.refuse("b")
    sagas.behaviour.fail("undo:a", *transient())
    gate = sagas.behaviour.hold("undo:a", "outside")
    handle = await sagas.start(request(note("a"), note("b")))
    await gate.arrived()

    answer = await sagas.update(handle, "cancel", cancellation())
    await handle.cancel()
    gate.open()

    assert not answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "refused")


# --- parked ----------------------------------------------------------------------------------------------------


async def parked(sagas: Sagas) -> tuple[Handle, Envelope]:
    """A saga whose second compensation was refused."""
    sagas.behaviour.refuse("c")
    sagas.behaviour.refuse("undo:b")
    handle = await sagas.start(request(note("a"), note("b"), note("c")))
    return handle, await sagas.waiting(handle)


@pytest.mark.situation(7)
async def test_a_refused_compensation_parks_and_the_steps_before_it_wait(sagas: Sagas) -> None:
    _, envelope = await parked(sagas)

    assert (outcome(envelope)[0], envelope.status_code, envelope.exit_code) == ("PARKED", 202, 4)
    assert states(envelope) == {"a": "DONE", "b": "PARKED", "c": "REFUSED"}
    assert sagas.notes() == {"a": True, "b": True}
    assert sagas.intent(envelope)["parked_reason"] == "COMPENSATION_REFUSED"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("verb", ["retry", "skip", "done"])
async def test_an_operator_resolves_a_parked_compensation(sagas: Sagas, verb: str, door: str) -> None:
    handle, _ = await parked(sagas)
    sagas.behaviour.allow("undo:b")

    await say(sagas, handle, door, "resolve", resolution(verb, "b"))

    envelope = await sagas.result(handle)
    residues = {step["step_id"]: step["residue"] for step in (envelope.data or {})["steps"]}
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert residues["b"] == ("not restored: looked at it" if verb == "skip" else None)
    assert sagas.notes() == {"a": False, "b": verb != "retry"}


async def test_a_retry_that_is_refused_again_parks_again(sagas: Sagas) -> None:
    handle, _ = await parked(sagas)

    await sagas.update(handle, "resolve", resolution("retry", "b", resolution_id="first"))
    await sagas.waiting(
        handle, lambda envelope: sagas.behaviour.calls["undo:b"] == 2 and outcome(envelope)[0] == "PARKED"
    )
    answer = await sagas.update(handle, "resolve", resolution("retry", "b", resolution_id="first"))

    assert answer.accepted  # the same resolution again: taken before, and nothing happens
    assert outcome(await sagas.status(handle))[0] == "PARKED"
    assert sagas.behaviour.calls["undo:b"] == 2


async def test_a_verb_that_is_not_offered_is_refused_with_those_that_are(sagas: Sagas) -> None:
    handle, _ = await parked(sagas)

    answer = await sagas.update(handle, "resolve", resolution("forward"))

    assert not answer.accepted
    assert answer.error is not None
    assert answer.error.details == {"offered": {"b": ["done", "retry", "skip"]}}


@pytest.mark.situation(11)
async def test_a_step_that_refuses_after_the_pivot_parks_and_goes_forward_when_told_to(sagas: Sagas) -> None:
    sagas.behaviour.refuse("b")
    handle = await sagas.start(request(note("a", "seal"), note("b", "keep")))
    card = await sagas.waiting(handle)
    close = await sagas.update(handle, "resolve", resolution("close"))
    sagas.behaviour.allow("b")

    await sagas.update(handle, "resolve", resolution("forward", resolution_id="r2"))

    envelope = await sagas.result(handle)
    assert sagas.intent(card)["parked_reason"] is None
    assert not close.accepted
    assert outcome(envelope) == ("COMMITTED", "none")
    assert sagas.notes() == {"a": True, "b": True}


async def test_a_kill_switch_met_after_the_pivot_is_waited_out(sagas: Sagas) -> None:
    handle = await sagas.start(request(note("g", "guard"), note("a", "seal"), note("b", "keep")))
    card = await sagas.waiting(handle)
    sagas.rows("insert into backstay.kill_switches values ('tool', 'keep_sample_note', 'drill', 'tester')")
    await sagas.update(handle, "decide", approval(card))

    def switched_off(envelope: Envelope) -> bool:
        steps = IntentReport.model_validate(envelope.data).steps
        return any(step.error and step.error.code is Reason.KILL_SWITCH_ON for step in steps)

    seen = await sagas.waiting(handle, switched_off)
    cancelled = await sagas.update(handle, "cancel", cancellation())
    sagas.rows("delete from backstay.kill_switches")

    assert states(seen) == {"g": "DONE", "a": "DONE", "b": "EXECUTING"}
    assert not cancelled.accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


# --- runs that end from outside ----------------------------------------------------------------------------------


async def test_two_starts_under_two_ids_are_one_intent(sagas: Sagas) -> None:
    body = request(note("a"))
    first = await sagas.result(await sagas.start(body))

    second = await sagas.result(await sagas.start(body))

    assert outcome(second) == ("COMMITTED", "none")
    assert (second.meta.duplicate, second.meta.duplicate_of) == (True, first.meta.intent_id)
    assert sagas.notes() == {"a": True}
    assert sagas.behaviour.calls["a"] == 1


async def test_a_second_start_while_the_first_waits_is_told_whose_it_is_and_writes_nothing(sagas: Sagas) -> None:
    body = request(note("a", "guard"))
    first = await sagas.start(body)
    card = await sagas.waiting(first)

    second = await sagas.result(await sagas.start(body))
    await sagas.update(first, "decide", approval(card))

    assert (second.status_code, second.meta.duplicate_of) == (202, card.meta.intent_id)
    assert outcome(await sagas.result(first)) == ("COMMITTED", "none")


@pytest.mark.parametrize("verb", ["close", "forward"])
async def test_a_terminated_run_is_adopted_by_the_next_one_and_waits_for_an_operator(sagas: Sagas, verb: str) -> None:
    body = request(note("a"), note("b"))
    sagas.behaviour.fail("b", *transient())
    gate = sagas.behaviour.hold("b")
    first = await sagas.start(body, workflow_id="same")
    await gate.arrived()
    await first.terminate()
    gate.open()

    second = await sagas.start(body, workflow_id="same")
    card = await sagas.waiting(second)
    await sagas.update(second, "resolve", resolution(verb))

    envelope = await sagas.result(second)
    assert sagas.intent(card)["epoch"] == 2
    assert outcome(envelope) == (("COMPENSATED", "interrupted") if verb == "close" else ("COMMITTED", "none"))
    assert sagas.notes() == ({"a": False} if verb == "close" else {"a": True, "b": True}) or verb == "close"
    assert set(sagas.effects(envelope).values()) == {"COMPENSATED" if verb == "close" else "LANDED"}


@pytest.mark.parametrize("task", ["first", "last"])
async def test_a_reset_run_adopts_its_intent_and_parks_it_and_repeats_no_effect(sagas: Sagas, task: str) -> None:
    sagas.behaviour.refuse("c")
    sagas.behaviour.refuse("undo:b")
    handle = await sagas.start(request(note("a"), note("b"), note("c")))
    card = await sagas.waiting(handle)

    again = await reset(sagas, handle, task)
    if task == "last":  # it rests where it was, and learns from the next message that it owns nothing
        assert not (await sagas.update(again, "resolve", resolution("retry", "b"))).accepted
    await sagas.waiting(again, lambda _: sagas.intent(card)["parked_reason"] == "INTERRUPTED")
    sagas.behaviour.allow("undo:b")
    await sagas.update(again, "resolve", resolution("close", resolution_id="r2"))

    envelope = await sagas.result(again)
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert sagas.notes() == {"a": False, "b": False}
    assert (sagas.behaviour.calls["a"], sagas.behaviour.calls["b"]) == (1, 1)


async def test_a_reset_of_a_run_that_committed_answers_the_stored_outcome(sagas: Sagas) -> None:
    first = await sagas.run(note("a"))

    again = await sagas.result(await reset(sagas, sagas.handles[0], "first"))

    assert outcome(again) == ("COMMITTED", "none")
    assert (again.data or {})["steps"] == (first.data or {})["steps"]
    assert sagas.behaviour.calls["a"] == 1


# --- how a run ends ----------------------------------------------------------------------------------------------


async def test_a_rejection_that_may_be_retried_fails_the_run_and_the_same_id_may_start_again(sagas: Sagas) -> None:
    sagas.rows("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")
    body = request(note("a"))
    first = await sagas.start(body, workflow_id="same")
    with pytest.raises(WorkflowFailureError) as failed:
        await sagas.result(first)
    claims = sagas.one("select count(*) as n from backstay.intents")["n"]
    sagas.rows("delete from backstay.kill_switches")

    second = await sagas.start(
        body, workflow_id="same", id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
    )

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == Reason.KILL_SWITCH_ON
    assert Envelope.model_validate(failed.value.cause.details[0]).status_code == 503
    assert claims == 0
    assert outcome(await sagas.result(second)) == ("COMMITTED", "none")


async def test_a_final_rejection_completes_the_run_and_the_same_id_may_not_start_again(sagas: Sagas) -> None:
    body = request(note("a", book_id="B00000003"))
    envelope = await sagas.result(await sagas.start(body, workflow_id="same"))

    with pytest.raises(WorkflowAlreadyStartedError):
        await sagas.start(body, workflow_id="same", id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY)

    assert (outcome(envelope), envelope.status_code) == (("NOT_APPLIED", "rejected"), 403)
    assert envelope.error is not None
    assert envelope.error.code is Reason.NOT_OWNER


@pytest.mark.parametrize(
    ("steps", "cause"),
    [([note("a"), note("b")], "none"), ([note("a"), note("x")], "refused")],
    ids=["committed", "compensated"],
)
async def test_a_run_completes_with_an_envelope_whatever_the_outcome(
    sagas: Sagas, steps: list[dict[str, object]], cause: str
) -> None:
    sagas.behaviour.refuse("x")

    envelope = await sagas.run(*steps)

    kinds = await events(sagas.handles[0])
    assert kinds[-1] == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
    assert outcome(envelope)[1] == cause
