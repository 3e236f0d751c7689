"""A worker in this process on the shared servers, with the ledger and the sample pack, on a task queue of its own."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import DictRow, dict_row
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.database import Database
from activities.dispatch import ActivityFunction, Engine
from activities.packs.ledger import PACK as LEDGER
from activities.tool import Pack
from contracts import saga
from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.intent import Caller
from contracts.risk import Policy
from tests.support.samples import Behaviour, create_tables, sample_pack
from worker.service import build_worker, ensure_search_attributes
from worker.settings import Settings

CALLER: Final = Caller(tenant="bank", principal="customer", agent="agent")
BOUND_SECONDS: Final = 20.0
LARGE_CENTS: Final = 1_500_000
ACCOUNTS: Final = """
select ledger.open_account('S00000001', 'bank', null, 'CASH', 'EUR'),
    ledger.open_account('S00000002', 'bank', null, 'MERCHANT', 'EUR'),
    ledger.open_account('A00000001', 'bank', 'customer', 'CURRENT', 'EUR'),
    ledger.open_account('A00000002', 'bank', 'somebody-else', 'CURRENT', 'EUR'),
    ledger.open_account('A00000003', 'bank', 'customer', 'CURRENT', 'EUR', 1000),
    ledger.open_account('S00000009', 'other-bank', null, 'CASH', 'EUR'),
    ledger.open_account('A00000009', 'other-bank', 'customer', 'CURRENT', 'EUR')
"""
Handle = WorkflowHandle[Any, Any]


def create_accounts(database_url: str) -> None:
    """Open and fund a few accounts, as the owner."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(ACCOUNTS)
        connection.execute("select ledger.fund_account('A00000001', 'S00000001', 100000000)")
        connection.execute("select ledger.fund_account('A00000003', 'S00000001', 5000)")
        connection.execute("select ledger.fund_account('A00000009', 'S00000009', 5000)")


def freeze_and_debit(amount_cents: int = 500) -> list[JsonObject]:
    """The reference chain."""
    money = {"amount_cents": amount_cents, "currency": "EUR", "reason_code": "PURCHASE"}
    return [
        {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": {"account_id": "A00000001", **money}},
        {
            "step_id": "debit",
            "tool": "debit_frozen_funds",
            "arguments": {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": "S00000002", **money},
        },
    ]


def request(*steps: JsonObject, session: str | None = None, caller: Caller = CALLER, **more: Any) -> JsonObject:  # noqa: ANN401
    """Input of the workflow. Fields of the intent may be given by `intent={...}`.

    The business reference is the session's, so that the same steps in another session are no near-duplicates.
    """
    session = session or f"s-{uuid.uuid4().hex}"
    more = {"business_reference": session, **more}
    intent = {"protocol": 1, "session_id": session, "steps": list(steps)}
    intent |= more.pop("intent", {})
    return {"protocol": 1, "caller": caller.model_dump(), "intent": intent, **more}


@dataclass
class Sagas:
    """What a test of whole sagas may use."""

    client: Client
    engine: Engine
    behaviour: Behaviour
    database_url: str
    task_queue: str
    handles: list[Handle] = field(default_factory=list[Handle])

    def rows(self, statement: str, *params: object) -> list[dict[str, Any]]:
        """Ask the tables as the superuser, or change them behind the engine's back."""
        with psycopg.Connection[DictRow].connect(
            self.database_url, row_factory=dict_row, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, *params: object) -> dict[str, Any]:
        """Ask for exactly one row."""
        (row,) = self.rows(statement, *params)
        return row

    async def start(self, body: Any, *, workflow_id: str | None = None, **more: Any) -> Handle:  # noqa: ANN401
        """Start a saga as any Temporal client does: by name."""
        handle = await self.client.start_workflow(
            saga.WORKFLOW,
            body,
            id=workflow_id or f"w-{uuid.uuid4().hex}",
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=5),
            **more,
        )
        self.handles.append(handle)
        return handle

    async def run(self, *steps: JsonObject, **more: Any) -> Envelope:  # noqa: ANN401
        """Carry an intent to its envelope."""
        return await self.result(await self.start(request(*steps, **more)))

    async def result(self, handle: Handle) -> Envelope:
        """Wait for a saga's envelope, and not for ever. Raises WorkflowFailureError for one that failed."""
        async with asyncio.timeout(BOUND_SECONDS):
            return Envelope.model_validate(await handle.result())

    async def status(self, handle: Handle) -> Envelope:
        """Ask a saga how it stands."""
        return Envelope.model_validate(await handle.query("status"))

    async def waiting(self, handle: Handle, stands: Callable[[Envelope], bool] | None = None) -> Envelope:
        """Come back when a saga waits for people."""

        def waits(envelope: Envelope) -> bool:
            waiting_for = str((envelope.data or {}).get("waiting_for"))
            return waiting_for.startswith(("a decision", "an operator"))

        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                try:
                    envelope = await self.status(handle)
                except RPCError as error:
                    if error.status is not RPCStatusCode.FAILED_PRECONDITION:  # no task has been completed yet
                        raise
                else:
                    if (stands or waits)(envelope):
                        return envelope
                await asyncio.sleep(0.02)

    async def update(self, handle: Handle, name: str, message: Any, **more: Any) -> saga.MessageAnswer:  # noqa: ANN401
        """Send a message and wait for the answer."""
        async with asyncio.timeout(BOUND_SECONDS):
            answer: Any = await handle.execute_update(name, message, **more)  # pyright: ignore[reportUnknownMemberType]
            return saga.MessageAnswer.model_validate(answer)

    async def update_with_start(
        self,
        name: str,
        message: Any,  # noqa: ANN401 - as above
        start: WithStartWorkflowOperation[Any, Any],
    ) -> saga.MessageAnswer:
        """Send a message together with the start of its saga."""
        async with asyncio.timeout(BOUND_SECONDS):
            answer: Any = await self.client.execute_update_with_start_workflow(  # pyright: ignore[reportUnknownMemberType]
                name, message, start_workflow_operation=start
            )
        self.handles.append(await start.workflow_handle())
        return saga.MessageAnswer.model_validate(answer)

    def intent(self, envelope: Envelope) -> dict[str, Any]:
        """The row of the intent that an answer is about."""
        return self.one("select * from backstay.intents where intent_id = %s", envelope.meta.intent_id)

    def effects(self, envelope: Envelope) -> dict[str, str]:
        """The execute rows of an intent: state by step id."""
        rows = self.rows(
            "select step_id, state from backstay.effects join backstay.intents using (intent_key)"
            " where intent_id = %s and direction = 'execute' order by transaction_id",
            envelope.meta.intent_id,
        )
        return {row["step_id"]: row["state"] for row in rows}

    def notes(self) -> dict[str, bool]:
        """Notes that were written: the text, and whether it stands."""
        return {row["text"]: not row["struck"] for row in self.rows("select text, struck from samples.notes")}


def outcome(envelope: Envelope) -> tuple[str, str]:
    """The two facts of an ended intent."""
    data = envelope.data or {}
    return data["outcome"], data["cause"]


def states(envelope: Envelope) -> dict[str, str]:
    """Step states by step id."""
    return {step["step_id"]: step["state"] for step in (envelope.data or {})["steps"]}


def approval(card: Envelope, verdict: str = "approve", **changes: object) -> dict[str, object]:
    """A decision about all that a card asks."""
    digest = (card.data or {})["plan_digest"]
    return {
        "decision_id": f"d-{verdict}",
        "plan_digest": digest,
        "verdict": verdict,
        "approver": "approver",
        "reason": "seen",
        **changes,
    }


def cancellation() -> dict[str, object]:
    """A wish to stop."""
    return {"reason": "enough", "requested_by": "tester"}


def resolution(verb: str, step_id: str | None = None, *, resolution_id: str = "r1") -> dict[str, object]:
    """An operator's word."""
    return {
        "resolution_id": resolution_id,
        "verb": verb,
        "operator": "operator",
        "step_id": step_id,
        "evidence": "looked at it",
    }


async def events(handle: Handle) -> list[int]:
    """Kinds of the events in a run's history."""
    return [event.event_type for event in (await handle.fetch_history()).events]


async def reset(sagas: Sagas, handle: Handle, task: str) -> Handle:
    """Reset a run to its first or its last workflow task; returns the new run."""
    history = await handle.fetch_history()
    completed = [
        event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    last_rest = max(completed) if task == "last" else min(completed)
    response = await sagas.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=sagas.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=handle.result_run_id or ""),
            reason="a test",
            request_id=uuid.uuid4().hex,
            workflow_task_finish_event_id=last_rest,
        )
    )
    again: Handle = sagas.client.get_workflow_handle(handle.id, run_id=response.run_id)
    sagas.handles.append(again)
    return again


