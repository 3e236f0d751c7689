"""The engine's activities called one by one on a real PostgreSQL, as a saga would call them, without Temporal."""

import json
import uuid
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from activities.admission import Admission
from activities.barrier import execute_step
from activities.compensation import compensate_step
from activities.database import Database
from activities.decisions import admit_decision
from activities.packs.ledger import PACK as LEDGER
from activities.phase import close_intent, park_intent, settle_intent
from activities.remote import execute_remote_step
from activities.remote_compensation import compensate_remote_step
from activities.reservations import confirming
from activities.resolutions import admit_resolution
from activities.sightings import look_up_step
from activities.tool import AnyRemoteTool, AnyTool, Pack, RemoteTool, Tool
from contracts import saga
from contracts.base import JsonObject
from contracts.envelope import Cause
from contracts.errors import ErrorInfo, SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Policy
from tests.support.sagas import create_accounts, request
from tests.support.samples import Behaviour, create_tables, sample_pack


@dataclass
class Desk:
    """One database, the packs, and what a saga asks of them; every method is one activity."""

    database: Database
    database_url: str
    behaviour: Behaviour
    policy: Policy
    more: tuple[Pack, ...] = ()
    open_runs: set[str] = field(default_factory=set[str])
    """Runs that Temporal would call open."""

    def __post_init__(self) -> None:
        """Make the packs."""
        self.packs = (LEDGER, sample_pack(self.behaviour), *self.more)
        every = [tool for pack in self.packs for tool in pack.tools]
        local = [tool for tool in every if isinstance(tool, Tool)]
        local += [made for tool in local if (made := confirming(tool))]
        self.tools: dict[str, AnyTool] = {tool.contract.wire_name: tool for tool in local}
        self.remote = {tool.contract.wire_name: tool for tool in every if isinstance(tool, RemoteTool)}
        registry = Registry.of([tool.contract for tool in every])
        self.admission = Admission(self.database, registry, self.packs, self.policy, self._is_open)

    async def _is_open(self, _workflow_id: str, run_id: str) -> bool:
        return run_id in self.open_runs

    async def admit(self, body: Any, *, workflow: str = "w", run: str = "run-1") -> saga.Standing:  # noqa: ANN401
        """Admit the workflow's input, whatever it is."""
        return await self.admission.admit(saga.AdmitRequest(request=body, workflow_id=workflow, run_id=run))

    async def intent(self, *steps: JsonObject, run: str = "run-1") -> "Desked":
        """Admit a new intent."""
        workflow = f"w-{uuid.uuid4().hex}"
        return Desked(self, await self.admit(request(*steps), workflow=workflow, run=run), workflow, run)

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

    def count(self, table: str, where: str = "true") -> int:
        """Count rows."""
        return int(self.one(f"select count(*) as n from {table} where {where}")["n"])  # noqa: S608 - of the tests


