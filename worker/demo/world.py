"""The world that the scenes play in: servers, accounts, a worker, a door, and the tables to hold everything against."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.enums.v1 import EventType

from contracts.envelope import Envelope
from contracts.intent import Caller
from contracts.proposal import propose_body
from worker.answers import read_known
from worker.demo.claims import DemoFailedError, until
from worker.demo.picture import picture
from worker.demo.processes import ROOT, WorkerProcess, environment, run_command

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from temporalio.client import Client, WorkflowHandle

    from activities.database import Database
    from contracts.registry import Registry
    from worker.answers import Known
    from worker.demo.faults import Faults
    from worker.demo.owner import Owner
    from worker.demo.screen import Screen
    from worker.demo.tables import Saga, Tables
    from worker.door import Door
    from worker.messages import Messages
    from worker.settings import Settings
    from worker.stack import LocalStack

INTENTS: Final = ROOT / "examples" / "intents"
REDRAW_SECONDS: Final = 0.05
POST_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Posting:
    """An intent that is ready to be posted, and the id that it will have: the same whenever it is posted."""

    body: bytes
    intent_id: str
    intent_key: str
    business_reference: str | None = None


@dataclass(kw_only=True)
class World:
    """What a scene may use."""

    stack: LocalStack
    settings: Settings
    client: Client
    door: Door
    messages: Messages
    registry: Registry
    looking: Database
    tables: Tables
    owner: Owner
    screen: Screen
    faults: Faults
    worker: WorkerProcess | None = None
    accepted: list[Envelope] = field(default_factory=list[Envelope])
    """Every answer that named an intent: a post that was accepted, as new or as a repeat."""

    @property
    def caller(self) -> Caller:
        """Who posts."""
        return Caller(tenant=self.settings.tenant, principal=self.settings.principal, agent=self.settings.agent)

    # --- posting ------------------------------------------------------------------------------------------------

    def posting(self, name: str, business_reference: str | None = None) -> Posting:
        """Read an example and work out its identity, as `backstay key` does."""
        body = (INTENTS / f"{name}.json").read_bytes()
        proposal = propose_body(body, self.caller, self.registry, business_reference=business_reference)
        return Posting(body, proposal.intent_id, proposal.intent_key, business_reference)

    async def post(self, posting: Posting, *, idempotency_key: str | None = None, wait: bool = True) -> Envelope:
        """Post through the front door, and draw the saga until the door answers. Counts what was accepted."""
        answer = self.door.post(
            posting.body,
            self.caller,
            business_reference=posting.business_reference,
            idempotency_key=idempotency_key,
            wait_seconds=POST_SECONDS if wait else 0.0,
        )
        envelope = await (self.watch(posting, answer) if wait else answer)
        if envelope.meta.intent_id is not None:
            self.accepted.append(envelope)
        return envelope

    async def watch(self, posting: Posting, work: Awaitable[Envelope]) -> Envelope:
        """Draw a saga from the tables until an answer about it is there; then the answer."""
        task = asyncio.ensure_future(work)
        try:
            with self.screen.live() as draw:
                drawn = None
                while not task.done():
                    await asyncio.wait({task}, timeout=REDRAW_SECONDS)
                    known = await self.known(posting)
                    if known is not None and drawn != (now := (known.report(), known.effects)):
                        draw(picture(known.envelope(), known.effects))
                        drawn = now
                if (envelope := await task).data is not None:
                    known = await self.known(posting)
                    draw(picture(envelope, known.effects if known else ()))
        finally:
            task.cancel()
        return envelope

    async def outcome(self, posting: Posting) -> Envelope:
        """Draw a saga until it has its outcome or parks, and return what the saga itself answers then."""

        async def answer() -> Envelope:
            await until("the outcome", lambda: self._is_over(posting))
            run: WorkflowHandle[Any, Envelope] = self.client.get_workflow_handle(
                posting.intent_id, result_type=Envelope
            )
            if self.saga(posting).parked is None:
                return await run.result()
            status: Envelope = await run.query("status", result_type=Envelope)
            return status

        return await self.watch(posting, answer())

    def _is_over(self, posting: Posting) -> bool:
        return (
            self.tables.number(
                "select count(*) from backstay.intents"
                " where intent_id = %s and (final_at is not null or parked_reason is not null)",
                (posting.intent_id,),
            )
            > 0
        )

    async def known(self, posting: Posting) -> Known | None:
        """Read how an intent stands."""
        return await self.looking.run(lambda transaction: read_known(transaction, posting.intent_key))

    # --- looking ------------------------------------------------------------------------------------------------

    def saga(self, posting: Posting) -> Saga:
        """Read all that the tables hold of an intent that was admitted. Raises DemoFailedError."""
        saga = self.tables.saga(posting.intent_id)
        if saga is None:
            raise DemoFailedError(f"intent {posting.intent_id} is not in the tables")
        return saga

    def effects(self) -> int:
        """Count all effects of all intents."""
        return self.tables.number("select count(*) from backstay.effects")

    def door_refusals(self) -> int:
        """Count the refusals that the door has noted."""
        return self.tables.number("select count(*) from backstay.audit_log where kind = 'door_refused'")

    def serials(self, posting: Posting) -> dict[str, int]:
        """Read the serial number of each step's effect."""
        rows = self.tables.rows(
            "select step_id, transaction_id from backstay.effects where intent_key = %s and direction = 'execute'"
            " order by transaction_id",
            (posting.intent_key,),
        )
        return {row["step_id"]: row["transaction_id"] for row in rows}

    async def acknowledged(self, posting: Posting) -> list[str]:
        """List the local activities whose results Temporal has been told."""
        history = await self.client.get_workflow_handle(posting.intent_id).fetch_history()
        told: list[str] = []
        for event in history.events:
            if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
                (about,) = event.marker_recorded_event_attributes.details["data"].payloads
                told.append(json.loads(about.data)["activity_type"])
        return told

    async def task_attempt(self, posting: Posting) -> int:
        """Read how often Temporal gave out the workflow task that brought the results."""
        history = await self.client.get_workflow_handle(posting.intent_id).fetch_history()
        return max(event.workflow_task_scheduled_event_attributes.attempt for event in history.events)

    # --- processes ----------------------------------------------------------------------------------------------

    async def start_worker(self) -> None:
        """Start the one worker of the demo, with all faults, disarmed."""
        env = environment(self.stack, self.stack.database_url, **self.faults.variables)
        self.worker = await WorkerProcess.start(self.stack, self.settings.task_queue, env)

    def kill_worker(self) -> int:
        """End the worker with SIGKILL, and return its process id."""
        self.running.kill()
        return self.running.pid

    @property
    def running(self) -> WorkerProcess:
        """The worker that was started last."""
        if self.worker is None:
            raise AssertionError("no worker was started")
        return self.worker

    async def command(self, *arguments: str) -> None:
        """Run a `backstay` command as a person would, and show it. Raises DemoFailedError if it fails."""
        env = environment(self.stack, self.stack.database_url)
        self.screen.command(await run_command(env, *arguments))
