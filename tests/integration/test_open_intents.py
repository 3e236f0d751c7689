"""Open intents on real servers: steps are added as the agent learns, and every way out leaves whole or nothing."""

import asyncio
import uuid
from collections.abc import AsyncGenerator

import pytest
from psycopg.errors import InsufficientPrivilege
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RetryConfig

from activities.adding import Adding
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.opening import WAITING_MAX, AddRequest, OpenAnswer
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.saga import Claim
from tests.support.opened import Opened, body, debit, freeze, opened
from tests.support.sagas import (
    CALLER,
    LARGE_CENTS,
    Sagas,
    outcome,
    reset,
    resolution,
    serve,
    states,
)
from tests.support.samples import look, note
from worker.check import check
from worker.messages import Messages
from worker.opening import Openings
from worker.settings import Settings
from worker.sweep import Sweep
from workflows.intent_workflow import refusal_of


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


async def test_steps_are_added_run_and_bound_to_each_other_and_commit_as_one(sagas: Sagas) -> None:
    intent = await opened(sagas)

    frozen = await intent.add(freeze())
    taken = await intent.add(debit())
    done = await intent.commit()

    assert (frozen.accepted, taken.accepted, done.accepted) == (True, True, True)
    assert frozen.step is not None
    assert frozen.step.output is not None
    assert frozen.step.output["hold_id"].startswith("H")
    assert done.outcome == "COMMITTED"
    assert outcome(await intent.result()) == ("COMMITTED", "none")
    assert intent.effects() == {"freeze": "LANDED", "debit": "LANDED"}


async def test_a_bound_amount_is_judged_and_planned_as_what_it_is(sagas: Sagas) -> None:
    intent = await opened(sagas)

    await intent.add({"step_id": "read", "tool": "check_account_balance", "arguments": {"account_id": "A00000003"}})
    answer = await intent.add(freeze({"$from": "read.available_cents"}))
    await intent.commit()

    assert answer.step is not None
    assert answer.step.applied_args is not None
    assert answer.step.applied_args["amount_cents"] == 5_000
    assert sagas.one("select plan::jsonb -> 'steps' -> 1 -> 'late' as late from backstay.intents") == {"late": []}
    assert sagas.one("select plan::jsonb #>> '{steps,1,arguments,amount_cents}' as a from backstay.intents") == {
        "a": "5000"
    }


async def test_two_clients_that_add_at_once_get_one_order_and_both_land(sagas: Sagas) -> None:
    intent = await opened(sagas)
    other = Opened(sagas, sagas.client.get_workflow_handle(intent.handle.id))

    answers = await asyncio.gather(
        *(who.add(note(f"{name}{number}")) for number in range(4) for who, name in ((intent, "mine"), (other, "yours")))
    )
    await intent.commit()

    assert [answer.accepted for answer in answers] == [True] * 8
    placed = sagas.rows("select step_id from backstay.added_steps order by position")
    assert [row["step_id"] for row in placed] == list(intent.effects())
    assert set(intent.effects().values()) == {"LANDED"}


async def test_the_same_step_twice_is_one_effect_with_one_answer(sagas: Sagas) -> None:
    intent = await opened(sagas)

    first, beside = await asyncio.gather(intent.add(note("n")), intent.add(note("n")))
    again = await intent.add(note("n"))
    await intent.add(note("m"))

    assert first.step == beside.step == again.step
    assert (first.accepted, beside.accepted, again.accepted) == (True, True, True)
    assert sagas.notes() == {"n": True, "m": True}
    assert sagas.behaviour.calls["n"] == 1
    row = sagas.one("select plan, plan_digest from backstay.intents")
    assert Plan.parse(row["plan"]).digest == row["plan_digest"]


async def test_one_update_id_is_one_answer(sagas: Sagas) -> None:
    intent = await opened(sagas)

    first = await intent.add(note("n"), id="u1")
    again = await intent.add(note("something-else"), id="u1")

    assert again == first
    assert intent.effects() == {"n": "LANDED"}


