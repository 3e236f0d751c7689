"""Temporal dies, PostgreSQL dies, a connection dies, everything dies: what was accepted comes to its end, once.

Sagas are held at many points at the same time; then the server is killed under all of them, and started again on the
same files.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.faults.support import hooked_worker
from tests.faults.support.books import check_answer, check_purchase
from tests.faults.support.control import Point, Rule
from tests.faults.support.intents import (
    ADMIT,
    AMOUNT_CENTS,
    CLOSE,
    DEBIT,
    DECIDE,
    FREEZE,
    LARGE_CENTS,
    RESOLVE,
    SETTLE,
    doomed,
    purchase,
)
from tests.faults.support.proxy import CuttingProxy
from tests.faults.support.world import Posted, World, until

FREEZE_UNDONE: Final = f"{FREEZE}.compensate"
DEBIT_UNDONE: Final = f"{DEBIT}.compensate"
RECOVERY_SECONDS: Final = 60.0

HELD: Final[tuple[tuple[str, Point, bool], ...]] = (
    (ADMIT, "begin", True),
    (ADMIT, "written", True),
    (FREEZE, "begin", True),
    (FREEZE, "written", True),
    (FREEZE, "committed", True),
    (DEBIT, "written", True),
    (DEBIT, "committed", True),
    (SETTLE, "written", True),
    (SETTLE, "committed", True),
    (CLOSE, "written", False),
    (DEBIT_UNDONE, "written", False),
    (DEBIT_UNDONE, "committed", False),
    (FREEZE_UNDONE, "begin", False),
    (SETTLE, "written", False),
)


WRITING: Final = (
    (ADMIT, True),
    (FREEZE, True),
    (DEBIT, True),
    (SETTLE, True),
    (CLOSE, False),
    (DEBIT_UNDONE, False),
)
SQLSTATES: Final = (
    "40001",  # serialization failure
    "40P01",  # deadlock
    "23505",  # unique violation
    "55P03",  # lock not available
    "57014",  # statement cancelled
    "57P01",  # shutting down
    "53300",  # too many connections
    "53100",  # disk full
    "25006",  # read-only
    "XX000",  # internal error
)


@dataclass
class Held:
    """A saga that stands still at a point."""

    posted: Posted
    account: str
    rule: Rule
    forward: bool

    async def check(self) -> None:
        """Assert that it comes to the end that it would have had anyway."""
        envelope = await self.posted.answer(seconds=RECOVERY_SECONDS)
        outcome = "COMMITTED" if self.forward else "COMPENSATED"
        assert check_answer(self.posted, envelope) == outcome
        check_purchase(self.posted, self.account, outcome, AMOUNT_CENTS)
        assert self.posted.compensated() == ([] if self.forward else ["debit", "freeze"])


async def hold_all(world: World) -> list[Held]:
    """Have one saga stand still at each point."""
    held: list[Held] = []
    for activity, point, forward in HELD:
        account = world.account()
        posting = world.posting(purchase(account) if forward else doomed(account))
        rule = world.arm(activity, point, "pause", posting)
        held.append(Held(await world.post(posting), account, rule, forward))
    for one in held:
        await one.posted.until_fired(one.rule)
    return held


def release_all(world: World, held: list[Held]) -> None:
    """Let all of them go on."""
    for one in held:
        world.control.release(one.rule)


async def check_all(held: list[Held]) -> None:
    """Assert the end of each; tell all that went wrong."""
    ended = await asyncio.gather(*(one.check() for one in held), return_exceptions=True)
    wrong = {one.rule.name: error for one, error in zip(held, ended, strict=True) if error is not None}
    assert not wrong, wrong


@pytest.fixture(autouse=True)
async def servers(world: World) -> AsyncIterator[None]:
    """Whatever happens, leave running servers to the other tests."""
    yield
    world.stack.start_postgres()
    world.stack.start_temporal()


@pytest.mark.slow
async def test_temporal_dies_under_sagas_at_every_point(world: World) -> None:
    await world.start_worker()
    waiting_account = world.account()
    waiting = await world.post(purchase(waiting_account, LARGE_CENTS))
    await waiting.until_asked()
    held = await hold_all(world)

    world.stack.kill_temporal()
    release_all(world, held)
    await until("steps to go on without Temporal", lambda: held[2].posted.journal("answered", FREEZE))
    world.stack.start_temporal()

    await check_all(held)
    decided = await waiting.decide()
    assert decided is not None
    assert decided.accepted
    assert check_answer(waiting, await waiting.answer()) == "COMMITTED"
    check_purchase(waiting, waiting_account, "COMMITTED", LARGE_CENTS)


async def test_postgresql_dies_under_sagas_at_every_point(world: World) -> None:
    await world.start_worker()
    held = await hold_all(world)

    world.stack.kill_postgres()
    release_all(world, held)
    await until(
        "attempts to fail", lambda: any("DEPENDENCY_DOWN" in e.detail for e in world.control.journal()), seconds=20
    )
    world.stack.start_postgres()

    await check_all(held)


async def test_everything_dies_at_once_and_comes_back(world: World) -> None:
    worker = await world.start_worker()
    held = await hold_all(world)

    worker.kill()
    world.stack.kill_temporal()
    world.stack.kill_postgres()
    release_all(world, held)
    world.stack.start_postgres()
    world.stack.start_temporal()
    await world.start_worker()

    await check_all(held)


@pytest.mark.slow
async def test_what_people_said_counts_though_all_that_heard_it_is_dead(world: World) -> None:
    """Temporal keeps an update that no worker has answered in memory only; the tables keep what was decided."""
    worker = await world.start_worker()
    asked_account, stuck_account = world.account(), world.account()
    asked = await world.post(purchase(asked_account, LARGE_CENTS))
    await asked.until_asked()
    doomed_posting = world.posting(doomed(stuck_account))
    closing = world.arm(DEBIT_UNDONE, "begin", "pause", doomed_posting)
    stuck = await world.post(doomed_posting)
    await stuck.until_fired(closing)
    world.do("select ledger.close_account(%s)", stuck_account)
    world.control.release(closing)
    await stuck.until_parked("COMPENSATION_REFUSED")
    rules = [
        world.arm(DECIDE, "committed", "pause", asked),
        world.arm(RESOLVE, "committed", "pause", stuck),
    ]
    talking = [
        asyncio.create_task(asked.decide(decision_id="lost-decision")),
        asyncio.create_task(stuck.resolve("done", step_id="debit", evidence="by hand", resolution_id="lost-word")),
    ]
    await asked.until_fired(rules[0])
    await stuck.until_fired(rules[1])

    worker.kill()
    world.stack.kill_temporal()
    for rule in rules:
        world.control.release(rule)
    await asyncio.gather(*talking, return_exceptions=True)
    world.stack.start_temporal()
    await world.start_worker()
    decided = await asked.decide(decision_id="said-again")
    resolved = await stuck.resolve("done", step_id="debit", evidence="by hand", resolution_id="word-again")

    assert decided is None or not decided.accepted, "the first one counts"
    assert resolved is None or not resolved.accepted, "the first one counts"
    assert check_answer(asked, await asked.answer()) == "COMMITTED"
    assert check_answer(stuck, await stuck.answer()) == "COMPENSATED"
    assert [row["decisions"] for row in asked.audit("decision")] == ["lost-decision"]
    assert [row["decisions"] for row in stuck.audit("resolution")] == ["lost-word"]


async def test_connections_are_terminated_inside_transactions(world: World) -> None:
    await world.start_worker()
    held = await hold_all(world)

    ended = world.all(
        "select pg_terminate_backend(pid) as ended, state from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and application_name = 'backstay'"
    )
    release_all(world, held)

    assert sum(row["ended"] for row in ended) >= 7, "as many as were inside a transaction"
    await check_all(held)


@pytest.mark.situation(19)
async def test_commits_whose_answers_are_lost_count_once(world: World) -> None:
    directory = world.control.directory / "wire"
    directory.mkdir()
    forward_account, backward_account, asked_account = world.account(), world.account(), world.account()
    forward, backward = world.posting(purchase(forward_account)), world.posting(doomed(backward_account))
    async with CuttingProxy(world.database_url, directory).listening() as proxy:
        await world.start_worker(database_url=proxy.url)
        marks = [
            f"{forward.session_id}",
            f"{forward.intent_key}/freeze/execute",
            f"{forward.intent_key}/debit/execute",
            f"{backward.intent_key}/again/execute",
            f"{backward.intent_key}/debit/compensate/1",
            f"{backward.intent_key}/freeze/compensate/1",
        ]
        for mark in marks[:3]:
            proxy.cut_after(mark)
        one = await world.post(forward)
        envelope = await one.answer()
        for mark in marks[4:]:
            proxy.cut_after(mark)
        two = await world.post(backward)
        back = await two.answer()
        asked = await world.post(purchase(asked_account, LARGE_CENTS))
        await asked.until_asked()
        proxy.cut_after("the-one-decision")
        decided = await asked.decide(decision_id="the-one-decision")
        bought = await asked.answer()

        assert all(proxy.marks.values()), f"each wire was cut: {proxy.marks}"
        assert proxy.was_cut("the-one-decision")

    assert check_answer(one, envelope) == "COMMITTED"
    check_purchase(one, forward_account, "COMMITTED", AMOUNT_CENTS)
    assert len(one.audit("admitted")) == 1
    assert check_answer(two, back) == "COMPENSATED"
    assert two.compensated() == ["debit", "freeze"]
    check_purchase(two, backward_account, "COMPENSATED", AMOUNT_CENTS)
    assert decided is not None
    assert decided.accepted
    assert check_answer(asked, bought) == "COMMITTED"
    assert len(asked.audit("decision")) == 1


async def test_an_error_of_the_server_inside_any_transaction_is_only_a_delay(world: World) -> None:
    """Every class of error that says nothing about the write, in every kind of transaction: tried again, done once."""
    world.do(
        "create function public.fail_on_purpose(sqlstate text) returns void language plpgsql as"
        " $$ begin raise exception 'a fault on purpose' using errcode = sqlstate; end $$"
    )
    await world.start_worker()
    held: list[Held] = []
    for sqlstate in SQLSTATES:
        for activity, forward in WRITING:
            account = world.account()
            posting = world.posting(purchase(account) if forward else doomed(account))
            rule = world.arm(activity, "written", "error", posting, sqlstate=sqlstate)
            held.append(Held(await world.post(posting), account, rule, forward))

    await check_all(held)

    assert [world.control.fired(one.rule) for one in held] == [1] * len(held)


@pytest.mark.slow
async def test_one_connection_for_everything_is_enough(world: World) -> None:
    await world.start_worker(extra={hooked_worker.CONNECTIONS_MAX: "1"})
    accounts = [world.account() for _ in range(8)]
    greedy = world.posting(purchase(accounts[0]))
    rule = world.arm(FREEZE, "written", "pause", greedy)
    first = await world.post(greedy)
    await first.until_fired(rule)

    others = [await world.post(purchase(account)) for account in accounts[1:]]
    await until(
        "others to wait for the connection in vain",
        lambda: any(entry.detail == "DEPENDENCY_DOWN" for one in others for entry in one.journal("refused")),
    )
    world.control.release(rule)

    for posted, account in zip([first, *others], accounts, strict=True):
        assert check_answer(posted, await posted.answer(seconds=RECOVERY_SECONDS)) == "COMMITTED"
        check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)
