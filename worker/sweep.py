"""The sweep: finds what nobody carries any more. Safe at any time, by several at once, again and again.

An intent whose run was ended from outside (terminated, reset, lost with its Temporal) is open in the tables and has no
open workflow. A run under the claim's own workflow id adopts it and parks it INTERRUPTED, for an operator to close or
forward; nothing else is started, and nothing is undone by itself.
"""

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from activities.database import Database, Row
from activities.packs.ledger import expire_holds
from contracts.base import Record
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import WORKFLOW
from worker.runs import has_open_run
from worker.settings import Settings

OPEN_MAX: Final = 1_000
HOLDS_MAX: Final = 500
HOLD_BATCHES_MAX: Final = 20
ASKED_AT_A_TIME: Final = 16
ADOPTED_SECONDS_MAX: Final = 10.0
LOOK_EVERY_SECONDS: Final = 0.1

_OPEN: Final[LiteralString] = """
select intent_key, intent_id, workflow_id, run_id, request from backstay.intents
where final_at is null order by admitted_at limit %s
"""
_STILL: Final[LiteralString] = (
    "select intent_key from backstay.intents where intent_key = any(%s) and run_id = any(%s) and final_at is null"
)


class Swept(Record):
    """What a sweep did. `adopted`: runs that were started and have taken their intent over."""

    looked_at: int
    started: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    expired_holds: int = 0
    more: bool = False
    """True when there were more open intents than one sweep looks at: sweep again."""


@dataclass(frozen=True)
class Sweep:
    """One sweep over all tenants."""

    client: Client
    database: Database
    settings: Settings

    async def run(self) -> Swept:
        """Start a run for each open intent that has none, and expire overdue holds.

        Raises SagaError(DEPENDENCY_DOWN) when Temporal does not answer; what was started stays started.
        """
        rows = await self.database.all(_OPEN, (OPEN_MAX + 1,))
        more, rows = len(rows) > OPEN_MAX, rows[:OPEN_MAX]
        places = asyncio.Semaphore(ASKED_AT_A_TIME)

        async def one(row: Row) -> bool:
            async with places:
                return await self._start_if_alone(row)

        try:
            started = await asyncio.gather(*(one(row) for row in rows))
        except RPCError as error:
            raise SagaError(
                Reason.DEPENDENCY_DOWN,
                f"Temporal does not answer ({error.status.name}); sweep again when it does.",
                details={"status": error.status.name},
            ) from error
        alone = [row for row, was_started in zip(rows, started, strict=True) if was_started]
        left = await self._wait_until_adopted(alone)
        return Swept(
            looked_at=len(rows),
            started=tuple(row["intent_id"] for row in alone),
            adopted=tuple(row["intent_id"] for row in alone if row["intent_key"] not in left),
            expired_holds=await self._expire_holds(),
            more=more,
        )

    async def _start_if_alone(self, row: Row) -> bool:
        """Start a run unless one is open or the intent ended meanwhile. Raises RPCError."""
        if await has_open_run(self.client, row["workflow_id"]):
            return False
        if not await self.database.all(_STILL, ([row["intent_key"]], [row["run_id"]])):
            return False
        await self.client.start_workflow(
            WORKFLOW,
            json.loads(row["request"]),
            id=row["workflow_id"],
            task_queue=self.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=timedelta(seconds=self.settings.workflow_task_timeout_seconds),
            static_summary="started by sweep",
        )
        return True

    async def _wait_until_adopted(self, rows: list[Row]) -> set[str]:
        """Wait, not for ever, until the new runs own their intents; return the keys of those that do not yet."""
        left = {row["intent_key"] for row in rows}
        former = [row["run_id"] for row in rows]
        loop = asyncio.get_running_loop()
        until = loop.time() + ADOPTED_SECONDS_MAX
        while left and loop.time() < until:
            left = {row["intent_key"] for row in await self.database.all(_STILL, (list(left), former))}
            if left:
                await asyncio.sleep(LOOK_EVERY_SECONDS)
        return left

    async def _expire_holds(self) -> int:
        """Free the amounts of holds that are over, in bounded transactions."""
        expired = 0
        for _ in range(HOLD_BATCHES_MAX):
            freed = await self.database.run(lambda transaction: expire_holds(transaction, HOLDS_MAX))
            expired += freed
            if freed < HOLDS_MAX:
                break
        return expired