async def test_another_step_under_a_taken_id_is_refused_and_changes_nothing(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("n"))

    answer = await intent.add(note("n", memo="other"))

    assert not answer.accepted
    assert answer.error is not None
    assert answer.error.code is Reason.KEY_REUSED
    assert (await intent.commit()).outcome == "COMMITTED"
    assert sagas.notes() == {"n": True}


async def test_abort_undoes_in_reverse(sagas: Sagas) -> None:
    intent = await opened(sagas)
    for step_id in ("one", "two", "three"):
        await intent.add(note(step_id))

    answer = await intent.abort()

    assert (answer.accepted, answer.outcome) == (True, "COMPENSATED")
    assert outcome(await intent.result()) == ("COMPENSATED", "cancelled")
    assert intent.undone() == ["three", "two", "one"]


async def test_what_was_opened_and_never_used_ends_as_it_is_told(sagas: Sagas) -> None:
    aborted, committed = await opened(sagas), await opened(sagas)

    assert (await aborted.abort()).outcome == "NOT_APPLIED"
    assert (await committed.commit()).outcome == "COMMITTED"


WRONG: dict[str, tuple[JsonObject, Reason]] = {
    "an unknown tool": ({"step_id": "x", "tool": "book_sample_trip", "arguments": {}}, Reason.TOOL_UNKNOWN),
    "wrong arguments": ({**note("x"), "arguments": {"text": 7}}, Reason.ARGUMENTS_INVALID),
    "no arguments": ({"step_id": "x", "tool": "write_sample_note"}, Reason.ARGUMENTS_INVALID),
    "no step at all": ({}, Reason.ARGUMENTS_INVALID),
    "needs": ({**note("x"), "needs": []}, Reason.ARGUMENTS_INVALID),
    "a binding to nothing": (note("x", memo={"$from": "nobody.text"}), Reason.ARGUMENTS_INVALID),
    "an unsound plan": (
        {"step_id": "x", "tool": "debit_frozen_funds", "arguments": {**debit(900)["arguments"]}},
        Reason.PLAN_UNSOUND,
    ),
    "somebody else's account": ({**freeze(account="A00000002"), "step_id": "x"}, Reason.NOT_OWNER),
    "no such account": ({**freeze(account="A00000077"), "step_id": "x"}, Reason.OBJECT_NOT_FOUND),
    "too little money": ({**freeze(999, account="A00000003"), "step_id": "x"}, Reason.FUNDS_INSUFFICIENT),
    "more than the limit": ({**freeze(1_001, account="A00000003"), "step_id": "x"}, Reason.LIMIT_EXCEEDED),
    "a large amount": ({**freeze(LARGE_CENTS), "step_id": "x"}, Reason.DUTY_NOT_AVAILABLE),
    "a tool with a duty": (note("x", "guard"), Reason.DUTY_NOT_AVAILABLE),
    "what cannot be undone": (note("x", "seal"), Reason.PLAN_UNSOUND),
}


async def test_a_step_that_is_refused_at_admission_claims_nothing_and_the_next_one_may_come(sagas: Sagas) -> None:
    sagas.rows("update ledger.accounts set held_cents = 0 where account_id = 'A00000003'")
    intent = await opened(sagas)
    await intent.add(freeze())
    await intent.add({**freeze(900, account="A00000003"), "step_id": "poor"})
    await intent.add({**freeze(900, account="A00000003"), "step_id": "poorer"})
    await intent.add({**freeze(900, account="A00000003"), "step_id": "poorest"})
    await intent.add({**freeze(900, account="A00000003"), "step_id": "pauper"})
    await intent.add({**freeze(901, account="A00000003"), "step_id": "beggar"})

    said = {name: await intent.add(step) for name, (step, _) in WRONG.items()}

    reasons = {name: (answer.accepted, answer.error.code if answer.error else None) for name, answer in said.items()}
    assert reasons == {name: (False, reason) for name, (_, reason) in WRONG.items()}
    assert (await intent.add(debit())).accepted
    assert (await intent.commit()).outcome == "COMMITTED"
    assert "x" not in intent.effects()


