"""Many sagas of all kinds on few accounts, while workers are killed and frozen and people cancel at random.

Everything random comes from a seed that is printed; the timing is the machine's own. Afterwards all must come to
rest, no saga may be stuck, every answer must tell what the tables hold, and every account must have what the
answers say, to the cent.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from contracts.saga import MessageAnswer
from tests.faults.support import hooked_worker, neutralised
from tests.faults.support.books import check_answer, check_books
from tests.faults.support.control import ANY
from tests.faults.support.intents import (
    LARGE_CENTS,
    MERCHANT,
    OPENED_CENTS,
    Steps,
    debit,
    doomed,
    freeze,
    purchase,
    reverse,
    transfer,
)
from tests.faults.support.world import Posted, World, until_async
from worker.runs import run_of

SEED_VARIABLE: Final = "FAULTS_TEST_SEED"
ACCOUNTS: Final = 8
UNHEARD: Final = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowAlreadyStartedError)
"""A message that found nobody; what it did all the same will be seen in the tables."""
DELAY_SECONDS: Final = 0.2
"""Of every activity: so many sagas are in the middle of something when a fault comes."""
QUIET_SECONDS: Final = 120.0
Nemesis = Literal["kill", "freeze", "terminate connections", "kill temporal", "kill postgres"]


@dataclass
class Soak:
    """One run of it."""

    world: World
    chance: random.Random
    accounts: list[str]
    without: str = ""
    seconds: float = 0.0
    sagas: list[Posted] = field(default_factory=list[Posted])
    answers: list[MessageAnswer | None] = field(default_factory=list[MessageAnswer | None])
    faults: Counter[str] = field(default_factory=Counter[str])
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def start_worker(self) -> None:
        """Start one more worker."""
        extra = {hooked_worker.NEUTRALISED: self.without} if self.without else {}
        await self.world.start_worker(extra=extra)

    def steps(self) -> Steps:
        """Choose what an agent wants."""
        one, other = self.chance.sample(self.accounts, 2)
        cents = self.chance.randint(1, 5_000)
        kind = self.chance.randrange(6)
        return [
            purchase(one, cents),
            [*purchase(one, cents), transfer(one, other, cents)],
            doomed(one, cents),
            [transfer(one, other, cents), freeze(other, cents), debit(cents), reverse(cents)],
            purchase(one, LARGE_CENTS),
            [transfer(one, other, cents), freeze(other, cents), debit(max(1, cents // 2))],
        ][kind]

    async def live(self) -> None:
        """Post one intent, and do to it what people do."""
        await asyncio.sleep(self.chance.random() * self.seconds)
        posting = self.world.posting(self.steps())
        posted = await self.world.post(posting)
        self.sagas.append(posted)
        plot = self.chance.random()
        await asyncio.sleep(self.chance.random())
        with suppress(*UNHEARD):
            if plot < 0.4:
                self.answers.append(await posted.cancel(self.chance.choice(("update", "signal", "temporal"))))
                self.faults["cancel"] += 1
            elif plot < 0.5:
                await self.world.post(posting)
                self.faults["posted again"] += 1
            elif plot < 0.55:
                await posted.terminate()
                self.faults["terminated"] += 1

    async def decide(self) -> None:
        """Approve or deny what is asked, again and again, until it is over."""
        while not self.is_over.is_set():
            await asyncio.sleep(0.5)
            for posted in [one for one in self.sagas if self.is_asked(one)]:
                verdict: Literal["approve", "deny"] = "approve" if self.chance.random() < 0.7 else "deny"
                with suppress(*UNHEARD):
                    await posted.latest().decide(verdict)

    def is_asked(self, posted: Posted) -> bool:
        """True while a decision about it is missing."""
        return bool(
            self.world.one(
                "select 1 from backstay.approval_requests r join backstay.intents i using (intent_key)"
                " where i.intent_key = %s and i.phase = 'ADMITTED' and i.parked_reason is null and not exists"
                " (select from backstay.decisions d where d.intent_key = r.intent_key and d.step_id = r.step_id)",
                posted.intent_key,
            )
        )

    async def torment(self, faults: Sequence[Nemesis]) -> None:
        """Let each fault happen, with a pause between."""
        for fault in faults:
            await asyncio.sleep(0.7 + self.chance.random())
            alive = [worker for worker in self.world.workers if worker.process.is_alive()]
            flying = self.world.one("select count(*) as n from backstay.intents where final_at is null")
            worker = self.chance.choice(alive)
            self.faults[fault] += bool(flying and flying["n"])
            match fault:
                case "kill":
                    worker.kill()
                    await self.start_worker()
                case "freeze":
                    worker.freeze()
                    await asyncio.sleep(3 + self.chance.random() * 2)
                    worker.thaw()
                case "terminate connections":
                    self.world.all(
                        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                        " and pid <> pg_backend_pid() and application_name = 'backstay'"
                    )
                case "kill temporal":
                    self.world.stack.kill_temporal()
                    self.world.stack.start_temporal()
                case "kill postgres":
                    self.world.stack.kill_postgres()
                    self.world.stack.start_postgres()

    async def come_to_rest(self) -> None:
        """Sweep and resolve as an operator does, until every intent has its outcome."""

        async def all_done() -> bool:
            await self.world.sweep()
            for posted in self.sagas:
                row = posted.row()
                if row is None or row["parked_reason"] is None or row["final_at"] is not None:
                    continue
                verb: Literal["close", "forward"] = self.chance.choice(("close", "forward"))
                self.faults[f"parked {row['parked_reason']}"] += 1
                answer: MessageAnswer | None = None
                with suppress(*UNHEARD):
                    answer = await posted.latest().resolve(verb)
                if answer is not None and not answer.accepted and row["parked_reason"] == "COMPENSATION_REFUSED":
                    for step in self.stuck(row):
                        await posted.latest().resolve("skip", step_id=step, evidence="the money is gone")
            return not self.world.all("select 1 from backstay.intents where final_at is null limit 1")

        try:
            await until_async("all sagas to end", all_done, seconds=QUIET_SECONDS)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *await self.open()])) from None

    def stuck(self, row: dict[str, Any]) -> list[str]:
        """Steps that cannot be undone."""
        found = self.world.all(
            "select jsonb_path_query(parked_detail::jsonb, '$.steps[*].step_id') #>> '{}' as step_id"
            " from backstay.intents where intent_key = %s",
            row["intent_key"],
        )
        return [one["step_id"] for one in found]

    async def open(self) -> list[str]:
        """What has no outcome yet, and what was last heard of it."""
        rows = self.world.all(
            "select intent_key, workflow_id, phase, parked_reason, epoch from backstay.intents"
            " where final_at is null limit 3"
        )
        told: list[str] = []
        for row in rows:
            run = await run_of(self.world.client, row["workflow_id"])
            heard = self.world.control.journal(row["intent_key"])[-15:]
            told += [str(row), str(run), *(f"  {e.at:.2f} {e.pid} {e.what} {e.name} {e.detail}" for e in heard)]
        return told

    async def check(self) -> Counter[str]:
        """Assert that every answer tells what the tables hold, and every account has what the answers say."""
        outcomes: Counter[str] = Counter()
        expected = dict.fromkeys(self.accounts, OPENED_CENTS)
        for posted in self.sagas:
            try:
                envelope = await posted.latest().answer()
            except WorkflowFailureError:
                told = await posted.told()  # terminated; what its steps had begun may have gone on to the end
                outcomes["terminated"] += 1
                if told is None:
                    continue
                envelope = told
            outcome = check_answer(posted, envelope)
            outcomes[outcome] += 1
            if outcome == "COMMITTED":
                book(expected, (envelope.data or {})["steps"])
        residues = "select 1 from backstay.effects where residue is not null"
        if not self.world.all(residues):
            found = {account: self.world.standing(account)[0] for account in self.accounts}
            assert expected == found
        return outcomes


def book(balances: dict[str, int], steps: Sequence[dict[str, Any]]) -> None:
    """Do to the balances what committed steps did."""
    holders: dict[str, str] = {}
    for step in steps:
        arguments, tool = step["applied_args"], step["tool"]
        match tool:
            case "freeze_account_funds@1":
                holders[step["output"]["hold_id"]] = arguments["account_id"]
            case "debit_frozen_funds@1":
                assert arguments["credit_account_id"] == MERCHANT
                balances[holders[arguments["hold_id"]]] -= arguments["amount_cents"]
            case "transfer_customer_funds@1":
                balances[arguments["from_account_id"]] -= arguments["amount_cents"]
                balances[arguments["to_account_id"]] += arguments["amount_cents"]
            case _:
                raise AssertionError(f"the soak books no {tool}")


async def soak(world: World, count: int, faults: Sequence[Nemesis], *, without: str = "") -> Soak:
    """Run it to the end of all faults and all posts."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    print(f"{SEED_VARIABLE}={seed}")  # noqa: T201 - pytest shows it when the test fails
    chance = random.Random(seed)  # noqa: S311 - no secret
    one = Soak(world, chance, [world.account() for _ in range(ACCOUNTS)], without)
    one.seconds = 1.2 * len(faults) + 4.0 * faults.count("freeze")
    order = list(faults)
    chance.shuffle(order)
    world.arm(ANY, "begin", "delay", seconds=DELAY_SECONDS, times=0)
    for _ in range(2):
        await one.start_worker()
    deciding = asyncio.create_task(one.decide())
    try:
        await asyncio.gather(*(one.live() for _ in range(count)), one.torment(order))
    finally:
        one.is_over.set()
        await deciding
    return one


