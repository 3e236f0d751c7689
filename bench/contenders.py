"""The four contenders, each as one object that works off an order and says how it ended."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.database import Database
from bench import ledger
from bench.handwritten import LedgerActivities, LocalPurchaseSaga, Purchase, PurchaseSaga, Receipt
from bench.scenarios import AMOUNT_CENTS, BACKSTAY, BARE, PLAIN, TUNED, Order
from bench.world import AGENT, CURRENCY, MERCHANT, TENANT
from contracts.envelope import Envelope, Status
from contracts.errors import SagaError
from contracts.intent import Caller
from contracts.proposal import propose
from contracts.reasons import Reason
from worker.door import Door
from worker.service import CACHED_SAGAS_MAX, LOCAL_SLOTS, connect, serving
from worker.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from contracts.registry import Registry

AGAIN: Final = frozenset({202, 429, 503})
"""Pending, deferred, not acknowledged: the same post joins or starts."""
POSTS_MAX: Final = 20
PAUSE_SECONDS: Final = 0.1


class Contender(Protocol):
    """Who takes part."""

    @property
    def client(self) -> Client | None:
        """Its connection to Temporal, if it has one."""
        ...

    async def carry_out(self, order: Order) -> str:
        """Work the order off, start to end; return its outcome."""
        ...

    def workflow_id(self, order: Order) -> str:
        """Name the order's workflow."""
        ...


@dataclass(frozen=True)
class Bare:
    """(a) The transactions alone, one after the other."""

    database: Database
    client: Client | None = None

    async def carry_out(self, order: Order) -> str:
        """Run each step's transaction, and after a refusal those of the compensations."""
        done: list[tuple[str, str]] = []
        hold_id = ""
        try:
            movement_id = ""
            for number in range(order.steps):
                step_key = f"{order.order_id}/{number}"
                if number % 2 == 0:
                    hold_id = await ledger.freeze(self.database, step_key, order.principal, order.account_id)
                    done.append((step_key, ""))
                else:
                    movement_id = await ledger.debit(self.database, step_key, order.principal, hold_id)
                    done.append((step_key, hold_id))
            if order.refused:
                await ledger.reverse(self.database, f"{order.order_id}/{order.steps}", order.principal, movement_id)
        except SagaError:
            for step_key, taken in reversed(done):
                if taken:
                    await ledger.refund(self.database, step_key, order.principal, taken)
                else:
                    await ledger.release(self.database, step_key, order.principal, order.account_id)
            return "COMPENSATED"
        return "COMMITTED"

    def workflow_id(self, order: Order) -> str:
        """It has none."""
        return order.order_id


@dataclass(frozen=True)
class HandWritten:
    """(b) and (b2) The hand-written saga; `tuned` starts it the way Backstay is started."""

    client: Client
    task_queue: str
    tuned: bool

    async def carry_out(self, order: Order) -> str:
        """Start the saga and wait for its result."""
        purchase = Purchase(order.order_id, order.principal, order.account_id, order.steps, order.refused)
        handle = await self.client.start_workflow(
            LocalPurchaseSaga.__name__ if self.tuned else PurchaseSaga.__name__,
            purchase,
            id=self.workflow_id(order),
            task_queue=self.task_queue,
            result_type=Receipt,
            request_eager_start=self.tuned,
        )
        receipt: Receipt = await handle.result()
        return receipt.outcome

    def workflow_id(self, order: Order) -> str:
        """Name the order's workflow."""
        return f"{self.task_queue}-{order.order_id}"