async def test_wrong_fields_are_named_by_their_place_in_the_step(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("n"))

    answer = await intent.add({**note("x"), "arguments": {"text": 7}})

    assert answer.error is not None
    assert [problem.path for problem in answer.error.fields] == ["arguments.text"]
    assert "steps[" not in answer.message


async def test_splitting_a_large_amount_does_not_help(sagas: Sagas) -> None:
    intent = await opened(sagas)

    half = await intent.add(freeze(600_000))
    other = await intent.add({**freeze(600_001), "step_id": "more"})

    assert half.accepted
    assert other.error is not None
    assert other.error.code is Reason.DUTY_NOT_AVAILABLE
    assert "together with the steps before it" in other.message


async def test_what_another_intent_did_before_is_refused_as_a_duplicate(sagas: Sagas) -> None:
    twice = [Opened(sagas, await sagas.start(body() | {"business_reference": None})) for _ in range(2)]

    first = await twice[0].add(freeze())
    same = await twice[1].add(freeze())

    assert first.accepted
    assert same.error is not None
    assert same.error.code is Reason.POSSIBLE_DUPLICATE
    assert same.error.details["duplicate_of"] == sagas.intent(await sagas.status(twice[0].handle))["intent_id"]


async def test_a_kill_switch_refuses_the_next_step_and_not_the_intent(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    sagas.rows("insert into backstay.kill_switches values ('tool', 'write_sample_note', 'a test', 'tester')")

    answer = await intent.add(note("two"))

    assert answer.error is not None
    assert answer.error.code is Reason.KILL_SWITCH_ON
    assert (await intent.commit()).outcome == "COMMITTED"


async def test_a_step_that_its_tool_refuses_ends_the_intent_and_undoes_what_landed(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    sagas.behaviour.refuse("two")

    adding = await intent.begin_adding(note("two"))
    waiting = await intent.add(note("three"))
    answer = OpenAnswer.model_validate(await adding.result())

    assert (answer.accepted, answer.outcome) == (False, "COMPENSATED")
    assert answer.error is not None
    assert answer.error.message == "two says no."
    assert (waiting.accepted, waiting.outcome) == (False, "COMPENSATED")
    assert outcome(await intent.result()) == ("COMPENSATED", "refused")
    assert intent.effects() == {"one": "COMPENSATED"}


async def test_an_irreversible_step_comes_last_with_the_commit_and_not_otherwise(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))

    refused = await intent.add(note("seal", "seal"))
    done = await intent.commit(note("seal", "seal"))

    assert refused.error is not None
    assert "final_step" in refused.error.suggestion
    assert (done.accepted, done.outcome) == (True, "COMMITTED")
    assert intent.effects() == {"one": "LANDED", "seal": "LANDED"}


async def test_a_last_step_that_admission_refuses_leaves_the_intent_open(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))

    refused = await intent.commit(note("last", "guard"))
    done = await intent.commit(note("seal", "seal"))

    assert refused.error is not None
    assert refused.error.code is Reason.DUTY_NOT_AVAILABLE
    assert done.outcome == "COMMITTED"


