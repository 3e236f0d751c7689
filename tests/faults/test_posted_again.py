"""The same intent comes again: at the same time, under other ids, after its history is gone. One effect, one answer.

Hard situations 5, 17 and 19; faults F09 to F11, F16 and F50.
"""

import asyncio
import json
from typing import Final

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from tests.faults.support.books import check_answer
from tests.faults.support.control import Entry
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import ADMIT, AMOUNT_CENTS, DEBIT, FREEZE, LARGE_CENTS, purchase
from tests.faults.support.world import CALLER, Posted, Posting, World, until, until_async

MANY: Final = 12


def body(posting: Posting) -> bytes:
    """The intent as an agent sends it."""
    return json.dumps(posting.intent).encode()


def landed_once(world: World, posting: Posting, account: str, amount_cents: int = AMOUNT_CENTS) -> None:
    """Assert that however often it was posted, the purchase was made once."""
    assert world.standing(account) == (5_000_000 - amount_cents, 0)
    assert world.one("select count(*) as n from ledger.holds where account_id = %s", account) == {"n": 1}
    admitted = "select count(*) as n from backstay.audit_log where intent_key = %s and kind = 'admitted'"
    assert world.one(admitted, posting.intent_key) == {"n": 1}


async def at_the_same_time(world: World) -> None:
    """Twelve posts of one intent at the same moment: one saga, and for all the same outcome."""
    account = world.account()
    posting = world.posting(purchase(account))
    world.arm(FREEZE, "begin", "delay", posting, seconds=0.3)
    await world.start_worker()

    async with world.door() as one, world.door() as other:
        envelopes = await asyncio.gather(
            *(door.post(body(posting), CALLER) for door in (one, other) for _ in range(MANY // 2))
        )

    assert [envelope.status_code for envelope in envelopes] == [200] * MANY
    assert len({json.dumps(envelope.data, sort_keys=True) for envelope in envelopes}) == 1
    assert sum(not envelope.meta.duplicate for envelope in envelopes) == 1
    assert {envelope.meta.intent_id for envelope in envelopes} == {posting.intent_id}
    landed_once(world, posting, account)


async def under_two_ids(world: World) -> None:
    """A foreign client may start the workflow under any id: only admission decides who owns the intent."""
    account = world.account()
    posting = world.posting(purchase(account))
    world.arm(FREEZE, "begin", "delay", posting, seconds=0.3)
    await world.start_worker()

    runs = await asyncio.gather(
        *(world.post(posting, workflow_id=f"foreign-{number}-{posting.session_id}") for number in range(MANY))
    )
    envelopes = [await run.answer() for run in runs]

    owners = [run for run, envelope in zip(runs, envelopes, strict=True) if not envelope.meta.duplicate]
    assert [run.handle.id for run in owners] == [runs[0].claimed()["workflow_id"]]
    assert {e.meta.duplicate_of for e in envelopes if e.meta.duplicate} == {posting.intent_id}
    assert {(e.data or {})["outcome"] for e in envelopes} <= {"COMMITTED", "PENDING"}
    assert check_answer(owners[0], await owners[0].answer()) == "COMMITTED"
    landed_once(world, posting, account)


async def under_another_id_afterwards(world: World) -> None:
    """Under another id it gets the first outcome, and adopts nothing, however the owner fared."""
    account = world.account()
    posting = world.posting(purchase(account, LARGE_CENTS))
    await world.start_worker()
    owner = await world.post(posting)
    await owner.until_asked()
    await owner.terminate()

    foreign = await world.post(posting, workflow_id=f"foreign-{posting.session_id}")
    pending = await foreign.answer()
    await world.sweep()
    await owner.latest().until_parked("INTERRUPTED")
    await owner.latest().resolve("forward")
    await owner.latest().until_asked()
    await owner.latest().decide()
    envelope = await owner.latest().answer()
    later = await (await world.post(posting, workflow_id=f"later-{posting.session_id}")).answer()

    assert pending.meta.duplicate
    assert (pending.data or {})["outcome"] == "PENDING"
    assert check_answer(owner, envelope) == "COMMITTED"
    assert later.meta.duplicate
    assert later.data == envelope.data
    landed_once(world, posting, account, LARGE_CENTS)


async def after_its_history_is_gone(world: World) -> None:
    """Keys and outcomes live in the tables, longer than any history."""
    account = world.account()
    posting = world.posting(purchase(account))
    await world.start_worker()
    posted = await world.post(posting)
    envelope = await posted.answer()
    await delete_history(posted)

    async with world.door() as door:
        again = await door.post(body(posting), CALLER)
    started = await world.post(posting, reuse=WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    raw = await started.answer()

    assert again.status_code == raw.status_code == 200
    assert again.meta.duplicate
    assert started.handle.result_run_id != posted.handle.result_run_id
    assert again.data == envelope.data == raw.data
    assert len(posted.journal("started", FREEZE)) == 1
    landed_once(world, posting, account)


async def history_gone_while_open(world: World) -> None:
    """A history that was deleted while the intent was open is what the sweep is for."""
    account = world.account()
    posting = world.posting(purchase(account, LARGE_CENTS))
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_asked()
    await delete_history(posted)

    swept = await world.sweep()
    again = posted.latest()
    await again.until_parked("INTERRUPTED")
    await again.resolve("close")
    envelope = await again.answer()

    assert posting.intent_id in swept.adopted
    assert check_answer(again, envelope) == "NOT_APPLIED"


async def with_a_key_of_another_intent(world: World) -> None:
    """An explicit key that names one intent never runs another one."""
    account = world.account()
    first, second = world.posting(purchase(account)), world.posting(purchase(account, AMOUNT_CENTS + 1))
    await world.start_worker()

    async with world.door() as door:
        one = await door.post(body(first), CALLER, idempotency_key="the-key")
        other = await door.post(body(second), CALLER, idempotency_key="the-key")
        again = await door.post(body(first), CALLER, idempotency_key="the-key")
    raw = await (await world.post(second, idempotency_key="the-key")).answer()

    assert one.status_code == again.status_code == 200
    assert again.data == one.data
    for refused in (other, raw):
        assert refused.status_code == 422
        assert refused.error is not None
        assert refused.error.code == "KEY_REUSED"
    landed_once(world, first, account)


async def while_no_worker_lives(world: World) -> None:
    """What Temporal has acknowledged is accepted: it runs as soon as somebody can run it."""
    account = world.account()
    posting = world.posting(purchase(account))

    async with world.door() as door:
        accepted = await door.post(body(posting), CALLER, wait_seconds=0.2)
        joined = await door.post(body(posting), CALLER, wait_seconds=0.2)
        assert posting.intent_id == accepted.meta.intent_id == joined.meta.intent_id
        assert accepted.status_code == joined.status_code == 202
        await world.start_worker()
        envelope = await door.post(body(posting), CALLER)

    assert envelope.status_code == 200
    landed_once(world, posting, account)


async def admitted_late_by_a_dead_run(world: World) -> None:
    """A terminated run whose admission comes late takes nothing from the live one."""
    account = world.account()
    posting = world.posting(purchase(account, LARGE_CENTS))
    rule = world.arm(ADMIT, "begin", "pause", posting, times=1, stubborn=True)
    await world.start_worker()
    first = await world.post(posting)
    await first.until_fired(rule)
    await first.terminate()
    second = await world.post(posting)
    await second.until_asked()

    world.control.release(rule)
    await until("the late admission", lambda: len(ended(second)) >= 2)
    assert (second.parked(), second.claimed()["epoch"]) == (None, 1)
    await second.decide()

    assert check_answer(second, await second.answer()) == "COMMITTED"
    landed_once(world, posting, account, LARGE_CENTS)


def ended(posted: Posted) -> list[Entry]:
    """Admissions that came to an answer."""
    return [entry for entry in posted.journal(name=ADMIT) if entry.what in ("answered", "refused")]


async def after_a_lost_answer(world: World) -> None:
    """The agent never got its answer: the same post gets what the first would have got."""
    account = world.account()
    posting = world.posting(purchase(account))
    rule = world.arm(DEBIT, "committed", "kill", posting)
    worker = await world.start_worker()
    async with world.door() as door:
        lost = asyncio.create_task(door.post(body(posting), CALLER))
        await until("the fault", lambda: world.control.fired(rule))
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
    await worker.died()
    await world.start_worker()

    async with world.door() as door:
        again = await door.post(body(posting), CALLER)

    assert again.status_code == 200
    assert again.meta.duplicate
    landed_once(world, posting, account)


async def delete_history(posted: Posted) -> None:
    """Have Temporal forget the run, as retention does."""
    client = posted.world.client
    run_id = (await posted.handle.describe()).run_id

    async def is_gone() -> bool:
        execution = WorkflowExecution(workflow_id=posted.handle.id, run_id=run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        try:
            await client.workflow_service.delete_workflow_execution(request)  # again and again: it is put off at times
            await posted.latest().handle.describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        await asyncio.sleep(0.5)
        return False

    await until_async("Temporal to forget the run", is_gone, seconds=60)


SCENARIOS: Final[dict[str, Scenario]] = {
    "twelve times at the same time": at_the_same_time,
    "under twelve ids at the same time": under_two_ids,
    "under another id": under_another_id_afterwards,
    "after its history is gone": after_its_history_is_gone,
    "after its history was deleted while it was open": history_gone_while_open,
    "with a key of another intent": with_a_key_of_another_intent,
    "while no worker lives": while_no_worker_lives,
    "by a dead run that is late": admitted_late_by_a_dead_run,
    "after a lost answer": after_a_lost_answer,
}

SLOW: Final = frozenset({"after its history is gone", "after its history was deleted while it was open"})


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World, empty_template: str) -> Grid:
    """How the scenarios ended: each on a database of its own, since a sweep looks at all that is open."""
    return await run_grid(module_world, selected(request, SCENARIOS), template=empty_template)


@pytest.mark.situation(
    17,
    claims=[
        "under twelve ids at the same time",
        "after its history is gone",
        "after its history was deleted while it was open",
    ],
)
@pytest.mark.situation(19, claims=["after a lost answer"])
@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_an_intent_that_is_posted_again_happens_once(claim: str, grid: Grid) -> None:
    grid.hold(claim)
