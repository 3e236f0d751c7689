"""The world of the fault tests: a database, accounts, workers that can be killed, sagas, and the wish to wait."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, LiteralString, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row
from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.catalog import load_packs
from activities.database import Database
from activities.dispatch import Engine
from contracts import saga
from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.intent import Caller, IntentRequest
from contracts.proposal import propose
from contracts.registry import Registry
from tests.faults.support import hooked_worker
from tests.faults.support.control import Action, Control, Entry, Point, Rule
from tests.faults.support.intents import AGENT, CASH, MERCHANT, OPENED_CENTS, PRINCIPAL, TENANT, Steps
from tests.faults.support.nursery import Nursery
from worker.answers import read_known
from worker.door import Door
from worker.settings import Settings
from worker.stack import LocalStack
from worker.stack.processes import ProcessRecord, log_tail, spawn
from worker.sweep import Sweep, Swept

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[3]
CALLER: Final = Caller(tenant=TENANT, principal=PRINCIPAL, agent=AGENT)
WAIT_SECONDS: Final = 75.0
"""On a machine that is full, workflow tasks time out and are tried again 10 seconds apart."""
POLL_SECONDS: Final = 0.03
TASK_SECONDS: Final = 2.0
"""Workflow task time-out of these tests: a killed worker's sagas go on after it. Its heartbeat comes at 80 %."""
STOP_SECONDS: Final = 15.0


async def until(what: str | Callable[[], str], look: Callable[[], T], *, seconds: float = WAIT_SECONDS) -> T:
    """Look until there is something, and return it; fail with what was waited for."""

    async def looked() -> T:
        return look()

    return await until_async(what, looked, seconds=seconds)