async def test_a_last_step_that_its_tool_refuses_undoes_everything(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    sagas.behaviour.refuse("seal")

    done = await intent.commit(note("seal", "seal"))

    assert (done.accepted, done.outcome) == (False, "COMPENSATED")
    assert intent.effects() == {"one": "COMPENSATED"}


async def test_commit_twice_is_one_commit(sagas: Sagas) -> None:
    intent = await opened(sagas)
    gate = sagas.behaviour.hold("one")
    adding = asyncio.create_task(intent.add(note("one")))
    await gate.arrived()
    commits = [asyncio.create_task(intent.commit()) for _ in range(2)]
    gate.open()

    answers = [await each for each in (adding, *commits)]

    assert [answer.accepted for answer in answers] == [True] * 3
    assert {answer.outcome for answer in answers[1:]} == {"COMMITTED"}
    assert sagas.one("select count(*) as n from backstay.audit_log where kind = 'sealed'") == {"n": 1}


async def test_what_is_added_behind_a_commit_is_told_the_outcome(sagas: Sagas) -> None:
    intent = await opened(sagas)
    gate = sagas.behaviour.hold("one")
    adding = asyncio.create_task(intent.add(note("one")))
    await gate.arrived()
    commit = asyncio.create_task(intent.commit())
    await sagas.waiting(intent.handle, lambda _: True)
    late = asyncio.create_task(intent.add(note("two")))
    await sagas.waiting(intent.handle, lambda _: True)
    gate.open()

    answers = {(await each).outcome for each in (commit, late)}
    await adding

    assert answers == {"COMMITTED"}
    assert not (await late).accepted
    assert intent.effects() == {"one": "LANDED"}


@pytest.mark.parametrize("door", ["update", "signal", "temporal"])
async def test_a_cancel_that_meets_a_running_step_undoes_it_and_the_add_is_told(sagas: Sagas, door: str) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    gate = sagas.behaviour.hold("two")
    adding = asyncio.create_task(intent.add(note("two")))
    await gate.arrived()

    match door:
        case "update":
            await sagas.update(intent.handle, "cancel", {"requested_by": "tester"})
        case "signal":
            await intent.handle.signal("cancel", {"requested_by": "tester"})
        case _:
            await intent.handle.cancel()
    gate.open()
    answer = await adding

    assert outcome(await intent.result()) == ("COMPENSATED", "cancelled")
    heard_first = {(False, "COMPENSATED")} if door == "update" else {(False, "COMPENSATED"), (True, "PENDING")}
    assert (answer.accepted, answer.outcome) in heard_first
    assert set(intent.effects().values()) <= {"COMPENSATED", "TOMBSTONE"}
    assert not any(sagas.notes().values())


async def test_a_step_that_was_admitted_when_the_cancel_came_never_lands(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))

    answers = await asyncio.gather(*(intent.add(note(f"n{number}")) for number in range(5)), intent.handle.cancel())

    envelope = await intent.result()
    assert outcome(envelope)[0] in ("COMPENSATED", "NOT_APPLIED")
    assert "LANDED" not in intent.effects().values()
    assert not any(sagas.notes().values())
    assert {answer.outcome for answer in answers[:-1] if answer and not answer.accepted} <= {"COMPENSATED"}


@pytest.mark.situation(16)
async def test_fifty_steps_are_all(sagas: Sagas) -> None:
    intent = await opened(sagas)
    for number in range(50):
        assert (await intent.add(look(f"n{number}"))).accepted

    answer = await intent.add(look("one_more"))

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == (Reason.RATE_LIMITED, "never")
    assert (await intent.commit()).outcome == "COMMITTED"