@dataclass(frozen=True)
class Backstay:
    """(c) Backstay as a gateway with a worker inside runs it: door, admission, steps, settle, all guarantees on."""

    client: Client
    door: Door
    registry: Registry

    async def carry_out(self, order: Order) -> str:
        """Post the intent, as bytes, and wait for its envelope; post it again where the answer says so."""
        outcome = ""
        for _ in range(POSTS_MAX):
            envelope = await self._post(order, wait_seconds=None)
            outcome = str((envelope.data or {}).get("outcome", envelope.error))
            if envelope.status_code not in AGAIN:
                return outcome
            await asyncio.sleep(PAUSE_SECONDS)
        return f"after {POSTS_MAX} posts: {outcome}"

    async def start(self, order: Order) -> bool:
        """Post the intent and do not wait for its outcome; False when the door defers it."""
        envelope = await self._post(order, wait_seconds=0)
        if envelope.error is not None and envelope.error.code is Reason.RATE_LIMITED:
            return False
        if envelope.status is Status.ERROR:
            raise RuntimeError(str(envelope.error))
        return True

    async def _post(self, order: Order, wait_seconds: float | None) -> Envelope:
        body = json.dumps(_intent(order)).encode()
        return await self.door.post(
            body, _caller(order), business_reference=order.order_id, wait_seconds=wait_seconds, eager=True
        )

    def workflow_id(self, order: Order) -> str:
        """Name the order's workflow."""
        proposal = propose(_intent(order), _caller(order), self.registry, business_reference=order.order_id)
        return proposal.intent_id


def _caller(order: Order) -> Caller:
    return Caller(tenant=TENANT, principal=order.principal, agent=AGENT)


def _intent(order: Order) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for number in range(order.steps):
        if number % 2 == 0:
            arguments: dict[str, Any] = {
                "account_id": order.account_id,
                "amount_cents": AMOUNT_CENTS,
                "currency": CURRENCY,
                "hold_ttl_seconds": 3600,
                "reason_code": "PURCHASE",
            }
            freeze = f"s{number}"
            steps.append({"step_id": freeze, "tool": "freeze_account_funds", "arguments": arguments})
        else:
            arguments = {
                "hold_id": {"$from": f"s{number - 1}.hold_id"},
                "amount_cents": AMOUNT_CENTS,
                "currency": CURRENCY,
                "credit_account_id": MERCHANT,
                "reason_code": "PURCHASE",
            }
            steps.append({"step_id": f"s{number}", "tool": "debit_frozen_funds", "arguments": arguments})
    if order.refused:
        arguments = {
            "movement_id": {"$from": f"s{order.steps - 1}.movement_id"},
            "amount_cents": AMOUNT_CENTS,
            "currency": CURRENCY,
            "reason_code": "WRONG_AMOUNT",
        }
        steps.append({"step_id": f"s{order.steps}", "tool": "reverse_ledger_movement", "arguments": arguments})
    return {"protocol": 1, "session_id": order.order_id, "steps": steps}


@asynccontextmanager
async def contender(name: str, database_url: str, temporal_address: str) -> AsyncGenerator[Contender]:
    """Start a contender with its worker, in this process and on this event loop."""
    task_queue = f"bench-{name}"
    async with AsyncExitStack() as stack:
        if name == BACKSTAY:
            settings = Settings.load(database_url=database_url, task_queue=task_queue)
            client = await connect(settings)
            engine = await stack.enter_async_context(serving(settings, client))
            door = await stack.enter_async_context(Door.of(client, engine, settings))
            yield Backstay(client, door, engine.registry)
            return
        database = await stack.enter_async_context(Database(database_url))
        if name == BARE:
            yield Bare(database)
            return
        steps = LedgerActivities(database)
        activities = [steps.freeze, steps.debit, steps.reverse, steps.release, steps.refund]
        if name == PLAIN:
            client = await Client.connect(temporal_address)
            worker = Worker(client, task_queue=task_queue, workflows=[PurchaseSaga], activities=activities)
        else:
            assert name == TUNED
            client = await Client.connect(temporal_address, data_converter=pydantic_data_converter)
            worker = Worker(
                client,
                task_queue=task_queue,
                workflows=[LocalPurchaseSaga],
                activities=activities,
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_concurrent_local_activities=LOCAL_SLOTS,
                max_cached_workflows=CACHED_SAGAS_MAX,
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
                graceful_shutdown_timeout=timedelta(seconds=5),
            )
        await stack.enter_async_context(worker)
        yield HandWritten(client, task_queue, tuned=name == TUNED)