@dataclass(frozen=True)
class GatedEngine(Engine):
    """The engine, with a place outside the transaction where an ordinary (not a local) activity can be held."""

    behaviour: Behaviour = field(default_factory=Behaviour)

    def activities(self) -> list[ActivityFunction]:
        """List the activity functions, each behind its gate."""
        return [self._gated(function) for function in super().activities()]

    def _gated(self, function: ActivityFunction) -> ActivityFunction:
        async def run(request: Any) -> Any:  # noqa: ANN401 - what the activity takes and gives
            step_id = getattr(request, "step_id", None)
            if step_id is not None and not activity.info().is_local:
                prefix = "undo:" if isinstance(request, saga.CompensateCall) else ""
                await self.behaviour.at(f"{prefix}{step_id}", "outside")
            return await function(request)

        run.__annotations__ = function.__annotations__
        run.__name__ = run.__qualname__ = function.__name__
        return activity.defn(name=function.__name__)(run)


@asynccontextmanager
async def serve(
    client: Client, database_url: str, task_queue: str, policy: Policy | None = None, packs: tuple[Pack, ...] = ()
) -> AsyncGenerator[Sagas]:
    """Serve until the block ends, with these packs besides; sagas that are still open are terminated then."""
    create_tables(database_url)
    create_accounts(database_url)
    behaviour = Behaviour()
    await ensure_search_attributes(client)
    async with Database(database_url) as database:
        served = (LEDGER, sample_pack(behaviour), *packs)
        engine = GatedEngine(database, served, policy or Policy(), behaviour=behaviour)
        settings = Settings.load(database_url=database_url, task_queue=task_queue)
        async with build_worker(client, engine, settings):
            sagas = Sagas(client, engine, behaviour, database_url, task_queue)
            try:
                yield sagas
            finally:
                for handle in sagas.handles:
                    try:
                        await handle.terminate("the test is over")
                    except RPCError:
                        continue  # it has ended