async def rest(one: Soak) -> None:
    """Let it come to rest, while people go on deciding."""
    one.is_over.clear()
    deciding = asyncio.create_task(one.decide())
    try:
        await one.come_to_rest()
    finally:
        one.is_over.set()
        await deciding


async def finish(one: Soak) -> Counter[str]:
    """Let it come to rest and judge it."""
    await rest(one)
    outcomes = await one.check()
    check_books(one.world)
    print(dict(outcomes), dict(one.faults))  # noqa: T201 - as above
    return outcomes


@pytest.mark.slow
async def test_sixty_sagas_survive_killed_and_frozen_workers(world: World) -> None:
    faults: list[Nemesis] = ["kill", "kill", "kill", "kill", "freeze", "terminate connections"]

    one = await soak(world, 60, faults)
    outcomes = await finish(one)

    assert one.faults["kill"] >= 3, "while sagas were under way"
    assert one.faults["cancel"] >= 10
    assert sum(outcomes.values()) - outcomes["terminated"] <= 60 <= sum(outcomes.values())
    assert outcomes["COMMITTED"] > 0
    assert outcomes["COMPENSATED"] > 0


@pytest.mark.slow
async def test_three_hundred_sagas_survive_everything(world: World) -> None:
    often: dict[Nemesis, int] = {
        "kill": 10,
        "freeze": 3,
        "terminate connections": 3,
        "kill temporal": 2,
        "kill postgres": 2,
    }
    faults: list[Nemesis] = [fault for fault, times in often.items() for _ in range(times)]

    one = await soak(world, 300, faults)
    outcomes = await finish(one)

    assert sum(outcomes.values()) - outcomes["terminated"] <= 300 <= sum(outcomes.values())
    assert all(one.faults[fault] > 0 for fault in often)


@pytest.mark.slow
async def test_the_same_soak_without_the_second_look_loses_money(open_world: World) -> None:
    faults: list[Nemesis] = ["kill"] * 8

    one = await soak(open_world, 120, faults, without=f"{neutralised.MEMORY},{neutralised.TRUST}")
    await rest(one)

    with pytest.raises(AssertionError):
        check_books(open_world)
