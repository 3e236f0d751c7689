"""Workers die while sagas hold locks and wait for them: a place in the queue is a row, the wait a durable timer."""

import asyncio
from typing import Any

from tests.faults.support.books import check_answer
from tests.faults.support.intents import freeze
from tests.faults.support.world import Posted, World, until

LOCK = "lock_customer_account@1"


def lock(account: str, reason_code: str = "SUSPECTED_FRAUD") -> dict[str, Any]:
    """Lock an account: nobody else may lock or unlock it meanwhile."""
    return {
        "step_id": "lock",
        "tool": LOCK,
        "arguments": {"account_id": account, "reason_code": reason_code},
    }


def is_waiting(posted: Posted) -> bool:
    """True when an intent stands in a queue."""
    query = "select from backstay.counting_locks where intent_key = %s and not is_held"
    return posted.world.one(query, posted.intent_key) is not None


async def test_a_saga_that_waits_for_a_lock_outlives_its_worker_and_goes_on_when_it_is_free(world: World) -> None:
    account = world.account()
    posting = world.posting([freeze(account), lock(account)])
    rule = world.arm(LOCK, "begin", "pause", posting)
    first = await world.start_worker()
    holder = await world.post(posting)
    await holder.until_fired(rule)
    waiter = await world.post([lock(account, "LEGAL_ORDER")])
    await until("the queue", lambda: is_waiting(waiter))

    first.kill()
    await first.died()
    assert is_waiting(waiter)
    await world.start_worker()
    await holder.cancel("update")
    world.control.release(rule)
    ends = await asyncio.gather(holder.answer(), waiter.answer())

    assert [check_answer(posted, end) for posted, end in zip((holder, waiter), ends, strict=True)] == [
        "COMPENSATED",
        "COMMITTED",
    ]
    assert world.all("select from backstay.counting_locks") == []


async def test_a_worker_that_dies_with_its_locks_written_and_not_committed_has_taken_none(world: World) -> None:
    account = world.account()
    posting = world.posting([lock(account)])
    rule = world.arm(LOCK, "written", "kill", posting)
    first = await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    await first.died()

    assert world.all("select from backstay.counting_locks") == []
    await world.start_worker()
    assert check_answer(posted, await posted.answer()) == "COMMITTED"