@pytest.mark.slow
async def test_a_closed_intent_takes_no_steps(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("n")
    intent = {"protocol": 1, "session_id": f"s-{uuid.uuid4().hex}", "steps": [note("n")]}
    posted = Opened(sagas, await sagas.start({"protocol": 1, "caller": CALLER.model_dump(), "intent": intent}))
    await gate.arrived()

    answer = await posted.add(note("more"))
    gate.open()

    assert not answer.accepted
    assert "is no open one" in answer.message
    assert (await posted.result()).status_code == 200


async def test_a_message_of_another_shape_is_refused_before_history(sagas: Sagas) -> None:
    intent = await opened(sagas)

    with pytest.raises(WorkflowUpdateFailedError):
        await intent.say("add_step", {"step": "freeze"})

    assert (await intent.commit()).outcome == "COMMITTED"


def raw(data: bytes, encoding: bytes = b"json/plain") -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


UNREADABLE = {
    "one key twice": (b'{"step": {"step_id": "x", "tool": "a", "tool": "b"}}', Reason.BODY_MALFORMED, "step.tool"),
    "one outer key twice": (b'{"step": {}, "step": {"step_id": "x"}}', Reason.BODY_MALFORMED, "step"),
    "no number": (b'{"step": {"step_id": NaN}}', Reason.BODY_MALFORMED, "step.step_id"),
    "an endless number": (b'{"step": {"arguments": {"n": 1e999}}}', Reason.ARGUMENTS_INVALID, "step.arguments.n"),
    "a fraction": (b'{"step": {"arguments": {"n": 1.5}}}', Reason.ARGUMENTS_INVALID, "step.arguments.n"),
    "no JSON": (b'{"step": ', Reason.BODY_MALFORMED, ""),
    "no UTF-8": (b'{"step": "\xff"}', Reason.BODY_MALFORMED, ""),
    "no object": (b"[]", Reason.BODY_MALFORMED, ""),
    "no step": (b'{"step": "freeze"}', Reason.ARGUMENTS_INVALID, "step"),
    "another field": (b'{"step": {}, "steps": []}', Reason.ARGUMENTS_INVALID, "steps"),
}


@pytest.mark.parametrize(("body", "reason", "path"), UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_add_is_refused_by_name_and_leaves_nothing_in_history(
    sagas: Sagas, body: bytes, reason: Reason, path: str
) -> None:
    intent = await opened(sagas)
    before = await length(intent)

    refused = await refusal(intent, "add_step", raw(body))

    assert refused.reason is reason
    assert [problem.path for problem in refused.info.fields] == [path]
    assert await length(intent) == before
    assert (await intent.abort()).outcome == "NOT_APPLIED"


UPDATES = ("open", "add_step", "commit", "abort", "cancel", "decide", "resolve")


@pytest.mark.parametrize("update", UPDATES)
async def test_what_is_too_large_or_binary_leaves_nothing_in_history(sagas: Sagas, update: str) -> None:
    intent = await opened(sagas)
    before = await length(intent)

    large = [await refusal(intent, update, raw(b"{" + b" " * 1_900_000 + b"}")) for _ in range(3)]
    binary = await refusal(intent, update, raw(b"{}", b"binary/plain"))

    assert {refused.reason for refused in large} == {Reason.BODY_TOO_LARGE}
    assert large[0].info.details["size_bytes"] == 1_900_002
    assert binary.reason is Reason.BODY_MALFORMED
    assert await length(intent) == before
    assert (await intent.commit()).outcome == "COMMITTED"


async def test_the_bytes_of_all_updates_are_bounded_and_commit_still_comes_through(
    sagas: Sagas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.opening.UPDATES_BYTES_MAX", 5_000)
    intent = await opened(sagas)
    unknown = {"step_id": "x", "tool": "book_sample_trip", "arguments": {"text": "t" * 3_000}}
    first = await intent.add(unknown)

    refused = await refusal(intent, "add_step", {"step": unknown})

    assert not first.accepted
    assert refused.reason is Reason.RATE_LIMITED
    assert (await intent.add(note("one"))).accepted
    assert (await intent.commit()).outcome == "COMMITTED"


@pytest.mark.slow
async def test_adds_wait_in_a_bounded_queue_that_leaves_room_to_stop_the_intent(sagas: Sagas) -> None:
    intent = await opened(sagas)
    gate = sagas.behaviour.hold("n0")
    adding = [await intent.begin_adding(note(f"n{number}")) for number in range(WAITING_MAX)]
    await gate.arrived()

    add = await refusal(intent, "add_step", {"step": note("more")})
    commit = await refusal(intent, "commit", {})
    cancelled = await sagas.update(intent.handle, "cancel", {})
    gate.open()

    assert (add.reason, commit.reason) == (Reason.RATE_LIMITED, Reason.RATE_LIMITED)
    assert cancelled.accepted
    assert outcome(await intent.result()) in (("COMPENSATED", "cancelled"), ("NOT_APPLIED", "cancelled"))
    assert len(adding) == WAITING_MAX


@pytest.mark.parametrize("word", ["cancel", pytest.param("abort", marks=pytest.mark.slow)])
async def test_what_stops_an_intent_goes_as_a_signal_where_temporal_takes_no_more_updates(
    sagas: Sagas, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr("contracts.opening.WAITING_MAX", 10)
    intent = await opened(sagas)
    gate = sagas.behaviour.hold("n0")
    adding = [await intent.begin_adding(note(f"n{number}")) for number in range(10)]
    await gate.arrived()
    intent_id = sagas.intent(await sagas.status(intent.handle))["intent_id"]
    client = await impatient(sagas.client)

    if word == "cancel":
        messages = Messages(client, sagas.engine.database)
        answer = await messages.cancel(CALLER.tenant, intent_id, requested_by="tester")
    else:
        settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
        answer = await Openings.of(client, sagas.engine, settings).abort(CALLER, intent_id)
    gate.open()

    assert (answer.status_code, answer.exit_code) == (202, 3)
    assert (answer.data or {})["accepted"] is None
    assert outcome(await intent.result())[1] == "cancelled"
    assert not any(sagas.notes().values())
    assert len(adding) == 10


async def impatient(client: Client) -> Client:
    """The same Temporal by a client that asks once: the SDK's own asks again for ten seconds."""
    return await Client.connect(
        client.service_client.config.target_host,
        namespace=client.namespace,
        data_converter=client.data_converter,
        retry_config=RetryConfig(max_retries=1),
    )


async def refusal(intent: Opened, update: str, message: object) -> SagaError:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await intent.say(update, message)
    assert isinstance(refused.value.cause, ApplicationError)
    return refusal_of(refused.value.cause)


async def length(intent: Opened) -> int:
    """How many events the history has, but those of the tasks in which a validator ran."""
    events = (await intent.handle.fetch_history()).events
    return sum("WORKFLOW_TASK" not in EventType.Name(event.event_type) for event in events)


@pytest.mark.situation(16)
async def test_updates_are_bounded_and_what_is_over_is_refused_by_name(
    sagas: Sagas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.opening.UPDATES_MAX", 2)
    intent = await opened(sagas)
    await intent.add(note("one"))

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await intent.add(note("two"))

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "RATE_LIMITED"
    assert (await sagas.update(intent.handle, "cancel", {})).accepted
    assert outcome(await intent.result()) == ("COMPENSATED", "cancelled")


@pytest.mark.situation(16)
async def test_signals_are_bounded_and_what_is_over_is_passed_over(
    sagas: Sagas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.opening.SIGNALS_MAX", 1)
    intent = await opened(sagas)
    await intent.handle.signal("cancel", "nonsense")
    await intent.handle.signal("cancel", {})

    assert (await intent.add(note("one"))).accepted
    assert (await intent.commit()).outcome == "COMMITTED"


async def test_the_run_learns_of_a_step_that_only_the_tables_know_and_runs_it_first(sagas: Sagas) -> None:
    """As when a worker dies after the commit of `admit_step`, and whoever asked goes away."""
    intent = await opened(sagas)
    await intent.add(note("one"))
    await forgotten(sagas, intent, note("two"))

    answer = await intent.add(note("three"))
    await forgotten(sagas, intent, note("four"))
    done = await intent.commit()

    assert (answer.accepted, done.outcome) == (True, "COMMITTED")
    assert list(intent.effects()) == ["one", "two", "three", "four"]


async def test_an_abort_fences_a_step_that_only_the_tables_know(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    await forgotten(sagas, intent, note("two"))

    done = await intent.abort()

    assert done.outcome == "COMPENSATED"
    assert states(await intent.result()) == {"one": "COMPENSATED", "two": "PLANNED"}


async def forgotten(sagas: Sagas, intent: Opened, step: JsonObject) -> None:
    row = sagas.one("select intent_key, workflow_id, run_id, epoch from backstay.intents where final_at is null")
    assert row["workflow_id"] == intent.handle.id
    adding = Adding(sagas.engine.database, sagas.engine.registry, sagas.engine.packs, sagas.engine.policy)
    answer = await adding.admit_step(AddRequest(claim=Claim(**row), step=step))
    assert answer.accepted


@pytest.mark.parametrize("verb", ["forward", "close"])
async def test_a_terminated_run_is_adopted_and_goes_on_as_the_operator_says(sagas: Sagas, verb: str) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    await intent.handle.terminate("a test")
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)

    await Sweep(sagas.client, sagas.engine.database, settings).run()
    again = Opened(sagas, sagas.client.get_workflow_handle(intent.handle.id))
    sagas.handles.append(again.handle)
    parked = await sagas.waiting(again.handle)
    refused = await again.add(note("two"))
    resolved = await sagas.update(again.handle, "resolve", resolution(verb))

    assert (parked.data or {})["outcome"] == "PARKED"
    assert refused.error is not None
    assert refused.error.code is Reason.INTENT_PARKED
    assert resolved.accepted
    if verb == "close":
        assert outcome(await again.result()) == ("COMPENSATED", "interrupted")
        return
    assert (await again.add(note("two"))).accepted
    assert (await again.commit()).outcome == "COMMITTED"
    assert sagas.notes() == {"one": True, "two": True}


async def test_a_reset_run_learns_that_it_may_go_on_only_when_an_operator_says_so(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))

    again = Opened(sagas, await reset(sagas, intent.handle, "last"))
    answer = await again.add(note("two"))
    parked = await sagas.waiting(again.handle)

    assert not answer.accepted
    assert (parked.data or {})["waiting_for"] == "an operator (INTERRUPTED)"
    await sagas.update(again.handle, "resolve", resolution("forward"))
    assert (await again.add(note("two"))).accepted
    assert (await again.commit()).outcome == "COMMITTED"


@pytest.mark.parametrize(
    "policy", [Policy(open_inactivity_seconds=1), Policy(intent_deadline_seconds=2)], ids=["inactivity", "deadline"]
)
async def test_an_intent_that_nobody_goes_on_with_is_undone(
    temporal_client: Client, database_url: str, task_queue: str, policy: Policy
) -> None:
    async with serve(temporal_client, database_url, task_queue, policy) as sagas:
        intent = await opened(sagas)
        await intent.add(note("one"))

        envelope = await intent.result()

    assert outcome(envelope) == ("COMPENSATED", "deadline")
    assert envelope.error is not None
    assert envelope.error.code is Reason.DEADLINE_EXCEEDED
    assert intent.effects() == {"one": "COMPENSATED"}


async def test_every_invariant_holds_of_open_intents(sagas: Sagas) -> None:
    committed, aborted, running = [await opened(sagas) for _ in range(3)]
    for number, intent in enumerate((committed, aborted, running)):
        await intent.add(freeze(700 + number))
    await committed.add(debit(700))
    await committed.commit(note("seal", "seal"))
    await aborted.abort()

    report = await check(sagas.database_url)

    assert [found for found in report.checks if not found.ok] == []


async def test_the_app_cannot_change_what_was_planned(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(note("one"))
    row = sagas.one("select intent_key, plan, plan_digest, proof, proof_digest from backstay.intents")
    other = row["plan"].replace('"text":"one"', '"text":"two"')

    grown = await sagas.engine.database.one(
        "select backstay.grow_plan(%s, null, null, %s, %s, %s, %s, '{}', 'L0', 0) as grown",
        (row["intent_key"], other, row["plan_digest"], row["proof"], row["proof_digest"]),
    )

    assert other != row["plan"]
    assert grown == {"grown": False}
    with pytest.raises(InsufficientPrivilege):
        await sagas.engine.database.one("update backstay.intents set plan = '' returning 1")
