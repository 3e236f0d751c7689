"""Admission on a real PostgreSQL: what is claimed is never judged again, adopted only when its owner is over."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from temporalio.testing import ActivityEnvironment

from activities.admission import Admission
from activities.audit import REFUSALS_PER_MINUTE_MAX
from activities.catalog import PackError, check_resources, load_packs
from activities.database import Database
from activities.dispatch import is_open
from activities.packs.ledger import PACK
from activities.tool import Pack
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import DEFAULT_POLICY
from contracts.saga import AdmitRequest, IntentPhase, ParkReason, Standing
from tests.support.house import ANNA, ANNAS, GATED_CENTS, POOR, House, freeze_and_debit, open_accounts, session

CONTRACTS = [tool.contract for tool in PACK.tools]
LEDGER = Registry.of(CONTRACTS)
WITHOUT_TOOLS = Registry()
OTHER_KEYS = Registry(
    replace(contract, identity_fields=("amount_cents",)) if contract.name == "freeze_account_funds" else contract
    for contract in CONTRACTS
)


@dataclass
class Temporal:
    """A Temporal that knows which runs are open; it looks at the tables, so no transaction may hold the connection."""

    open_runs: set[str] = field(default_factory=set[str])
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    before_answer: Callable[[], object] | None = None
    database: Database | None = None

    async def is_open(self, workflow_id: str, run_id: str) -> bool:
        """Tell, and remember that it was asked."""
        assert self.database is not None
        await self.database.one("select 1 as one")
        self.asked.append((workflow_id, run_id))
        if self.before_answer is not None:
            self.before_answer()
        return run_id in self.open_runs


@dataclass
class Desk:
    """Admission over one connection, and the tables behind it."""

    url: str
    database: Database
    temporal: Temporal
    registry: Registry = field(default_factory=lambda: LEDGER)

    async def admit(self, intent: bytes, workflow_id: str, run_id: str = "run-1", **more: Any) -> Standing:  # noqa: ANN401
        """Ask as a run does."""
        admission = Admission(self.database, self.registry, (PACK,), DEFAULT_POLICY, self.temporal.is_open)
        request = {"caller": ANNA.model_dump(), "intent": json.loads(intent), **more}
        return await admission.admit(AdmitRequest(request=request, workflow_id=workflow_id, run_id=run_id))

    async def refused(self, intent: bytes, workflow_id: str, run_id: str = "run-1", **more: Any) -> SagaError:  # noqa: ANN401
        """Ask and be refused."""
        with pytest.raises(SagaError) as error:
            await self.admit(intent, workflow_id, run_id, **more)
        return error.value

    def rows(self, statement: LiteralString, *params: object) -> list[dict[str, Any]]:
        """Ask the tables, or change them behind the engine's back."""
        with psycopg.Connection[DictRow].connect(self.url, row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def end(self, standing: Standing, phase: str = "COMPENSATED", report: JsonObject | None = None) -> None:
        """Let an intent have its final phase."""
        told = json.dumps({"outcome": phase, "cause": "none", "steps": [], **(report or {})})
        self.rows(
            "update backstay.intents set phase = %s, final_at = now(), report = %s where intent_id = %s",
            phase,
            told,
            standing.intent_id,
        )


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    """A desk with accounts, and one connection only."""
    open_accounts(database_url)
    async with Database(database_url, connections_max=1) as database:
        yield Desk(database_url, database, Temporal(database=database))


# ------------------------------------------------------------------------------ what is claimed is not judged again


@pytest.mark.parametrize("later", [WITHOUT_TOOLS, OTHER_KEYS], ids=["refused today", "another key today"])
async def test_a_run_with_the_stored_request_gets_the_stored_standing(desk: Desk, later: Registry) -> None:
    body, name = freeze_and_debit(session()), session()
    first = await desk.admit(body, name)

    desk.registry = later
    again = await desk.admit(body, name)

    assert again == first
    assert len(desk.rows("select 1 from backstay.intents")) == 1


@pytest.mark.parametrize("later", [WITHOUT_TOOLS, OTHER_KEYS], ids=["refused today", "another key today"])
async def test_a_new_run_adopts_what_today_would_be_judged_otherwise(desk: Desk, later: Registry) -> None:
    body, name = freeze_and_debit(session()), session()
    first = await desk.admit(body, name)

    desk.registry = later
    adopted = await desk.admit(body, name, "run-2")

    assert (adopted.intent_id, adopted.plan, adopted.epoch) == (first.intent_id, first.plan, 2)
    assert (adopted.parked, adopted.duplicate) == (ParkReason.INTERRUPTED, False)
    assert desk.temporal.asked == [(name, "run-1")]


async def test_a_final_outcome_is_told_to_whoever_starts_the_stored_request(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()
    desk.end(await desk.admit(body, name), "COMMITTED")

    desk.registry = WITHOUT_TOOLS
    again = await desk.admit(body, name, "run-2")

    assert (again.phase, again.duplicate) == (IntentPhase.COMMITTED, True)


async def test_a_request_that_was_never_claimed_is_refused_as_ever(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()
    await desk.admit(body, name)

    desk.registry = WITHOUT_TOOLS
    elsewhere = await desk.refused(body, session())
    otherwise = await desk.refused(freeze_and_debit(session()), name)

    assert {elsewhere.reason, otherwise.reason} == {Reason.TOOL_UNKNOWN}


@pytest.mark.parametrize("text", ["\ud800", "\x00", "é"])
async def test_hostile_text_is_refused_and_looked_up_without_harm(desk: Desk, text: str) -> None:
    body = json.dumps({"protocol": 1, "session_id": text, "steps": []}).encode()

    assert (await desk.refused(body, session())).reason in (Reason.BODY_MALFORMED, Reason.ARGUMENTS_INVALID)


# ------------------------------------------------------------------------------------------------ exact adoption


async def test_a_dead_run_does_not_steal_the_claim_of_one_that_is_open(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()
    first = await desk.admit(body, name, "run-2")
    desk.temporal.open_runs.add("run-2")

    dead = await desk.admit(body, name, "run-1")

    assert dead.duplicate
    (row,) = desk.rows("select run_id, epoch, parked_reason from backstay.intents")
    assert row == {"run_id": "run-2", "epoch": first.epoch, "parked_reason": None}


async def test_of_two_runs_that_adopt_one_wins_and_the_other_asks_again(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()
    await desk.admit(body, name)
    desk.temporal.before_answer = lambda: desk.rows("update backstay.intents set run_id = 'run-3', epoch = 2")

    late = await desk.refused(body, name, "run-2")

    assert late.reason is Reason.IN_PROGRESS
    assert desk.rows("select run_id, epoch from backstay.intents") == [{"run_id": "run-3", "epoch": 2}]


async def test_without_an_answer_nothing_is_adopted(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()
    await desk.admit(body, name)

    def silent() -> None:
        raise SagaError(Reason.DEPENDENCY_DOWN, "Temporal does not answer.")

    desk.temporal.before_answer = silent

    assert (await desk.refused(body, name, "run-2")).reason is Reason.DEPENDENCY_DOWN
    assert desk.rows("select run_id, epoch from backstay.intents") == [{"run_id": "run-1", "epoch": 1}]
    assert desk.rows("select 1 from backstay.audit_log where kind = 'admission_refused'") == []


async def test_the_first_admission_and_a_plain_repeat_ask_nobody(desk: Desk) -> None:
    body, name = freeze_and_debit(session()), session()

    await desk.admit(body, name)
    await desk.admit(body, name)
    other = await desk.admit(body, session(), "run-9")

    assert other.duplicate
    assert desk.temporal.asked == []


async def test_temporal_says_which_run_is_open(home: House) -> None:
    body = freeze_and_debit(session(), amount_cents=GATED_CENTS)
    first = await home.door.post(body, ANNA)
    row = home.intent(first)
    environment = ActivityEnvironment(client=home.client)

    async def asked(run_id: str) -> bool:
        return await environment.run(is_open, row["workflow_id"], run_id)

    before = [await asked(row["run_id"]), await asked(str(uuid.uuid4())), await asked("no run id")]
    await home.client.get_workflow_handle(row["workflow_id"]).terminate("by a test")

    assert before == [True, False, False]
    assert await asked(row["run_id"]) is False


# ------------------------------------------------------------------------------------------------ noted refusals


async def test_a_refusal_that_claims_nothing_is_noted_and_capped(desk: Desk) -> None:
    body = freeze_and_debit(session(), amount_cents=500, account=POOR)

    for _ in range(REFUSALS_PER_MINUTE_MAX + 5):
        assert (await desk.refused(body, session())).reason is Reason.FUNDS_INSUFFICIENT

    rows = desk.rows("select * from backstay.audit_log where kind = 'admission_refused'")
    assert len(rows) == REFUSALS_PER_MINUTE_MAX
    assert (rows[0]["tenant"], rows[0]["agent"], rows[0]["principal"]) == (ANNA.tenant, ANNA.agent, ANNA.principal)
    assert json.loads(rows[0]["result"])["rejected"] == "FUNDS_INSUFFICIENT"
    assert json.loads(rows[0]["arguments"])["freeze"]["account_id"] == POOR
    assert desk.rows("select 1 from backstay.intents") == []


async def test_a_kill_switch_that_refuses_is_noted(desk: Desk) -> None:
    desk.rows("insert into backstay.kill_switches (scope, subject, reason, set_by) values ('all', '', 'test', 'carl')")

    assert (await desk.refused(freeze_and_debit(session()), session())).reason is Reason.KILL_SWITCH_ON

    assert len(desk.rows("select 1 from backstay.audit_log where kind = 'admission_refused'")) == 1


# ------------------------------------------------------------------------------------------------ one wish at a time


async def test_a_second_occurrence_does_not_run_beside_a_second_attempt_of_the_first(desk: Desk) -> None:
    theirs = session()
    first = await desk.admit(freeze_and_debit(theirs), session())
    desk.end(first)
    again = await desk.admit(freeze_and_debit(theirs, retry_of=first.intent_id), session(), attempt=2)

    beside = await desk.refused(freeze_and_debit(theirs, occurrence=2), session())
    desk.end(again, "COMMITTED")
    after = await desk.admit(freeze_and_debit(theirs, occurrence=2), session())

    assert (beside.reason, beside.info.details["open_intent_id"]) == (Reason.OCCURRENCE_NOT_READY, again.intent_id)
    assert after.phase is IntentPhase.ADMITTED


async def test_an_attempt_does_not_run_beside_a_later_occurrence(desk: Desk) -> None:
    theirs = session()
    first = await desk.admit(freeze_and_debit(theirs), session())
    desk.end(first)
    await desk.admit(freeze_and_debit(theirs, occurrence=2), session())

    retry = await desk.refused(freeze_and_debit(theirs, retry_of=first.intent_id), session(), attempt=2)

    assert retry.reason is Reason.OCCURRENCE_NOT_READY


async def test_of_an_attempt_and_an_occurrence_that_arrive_together_one_waits(database_url: str) -> None:
    open_accounts(database_url)
    async with Database(database_url, connections_max=4) as database:
        desk = Desk(database_url, database, Temporal(database=database))
        for _ in range(5):
            theirs = session()
            first = await desk.admit(freeze_and_debit(theirs), session())
            desk.end(first)

            answers = await asyncio.gather(
                desk.admit(freeze_and_debit(theirs, occurrence=2), session()),
                desk.admit(freeze_and_debit(theirs, retry_of=first.intent_id), session(), attempt=2),
                return_exceptions=True,
            )

            refusals = [answer for answer in answers if isinstance(answer, SagaError)]
            assert [refusal.reason for refusal in refusals] == [Reason.OCCURRENCE_NOT_READY]


async def test_an_occurrence_needs_the_one_before_it(desk: Desk) -> None:
    theirs = session()
    desk.end(await desk.admit(freeze_and_debit(theirs), session()), "COMMITTED")

    gap = await desk.refused(freeze_and_debit(theirs, occurrence=3), session())

    assert gap.reason is Reason.OCCURRENCE_NOT_READY


async def test_only_the_attempt_before_that_left_nothing_is_tried_again(desk: Desk) -> None:
    theirs = session()
    first = await desk.admit(freeze_and_debit(theirs), session())
    residue = {"step_id": "freeze", "tool": "freeze_account_funds@1", "state": "COMPENSATED", "residue": "a cent"}
    desk.end(first, "COMPENSATED", {"steps": [residue]})

    left = await desk.refused(freeze_and_debit(theirs, retry_of=first.intent_id), session(), attempt=2)
    skipped = await desk.refused(freeze_and_debit(theirs, retry_of=first.intent_id), session(), attempt=3)

    assert (left.reason, skipped.reason) == (Reason.RETRY_NOT_ALLOWED, Reason.RETRY_NOT_ALLOWED)


# ------------------------------------------------------------------------------------------------ objects of packs


async def test_every_shipped_pack_has_objects_that_admission_can_read(desk: Desk) -> None:
    await check_resources(desk.database, load_packs())


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select account_id as object_id, state from ledger.accounts where account_id = any(%s)", "lacks available_"),
        ("select 1 from nowhere where 'a' = any(%s)", "the query fails"),
        (PACK.resources["account"].replace("select ", "select kind, ", 1), "take kind out of the query"),
    ],
)
async def test_a_pack_with_a_wrong_query_dies_at_start_up(desk: Desk, query: LiteralString, message: str) -> None:
    with pytest.raises(PackError, match=message):
        await check_resources(desk.database, [Pack(name="wrong", tools=(), resources={"thing": query})])


async def test_a_movement_can_be_named(desk: Desk) -> None:
    """Found by running: its query gave columns that no `ObjectState` takes, so no reversal was ever admitted."""
    (movement,) = desk.rows(
        "select movement_id, amount_cents from ledger.movements where credit_account = %s limit 1", ANNAS
    )
    money = {"amount_cents": movement["amount_cents"], "currency": "EUR"}
    arguments = {"movement_id": movement["movement_id"], "reason_code": "WRONG_AMOUNT", **money}
    step = {"step_id": "r", "tool": "reverse_ledger_movement", "arguments": arguments}
    body = json.dumps({"protocol": 1, "session_id": session(), "steps": [step]}).encode()

    standing = await desk.admit(body, session())

    assert (standing.error.code if standing.error else None) is Reason.WRONG_STATE  # an opening: FINAL