async def until_async(
    what: str | Callable[[], str], look: Callable[[], Awaitable[T]], *, seconds: float = WAIT_SECONDS
) -> T:
    """Do `until` with a look that takes time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := await look()):
        if asyncio.get_running_loop().time() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {seconds:.0f} seconds in vain for {told}")
        await asyncio.sleep(POLL_SECONDS)
    return found


def look_into(database_url: str) -> psycopg.Connection[DictRow]:
    """Open a connection whose every statement is a transaction."""
    return psycopg.Connection[DictRow].connect(database_url, autocommit=True, row_factory=dict_row)


class WorkerProcess:
    """One worker in a process of its own; signals go to this very process and no other."""

    def __init__(self, process: ProcessRecord, log: Path) -> None:
        """Remember what was started."""
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is finished."""
        self.process.kill_with_children()

    def freeze(self) -> None:
        """SIGSTOP: it is cut off, with all its connections and locks."""
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was, and knows nothing."""
        self.process.send(signal.SIGCONT)

    async def stop(self) -> None:
        """End it in order."""
        await asyncio.to_thread(self.process.stop, signal.SIGTERM, timeout_seconds=STOP_SECONDS)

    async def died(self) -> None:
        """Wait until it is gone."""
        assert await asyncio.to_thread(self.process.wait, timeout_seconds=WAIT_SECONDS), f"worker {self.pid} lives"

    def is_ready(self) -> bool:
        """True once it has said that it serves."""
        return self.log.exists() and hooked_worker.READY in self.log.read_text()

    def said(self) -> str:
        """The end of its log."""
        return log_tail(self.log)


@dataclass(frozen=True)
class Posting:
    """An intent that is ready to be posted."""

    session_id: str
    intent_key: str
    intent_id: str
    intent: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """By what a rule may name it."""
        return (self.session_id, self.intent_key)


@dataclass
class Posted:
    """One intent that was posted, under the identity that the engine gave it."""

    world: "World"
    session_id: str
    intent_key: str
    intent_id: str
    request: IntentRequest
    handle: WorkflowHandle[Any, Envelope]

    @property
    def names(self) -> tuple[str, ...]:
        """By what a rule may name it: before and after admission."""
        return (self.session_id, self.intent_key)

    async def answer(self, *, seconds: float = WAIT_SECONDS) -> Envelope:
        """Wait for the envelope that its run ends with; a failed run carries one too."""
        try:
            async with asyncio.timeout(seconds):
                return await self.handle.result()
        except WorkflowFailureError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.details:
                return Envelope.model_validate(cause.details[0])
            raise
        except TimeoutError:
            told = [f"{e.at:.2f} {e.pid} {e.what} {e.name} {e.detail}" for e in self.journal()[-25:]]
            logs = [worker.said() for worker in self.world.workers[-2:]]
            raise AssertionError("\n".join([f"no outcome in {seconds:.0f} s", *told, *logs])) from None

    async def told(self) -> Envelope | None:
        """What the tables answer, as every door does when no run can; None before it was claimed."""
        async with self.world.database() as database:
            known = await database.run(lambda transaction: read_known(transaction, self.intent_key))
        return known.envelope() if known else None

    async def status(self) -> Envelope:
        """Ask the run how it stands."""
        told: Envelope = await self.handle.query("status", result_type=Envelope, rpc_timeout=timedelta(seconds=10))
        return told

    def row(self) -> DictRow | None:
        """Its row, once it is claimed."""
        return self.world.one("select * from backstay.intents where intent_key = %s", self.intent_key)

    def claimed(self) -> DictRow:
        """Its row, which is there."""
        row = self.row()
        assert row is not None, f"intent {self.intent_id} is not in the tables"
        return row

    def phase(self) -> str | None:
        """Its phase, once it is claimed."""
        row = self.row()
        return row["phase"] if row else None

    def parked(self) -> str | None:
        """Why it is parked; None when it is not."""
        row = self.row()
        return row["parked_reason"] if row else None

    async def until_parked(self, reason: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the tables and the run say that it is parked for this reason."""
        await until(f"{self.intent_id} parked {reason}", lambda: self.parked() == reason, seconds=seconds)

        async def says_so() -> bool:
            try:
                return ((await self.status()).data or {}).get("outcome") == "PARKED"
            except RPCError:
                return False

        await until_async(f"{self.intent_id} says that it is parked", says_so, seconds=seconds)

    def effects(self, direction: str = "execute") -> dict[str, str]:
        """State of each effect by step."""
        rows = self.world.all(
            "select step_id, state from backstay.effects where intent_key = %s and direction = %s"
            " order by transaction_id",
            self.intent_key,
            direction,
        )
        return {row["step_id"]: row["state"] for row in rows}

    def compensated(self) -> list[str]:
        """Steps whose compensation landed, in landing order, as often as it did."""
        rows = self.world.all(
            "select step_id from backstay.effects where intent_key = %s and direction = 'compensate'"
            " order by transaction_id",
            self.intent_key,
        )
        return [row["step_id"] for row in rows]

    def movements(self) -> list[tuple[str, int]]:
        """What was booked for it, in booking order."""
        rows = self.world.all(
            "select operation_type, amount_cents from ledger.movements where intent_id = %s order by movement_id",
            self.intent_id,
        )
        return [(row["operation_type"], row["amount_cents"]) for row in rows]

    def audit(self, kind: str) -> list[DictRow]:
        """Its audit rows of a kind."""
        return self.world.all(
            "select * from backstay.audit_log where intent_key = %s and kind = %s order by audit_id",
            self.intent_key,
            kind,
        )

    def claim(self) -> saga.Claim:
        """Who owns it now."""
        row = self.claimed()
        return saga.Claim(
            intent_key=self.intent_key, workflow_id=row["workflow_id"], run_id=row["run_id"], epoch=row["epoch"]
        )

    def step_call(self, step_id: str, arguments: JsonObject) -> saga.StepCall:
        """What the saga sends to a step's activity."""
        return saga.StepCall(claim=self.claim(), step_id=step_id, arguments=arguments)

    def compensate_call(self, step_id: str) -> saga.CompensateCall:
        """What the saga sends to a step's compensation."""
        return saga.CompensateCall(claim=self.claim(), step_id=step_id)

    def journal(self, what: str | None = None, name: str | None = None) -> list[Entry]:
        """What the workers noted about it."""
        return [
            entry
            for entry in self.world.control.journal(*self.names)
            if what in (None, entry.what) and name in (None, entry.name)
        ]

    def latest(self) -> "Posted":
        """The same intent, carried by whatever run its workflow id has now."""
        handle = self.world.client.get_workflow_handle(self.handle.id, result_type=Envelope)
        return replace(self, handle=handle)

    async def terminate(self) -> None:
        """End its run from outside, as an operator in Temporal's UI can."""
        await self.handle.terminate(reason="a test")

    async def reset(self, to: Literal["first", "last"]) -> "Posted":
        """Reset its run to its first or last completed workflow task, as an operator in Temporal's UI can."""
        history = await self.handle.fetch_history()
        tasks = [e.event_id for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
        described = await self.handle.describe()
        await self.world.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.world.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=self.handle.id, run_id=described.run_id),
                reason="a test",
                workflow_task_finish_event_id=tasks[0 if to == "first" else -1],
                request_id=str(uuid.uuid4()),
            )
        )
        return self.latest()

    # --- messages ------------------------------------------------------------------------------------------------

    async def update(self, name: str, message: BaseModel) -> saga.MessageAnswer | None:
        """Send an update; None when the run had ended before it could answer."""
        try:
            answer: saga.MessageAnswer = await self.handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
                name, message, result_type=saga.MessageAnswer, rpc_timeout=timedelta(seconds=WAIT_SECONDS)
            )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            assert isinstance(cause, ApplicationError), repr(cause)
            return saga.MessageAnswer(accepted=False, message=cause.message)
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None
            raise
        else:
            return answer

    async def cancel(self, door: str, by: str = "somebody") -> saga.MessageAnswer | None:
        """Ask to stop it through one of the three doors; only the update answers."""
        cancellation = saga.Cancellation(reason="a test", requested_by=by)
        if door == "update":
            return await self.update("cancel", cancellation)
        try:
            if door == "signal":
                await self.handle.signal("cancel", cancellation)
            else:
                await self.handle.cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return None

    async def decide(
        self,
        verdict: Literal["approve", "deny"] = "approve",
        *,
        decision_id: str | None = None,
        plan_digest: str | None = None,
        step_id: str | None = None,
        approver: str = "demo-approver",
    ) -> saga.MessageAnswer | None:
        """Decide what is asked, by update."""
        return await self.update("decide", self.decision(verdict, decision_id, plan_digest, step_id, approver))

    def decision(
        self,
        verdict: Literal["approve", "deny"] = "approve",
        decision_id: str | None = None,
        plan_digest: str | None = None,
        step_id: str | None = None,
        approver: str = "demo-approver",
    ) -> saga.Decision:
        """Make a decision over the plan as it is stored."""
        return saga.Decision(
            decision_id=decision_id or f"d-{uuid.uuid4()}",
            plan_digest=plan_digest or self.claimed()["plan_digest"],
            verdict=verdict,
            approver=approver,
            step_id=step_id,
        )

    async def resolve(
        self,
        verb: Literal["retry", "skip", "done", "close", "forward"],
        *,
        step_id: str | None = None,
        evidence: str = "",
        resolution_id: str | None = None,
    ) -> saga.MessageAnswer | None:
        """Say as an operator how it goes on."""
        resolution = saga.Resolution(
            resolution_id=resolution_id or f"r-{uuid.uuid4()}",
            verb=verb,
            operator="demo-operator",
            step_id=step_id,
            evidence=evidence,
        )
        return await self.update("resolve", resolution)

    async def until_asked(self) -> None:
        """Wait until the run waits for a decision."""

        async def asks() -> bool:
            row = self.row()
            if row is None:
                return False
            return "decision" in str(((await self.status()).data or {}).get("waiting_for"))

        await until_async(f"{self.intent_id} asks", asks)

    async def until_fired(self, rule: Rule, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a fault has happened."""
        await until(
            lambda: f"fault {rule.name}; journal: {[(e.what, e.name) for e in self.journal()]}",
            lambda: self.world.control.fired(rule) > 0,
            seconds=seconds,
        )


def _registry() -> Registry:
    return Registry.of([tool.contract for pack in load_packs(()) for tool in pack.tools])


@dataclass
class World:
    """Everything that a fault test may use."""

    stack: LocalStack
    database_url: str
    client: Client
    task_queue: str
    control: Control
    nursery: Nursery
    registry: Registry = field(default_factory=_registry)
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    posted: list[Posted] = field(default_factory=list[Posted])
    accounts: "count[int]" = field(default_factory=count)
    _looking: psycopg.Connection[DictRow] | None = None
    _rules: int = 0

    def part(self, name: str, *, database_url: str | None = None) -> "World":
        """Make a world with other workers, faults and accounts, on the same database or on one of its own."""
        directory = self.control.directory / name
        directory.mkdir()
        return replace(
            self,
            database_url=database_url or self.database_url,
            accounts=count() if database_url else self.accounts,
            task_queue=f"{self.task_queue}-{name}",
            control=Control(directory),
            workers=[],
            posted=[],
            _looking=None,
            _rules=0,
        )

    # --- tables --------------------------------------------------------------------------------------------------

    def all(self, statement: LiteralString, *params: object) -> list[DictRow]:
        """Read rows as the superuser, each statement in a snapshot of its own; connects again after a crash."""
        for _ in range(2):
            if self._looking is None or self._looking.closed:
                self._looking = look_into(self.database_url)
            try:
                return self._looking.execute(statement, params or None).fetchall()
            except psycopg.OperationalError:
                self._looking.close()
        self._looking = look_into(self.database_url)
        return self._looking.execute(statement, params or None).fetchall()

    def one(self, statement: LiteralString, *params: object) -> DictRow | None:
        """Read one row."""
        rows = self.all(statement, *params)
        return rows[0] if rows else None

    def do(self, statement: LiteralString, *params: object) -> None:
        """Change something by hand, as the owner of the ledger does."""
        with look_into(self.database_url) as connection:
            connection.execute(statement, params or None)

    @contextmanager
    def session(self) -> Generator[psycopg.Connection[DictRow]]:
        """Open another session with a transaction, in which a test holds something."""
        with psycopg.Connection[DictRow].connect(self.database_url, row_factory=dict_row) as connection:
            yield connection

    def account(self, opened_cents: int = OPENED_CENTS, *, principal: str = PRINCIPAL) -> str:
        """Open a customer account that no other saga uses, with money on it."""
        account = f"A{next(self.accounts) + 1:08}"
        self.do("select ledger.open_account(%s, %s, %s, 'CURRENT', 'EUR')", account, TENANT, principal)
        if opened_cents:
            self.do("select ledger.fund_account(%s, %s, %s)", account, CASH, opened_cents)
        return account

    def open_bank(self) -> None:
        """Open the accounts that every saga shares."""
        for system, kind in ((MERCHANT, "MERCHANT"), (CASH, "CASH")):
            self.do("select ledger.open_account(%s, %s, null, %s, 'EUR')", system, TENANT, kind)

    def standing(self, account: str) -> tuple[int, int]:
        """Balance and held amount of an account."""
        row = self.one("select balance_cents, held_cents from ledger.accounts where account_id = %s", account)
        assert row is not None
        return row["balance_cents"], row["held_cents"]

    # --- processes -----------------------------------------------------------------------------------------------

    def environment(self, database_url: str | None = None) -> dict[str, str]:
        """Make an environment in which a process of ours finds this world and no other."""
        ours = ("BACKSTAY_", "TEMPORAL_", "DATABASE_URL", "PG", "OTEL_", "FAULTS_TEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return kept | {
            "DATABASE_URL": database_url or self.database_url,
            "TEMPORAL_ADDRESS": self.stack.temporal_address,
            "TEMPORAL_NAMESPACE": "default",
            "BACKSTAY_TASK_QUEUE": self.task_queue,
            "BACKSTAY_TENANT": TENANT,
            "BACKSTAY_STICKY_TIMEOUT_SECONDS": "1",
            "BACKSTAY_STATE_DIR": str(self.control.directory / "state"),
            hooked_worker.DIRECTORY: str(self.control.directory),
        }

    async def command(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        """Run `backstay` as a person would, and read what it answers; its exit code has to be as expected."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from worker.cli import main; main()", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(),
            cwd=ROOT,
        )
        said, complained = await process.communicate()
        assert process.returncode == exit_code, (words, process.returncode, said, complained)
        answer: dict[str, Any] = json.loads(said) if "--json" in words else {}
        return answer

    async def start_worker(
        self,
        *,
        database_url: str | None = None,
        extra: Mapping[str, str] | None = None,
        wait: bool = True,
        fresh: bool = False,
    ) -> WorkerProcess:
        """Start a worker and wait until it serves; `fresh` starts a new interpreter instead of forking one."""
        number = len(self.workers)
        log = self.control.directory / f"worker-{number}.log"
        environment = self.environment(database_url) | dict(extra or {})
        if fresh:
            command = [sys.executable, "-m", hooked_worker.__name__]
            bond = signal.SIGKILL
            process = spawn(command, log=log, dies_with_parent=bond, environment=environment, cwd=str(ROOT))
        else:
            process = self.nursery.fork(environment, log)
        worker = WorkerProcess(process, log)
        self.workers.append(worker)
        if wait:
            await until("the worker", lambda: worker.is_ready() or not process.is_alive(), seconds=60)
            assert process.is_alive(), f"the worker ended: {worker.said()}"
        return worker

    def settings(self) -> Settings:
        """Settings of a process of this world."""
        return Settings.load(
            database_url=self.database_url,
            task_queue=self.task_queue,
            tenant=TENANT,
            principal=PRINCIPAL,
            agent=AGENT,
            workflow_task_timeout_seconds=TASK_SECONDS,
        )

    @asynccontextmanager
    async def database(self) -> AsyncGenerator[Database]:
        """A pool of this process, under the engine's role."""
        async with Database(self.database_url, connections_max=12) as database:
            yield database

    @asynccontextmanager
    async def door(self) -> AsyncGenerator[Door]:
        """A front door in this process."""
        async with self.database() as database:
            engine = Engine(database, load_packs(()))
            async with Door.of(self.client, engine, self.settings()) as door:
                yield door

    async def sweep(self) -> Swept:
        """Sweep as `backstay sweep` does."""
        async with self.database() as database:
            return await Sweep(self.client, database, self.settings()).run()

    def close(self) -> None:
        """Kill what is left of the workers, and only them."""
        for worker in self.workers:
            worker.thaw()
            worker.kill()
        if self._looking is not None:
            self._looking.close()

    # --- faults --------------------------------------------------------------------------------------------------

    def arm(
        self,
        activity: str,
        point: Point,
        action: Action,
        *intents: Posting | Posted,
        seconds: float = 0.0,
        times: int | None = None,
        stubborn: bool = False,
        sqlstate: str = "",
    ) -> Rule:
        """Let a fault happen at a point, for these intents, or for any.

        It happens once; but a pause holds every attempt until its release. `times` says otherwise, 0 is always.
        """
        self._rules += 1
        name = f"{self._rules:03}-{action}-{point}-{activity.replace('@', '.')}"
        names = tuple(name for intent in intents for name in intent.names)
        often = (0 if action == "pause" else 1) if times is None else times
        return self.control.arm(Rule(name, activity, point, action, names, seconds, often, stubborn, sqlstate))

    # --- intents -------------------------------------------------------------------------------------------------

    def posting(self, steps: Steps, *, session_id: str | None = None, **more: Any) -> Posting:  # noqa: ANN401
        """Make an intent ready to be posted, and work out its identity as the doors do."""
        session_id = session_id or f"s-{uuid.uuid4()}"
        intent = {"protocol": 1, "session_id": session_id, "steps": steps, **more}
        proposal = propose(intent, CALLER, self.registry)
        return Posting(session_id, proposal.intent_key, proposal.intent_id, intent)

    async def post(
        self,
        posting: Posting | Steps,
        *,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        task_seconds: float = TASK_SECONDS,
        reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
    ) -> Posted:
        """Start the saga as the front door does; `workflow_id` as a foreign client might."""
        if not isinstance(posting, Posting):
            posting = self.posting(posting)
        request = IntentRequest(caller=CALLER, intent=posting.intent, idempotency_key=idempotency_key)
        handle: WorkflowHandle[Any, Envelope] = await self.client.start_workflow(
            saga.WORKFLOW,
            request,
            id=workflow_id or posting.intent_id,
            task_queue=self.task_queue,
            result_type=Envelope,
            id_reuse_policy=reuse,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=timedelta(seconds=task_seconds),
            rpc_timeout=timedelta(seconds=20),
        )
        posted = Posted(self, posting.session_id, posting.intent_key, posting.intent_id, request, handle)
        self.posted.append(posted)
        return posted