@dataclass
class Desked:
    """An admitted intent, as the run that owns it sees it."""

    desk: Desk
    standing: saga.Standing
    workflow: str
    run: str

    @property
    def plan(self) -> Plan:
        """What was admitted."""
        assert self.standing.plan is not None
        return self.standing.plan

    @property
    def claim(self) -> saga.Claim:
        """What this run says of itself."""
        return saga.Claim(
            intent_key=self.plan.intent_key,
            workflow_id=self.workflow,
            run_id=self.run,
            epoch=self.standing.epoch,
        )

    def seen_by(self, **changes: Any) -> "Desked":  # noqa: ANN401 - run or epoch
        """The same intent in the eyes of another run or epoch."""
        epoch = changes.pop("epoch", self.standing.epoch)
        return replace(self, standing=self.standing.model_copy(update={"epoch": epoch}), **changes)

    def call(self, step_id: str, **arguments: Any) -> saga.StepCall:  # noqa: ANN401 - JSON
        """Input of a step's activity; `arguments` fill in its bindings."""
        planned = self.plan.by_id[step_id].arguments
        return saga.StepCall(claim=self.claim, step_id=step_id, arguments={**planned, **arguments})

    def tool(self, step_id: str) -> AnyTool:
        """The tool of a step."""
        return self.desk.tools[self.plan.by_id[step_id].tool]

    def remote(self, step_id: str) -> AnyRemoteTool:
        """The tool of a step that is sent somewhere."""
        return self.desk.remote[self.plan.by_id[step_id].tool]

    async def send(self, step_id: str) -> saga.StepResult:
        """Run a step that is sent somewhere."""
        return await execute_remote_step(self.desk.database, self.remote(step_id), self.call(step_id))

    async def look(self, step_id: str, *, closing: bool = False) -> saga.Sighting:
        """Look up what became of it."""
        call = saga.LookupCall(claim=self.claim, step_id=step_id, closing=closing)
        return await look_up_step(self.desk.database, self.remote(step_id), call)

    async def bring_back(self, step_id: str) -> saga.CompensateResult:
        """Undo it."""
        call = saga.CompensateCall(claim=self.claim, step_id=step_id)
        return await compensate_remote_step(self.desk.database, self.remote(step_id), call)

    async def execute(self, step_id: str, **arguments: Any) -> saga.StepResult:  # noqa: ANN401 - JSON
        """Run a step."""
        return await execute_step(self.desk.database, self.tool(step_id), self.call(step_id, **arguments))

    async def compensate(self, step_id: str) -> saga.CompensateResult:
        """Undo a step."""
        call = saga.CompensateCall(claim=self.claim, step_id=step_id)
        return await compensate_step(self.desk.database, self.tool(step_id), call)

    async def close(self, cause: Cause = Cause.CANCELLED, error: ErrorInfo | None = None) -> saga.Closed:
        """Shut the way forward."""
        closing = saga.CloseRequest(claim=self.claim, cause=cause, error=error, actor="tester")
        return await close_intent(self.desk.database, closing)

    async def settle(self) -> saga.Standing:
        """Set the final phase."""
        return await settle_intent(self.desk.database, saga.SettleRequest(claim=self.claim))

    async def park(self, reason: saga.ParkReason, *stuck: str) -> saga.Standing:
        """Put it to rest."""
        detail = {"steps": [{"step_id": step_id, "error": None} for step_id in stuck]}
        return await park_intent(self.desk.database, saga.ParkRequest(claim=self.claim, reason=reason, detail=detail))

    async def decide(self, verdict: str = "approve", **changes: Any) -> saga.DecisionAnswer:  # noqa: ANN401
        """Approve or deny, all or one step."""
        decision = saga.Decision.model_validate(
            {
                "decision_id": f"d-{verdict}",
                "plan_digest": self.standing.plan_digest,
                "verdict": verdict,
                "approver": "approver",
                **changes,
            }
        )
        asked = saga.DecisionRequest(claim=self.claim, decision=decision, door="update")
        return await admit_decision(self.desk.database, asked)

    async def resolve(self, verb: str, step_id: str | None = None, **changes: Any) -> saga.ResolutionAnswer:  # noqa: ANN401
        """Say an operator's verb."""
        said = saga.Resolution.model_validate(
            {
                "resolution_id": "r1",
                "verb": verb,
                "operator": "operator",
                "step_id": step_id,
                "evidence": "looked at it",
                **changes,
            }
        )
        request = saga.ResolutionRequest(claim=self.claim, resolution=said)
        return await admit_resolution(self.desk.database, request, self.desk.remote)

    def row(self) -> dict[str, Any]:
        """The intent's row."""
        return self.desk.one("select * from backstay.intents where intent_key = %s", self.plan.intent_key)

    def effects(self) -> dict[str, str]:
        """All barrier rows: state by key, without the intent's part of it."""
        rows = self.desk.rows(
            "select step_key, state from backstay.effects where intent_key = %s order by transaction_id",
            self.plan.intent_key,
        )
        return {row["step_key"].split("/", 1)[1]: row["state"] for row in rows}

    def noted(self) -> list[str]:
        """Kinds of the intent's audit rows, in order."""
        rows = self.desk.rows(
            "select kind from backstay.audit_log where intent_key = %s order by audit_id", self.plan.intent_key
        )
        return [row["kind"] for row in rows]


_EMPTY: Final = """
do $$
begin
    execute (
        select 'truncate ' || string_agg(format('%I.%I', schemaname, tablename), ', ') || ' restart identity cascade'
        from pg_tables
        where (schemaname in ('backstay', 'ledger') and tablename not like '%version%') or tablename = 'notes'
    );
end $$
"""


@asynccontextmanager
async def at_desk(
    database_url: str, policy: Policy | None = None, packs: tuple[Pack, ...] = ()
) -> AsyncGenerator[Desk]:
    """Sit down at a database with a few books and accounts; one that was used before is emptied first (50 ms)."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute("select to_regclass('samples.notes') is not null").fetchone()
        if row == (True,):
            connection.execute(_EMPTY)
        else:
            create_tables(database_url)
    create_accounts(database_url)
    async with Database(database_url) as database:
        yield Desk(database, database_url, Behaviour(), policy or Policy(), packs)


def same_bytes(one: saga.Standing | saga.StepResult, other: saga.Standing | saga.StepResult) -> bool:
    """True when two answers travel as the same bytes."""
    return json.dumps(one.model_dump(mode="json")) == json.dumps(other.model_dump(mode="json"))


async def refused(work: Awaitable[object]) -> Reason:
    """Await what has to be refused, and say why it was."""
    with pytest.raises(SagaError) as error:
        await work
    return error.value.reason
