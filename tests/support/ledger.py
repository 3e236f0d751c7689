# ruff: noqa: ANN401 - arguments and outputs differ from tool to tool
"""A small bank for tests of the ledger: accounts, and steps that land the way the engine lands them, without Temporal.

Each step is an intent of its own with its effect and audit row in the step's transaction, so that after every test
the invariants of `activities/invariants.sql` can be asked of the tables.
"""

import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel

from activities.database import ROLE_APP, ROLE_READONLY, Database, Row, Transaction
from activities.packs.ledger import PACK
from activities.tool import AnyTool, Compensated, StepContext, Tool
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.keys import compensate_key, execute_key, intent_id
from worker.check import INVARIANTS, parse

TENANT = "bank"
ANNA = "anna"
BEN = "ben"
CASH = "S00000001"
MERCHANT = "S00000002"
TOOLS: dict[str, AnyTool] = {tool.contract.name: tool for tool in PACK.tools if isinstance(tool, Tool)}

_ADMIT = """
insert into backstay.intents (intent_key, intent_id, tenant, principal, agent, session_id, request, body_digest,
    lineage_digest, plan, plan_digest, occurrence, attempt, workflow_id, run_id, phase, deadline_at)
values (%(key)s, %(id)s, %(tenant)s, %(principal)s, 'agent', 'test', '{}', '', %(key)s, %(plan)s, 'digest', 1, 1,
    %(id)s, 'run', 'ADMITTED', now() + interval '1 day')
"""
_LAND = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest, arguments, epoch)
values (%(step_key)s, %(key)s, 'step', %(tool)s, %(direction)s, 'LANDED', '', %(arguments)s, 1) returning transaction_id
"""
_AUDIT = """
select backstay.append_audit('effect', %(tenant)s, %(key)s, 'step', %(tool)s, 'agent', %(principal)s, null,
    %(transaction_id)s, %(arguments)s, 'policy', null, %(result)s)
"""


_CONFIRMING: JsonObject = {"step_id": "step.confirm", "side_effect": "IRREVERSIBLE", "duty": "NONE", "arguments": {}}


@dataclass(frozen=True)
class Landed:
    """A step that landed, with all that its compensation needs."""

    tool: AnyTool
    key: str
    tenant: str
    principal: str
    transaction_id: int
    arguments: BaseModel
    output: Any


class Bank:
    """Accounts of one tenant, and the engine's part played by hand."""

    def __init__(self, url: str, database: Database) -> None:
        """Work on a migrated database; `database` runs the handlers under the app's role."""
        self.url = url
        self.database = database
        self._owner = psycopg.Connection[Row].connect(
            url,
            row_factory=dict_row,
            autocommit=True,
            options="-c role=backstay_owner",
        )
        self._accounts = itertools.count(1)
        self._systems = itertools.count(3)
        self._intents = itertools.count(1)

    def owner(self, statement: str, *params: Any) -> list[Row]:
        """Run one statement as the owner, in a transaction of its own."""
        cursor = self._owner.execute(statement.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def hang_up(self) -> None:
        """End the owner's connection."""
        self._owner.close()

    def system(self, currency: str = "EUR", *, tenant: str = TENANT, kind: str = "SUSPENSE", number: int = 0) -> str:
        """Open a system account."""
        account = f"S{number or next(self._systems):08d}"
        self.owner("select ledger.open_account(%s, %s, null, %s, %s)", account, tenant, kind, currency)
        return account

    def account(
        self,
        balance_cents: int = 0,
        *,
        principal: str = ANNA,
        tenant: str = TENANT,
        currency: str = "EUR",
        limit_cents: int | None = None,
        state: str = "ACTIVE",
    ) -> str:
        """Open a customer account with a first balance and state."""
        account = f"A{next(self._accounts):08d}"
        self.owner(
            "select ledger.open_account(%s, %s, %s, 'CURRENT', %s, %s)",
            account,
            tenant,
            principal,
            currency,
            limit_cents,
        )
        if balance_cents:
            plain = tenant == TENANT and currency == "EUR"
            source = CASH if plain else self.system(currency, tenant=tenant, kind="CASH")
            self.owner("select ledger.fund_account(%s, %s, %s)", account, source, balance_cents)
        if state == "CLOSED":
            self.close(account)
        elif state != "ACTIVE":
            self.owner("update ledger.accounts set state = %s where account_id = %s", state, account)
        return account

    def close(self, account: str) -> None:
        """Close an account, as its owner."""
        self.owner("select ledger.close_account(%s)", account)

    def overdue(self, hold_id: str, seconds: int = 1) -> None:
        """Let a hold's time be over: the database's clock cannot be moved, its expiry can."""
        self.owner(
            "update ledger.holds set expires_at = now() - make_interval(secs => %s) where hold_id = %s",
            seconds,
            hold_id,
        )

    def age_captures(self, age: str) -> None:
        """Let all captures be of long ago."""
        self.owner("alter table ledger.captures disable trigger captures_refunds_grow")
        self.owner("update ledger.captures set captured_at = now() - %s::interval", age)
        self.owner("alter table ledger.captures enable trigger captures_refunds_grow")

    def one(self, statement: str, *params: Any) -> Row:
        """Read one row, as the owner."""
        (row,) = self.owner(statement, *params)
        return row

    def money(self, account: str) -> tuple[int, int]:
        """Balance and held amount of an account, in cents."""
        row = self.one("select balance_cents, held_cents from ledger.account_balances where account_id = %s", account)
        return row["balance_cents"], row["held_cents"]

    async def step(
        self,
        name: str,
        arguments: JsonObject,
        *,
        principal: str = ANNA,
        tenant: str = TENANT,
        pause: Callable[[], Awaitable[object]] | None = None,
    ) -> Landed:
        """Land a step as the engine does; on a refusal nothing of it stays. `pause` is awaited before the commit."""
        tool = TOOLS[name]
        key = hashlib.sha256(f"intent {next(self._intents)}".encode()).hexdigest()
        step_key = execute_key(key, "step")
        model: BaseModel = tool.contract.input.model_validate_json(json.dumps(arguments), strict=True)
        plan = {
            "steps": [
                {
                    "step_id": "step",
                    "tool": tool.contract.wire_name,
                    "side_effect": tool.contract.side_effect,
                    "duty": "NONE",
                    "arguments": arguments,
                },
                *([_CONFIRMING] if tool.confirm is not None else []),
            ]
        }
        values = {
            "key": key,
            "id": intent_id(key),
            "tenant": tenant,
            "principal": principal,
            "plan": json.dumps(plan),
            "step_key": step_key,
            "tool": name,
            "direction": "execute",
            "arguments": json.dumps(arguments),
        }

        async def work(transaction: Transaction) -> Landed:
            await transaction.later(_ADMIT, values)
            row = await transaction.one(_LAND, values) if tool.contract.writes else None
            transaction_id: int = row["transaction_id"] if row else 0
            context = _context(values, step_key, transaction_id)
            output: BaseModel = await tool.execute(transaction, model, context)
            if pause:
                await pause()
            if row:
                response = output.model_dump_json()
                await transaction.later(
                    "update backstay.effects set response = %s where step_key = %s", (response, step_key)
                )
                await transaction.later(_AUDIT, values | {"transaction_id": transaction_id, "result": response})
            return Landed(tool, key, tenant, principal, transaction_id, model, output)

        return await self.database.run(work)

    async def confirm(self, landed: Landed) -> BaseModel:
        """Make final what a step reserved, as the engine does: a step of its own in the same intent."""
        step_key = execute_key(landed.key, "step.confirm")
        given = {"step": landed.arguments.model_dump(mode="json"), "reservation": landed.output.model_dump(mode="json")}
        values = {
            "key": landed.key,
            "id": intent_id(landed.key),
            "tenant": landed.tenant,
            "principal": landed.principal,
            "step_key": step_key,
            "tool": landed.tool.contract.name,
            "arguments": json.dumps(given),
        }

        async def work(transaction: Transaction) -> BaseModel:
            row = await transaction.one(_LAND.replace("'step'", "'step.confirm'"), values | {"direction": "execute"})
            assert row is not None
            assert landed.tool.confirm is not None
            context = _context(values, step_key, row["transaction_id"])
            output = await landed.tool.confirm(transaction, landed.arguments, landed.output, context)
            response = output.model_dump_json()
            await transaction.later(
                "update backstay.effects set response = %s where step_key = %s", (response, step_key)
            )
            told = values | {"transaction_id": row["transaction_id"], "result": response}
            await transaction.later(_AUDIT.replace("'step'", "'step.confirm'"), told)
            return output

        return await self.database.run(work)

    async def compensate(self, landed: Landed, *, pause: Callable[[], Awaitable[object]] | None = None) -> Compensated:
        """Undo a step as the engine does: from its stored arguments and response, in one transaction."""
        step_key = compensate_key(landed.key, "step")
        values = {
            "key": landed.key,
            "id": intent_id(landed.key),
            "tenant": landed.tenant,
            "principal": landed.principal,
            "step_key": step_key,
            "tool": landed.tool.contract.name,
            "direction": "compensate",
            "arguments": "{}",
        }

        async def work(transaction: Transaction) -> Compensated:
            await transaction.later("update backstay.intents set phase = 'CLOSING' where intent_key = %(key)s", values)
            row = await transaction.one(_LAND, values)
            stored = await transaction.one(
                "select arguments, response from backstay.effects where step_key = %s",
                (execute_key(landed.key, "step"),),
            )
            assert row is not None
            assert stored is not None
            assert landed.tool.compensate is not None
            done = await landed.tool.compensate(
                transaction,
                landed.tool.contract.input.model_validate_json(stored["arguments"], strict=True),
                landed.tool.contract.output.model_validate_json(stored["response"], strict=True),
                _context(values, step_key, row["transaction_id"]),
            )
            await transaction.later(
                "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s"
                " where step_key = %s",
                (done.residue, execute_key(landed.key, "step")),
            )
            await transaction.later(
                "update backstay.effects set response = %s where step_key = %s", ('{"undone": true}', step_key)
            )
            await transaction.later(_AUDIT, values | {"transaction_id": row["transaction_id"], "result": "{}"})
            await transaction.later(
                "update backstay.intents set phase = 'COMPENSATED', final_at = now() where intent_key = %(key)s", values
            )
            if pause:
                await pause()
            return done

        return await self.database.run(work)

    def settle(self) -> None:
        """Commit every intent that is still open and has landed."""
        self.owner("update backstay.intents set phase = 'COMMITTED', final_at = now() where phase = 'ADMITTED'")

    def violations(self) -> dict[str, list[Row]]:
        """Ask every invariant, with the auditor's role; empty when all hold."""
        options = f"-c role={ROLE_READONLY}"
        with psycopg.Connection[Row].connect(self.url, row_factory=dict_row, options=options) as connection:
            answers = {name: connection.execute(query.encode()).fetchall() for name, query in invariants()}
        return {name: rows for name, rows in answers.items() if rows}

    # Steps that most tests need, with arguments that matter to few.

    async def freeze(self, account: str, amount_cents: int = 1000, **more: Any) -> Landed:
        """Open a hold."""
        principal, tenant = more.pop("principal", ANNA), more.pop("tenant", TENANT)
        arguments = {"account_id": account, "amount_cents": amount_cents, "currency": "EUR", "reason_code": "PURCHASE"}
        return await self.step("freeze_account_funds", arguments | more, principal=principal, tenant=tenant)

    async def reserve(self, account: str, amount_cents: int = 1000, payee: str = MERCHANT, **more: Any) -> Landed:
        """Set an amount aside for a payee."""
        arguments = {
            "account_id": account,
            "payee_account_id": payee,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "BOOKING",
        }
        return await self.step("reserve_customer_payment", arguments | more)

    async def debit(
        self, hold_id: str, amount_cents: int = 1000, credit_account: str = MERCHANT, **more: Any
    ) -> Landed:
        """Capture a hold."""
        principal, tenant, pause = more.pop("principal", ANNA), more.pop("tenant", TENANT), more.pop("pause", None)
        arguments = {
            "hold_id": hold_id,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "credit_account_id": credit_account,
            "reason_code": "PURCHASE",
        }
        return await self.step("debit_frozen_funds", arguments | more, principal=principal, tenant=tenant, pause=pause)

    async def captured(self, account: str, amount_cents: int = 1000, credit_account: str = MERCHANT) -> Landed:
        """Hold and capture an amount."""
        hold = await self.freeze(account, amount_cents)
        return await self.debit(hold.output.hold_id, amount_cents, credit_account)

    async def refund(self, capture_id: str, amount_cents: int = 1000, **more: Any) -> Landed:
        """Give captured money back."""
        principal, tenant = more.pop("principal", ANNA), more.pop("tenant", TENANT)
        arguments = {"capture_id": capture_id, "amount_cents": amount_cents, "currency": "EUR", "reason_code": "FRAUD"}
        return await self.step("refund_captured_debit", arguments | more, principal=principal, tenant=tenant)

    async def credit(self, account: str, amount_cents: int = 1000, funding: str = CASH, **more: Any) -> Landed:
        """Pay a customer."""
        principal, tenant, pause = more.pop("principal", ANNA), more.pop("tenant", TENANT), more.pop("pause", None)
        arguments = {
            "account_id": account,
            "funding_account_id": funding,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "GOODWILL",
        }
        return await self.step(
            "credit_customer_account", arguments | more, principal=principal, tenant=tenant, pause=pause
        )

    async def transfer(self, source: str, target: str, amount_cents: int = 1000, **more: Any) -> Landed:
        """Move money between customers."""
        principal, tenant, pause = more.pop("principal", ANNA), more.pop("tenant", TENANT), more.pop("pause", None)
        arguments = {
            "from_account_id": source,
            "to_account_id": target,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "PAYMENT",
        }
        return await self.step(
            "transfer_customer_funds", arguments | more, principal=principal, tenant=tenant, pause=pause
        )

    async def reverse(self, movement_id: str, amount_cents: int = 1000, **more: Any) -> Landed:
        """Reverse a movement."""
        principal, tenant, pause = more.pop("principal", ANNA), more.pop("tenant", TENANT), more.pop("pause", None)
        arguments = {
            "movement_id": movement_id,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "WRONG_ACCOUNT",
        }
        return await self.step(
            "reverse_ledger_movement", arguments | more, principal=principal, tenant=tenant, pause=pause
        )

    async def adjust(self, account: str, direction: str, amount_cents: int = 1000, **more: Any) -> Landed:
        """Correct a balance."""
        principal, tenant = more.pop("principal", ANNA), more.pop("tenant", TENANT)
        arguments = {
            "account_id": account,
            "direction": direction,
            "system_account_id": CASH,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "MISPOSTING",
        }
        return await self.step("adjust_account_balance", arguments | more, principal=principal, tenant=tenant)

    async def lock(self, account: str, **more: Any) -> Landed:
        """Lock an account."""
        arguments = {"account_id": account, "reason_code": "SUSPECTED_FRAUD"}
        return await self.step("lock_customer_account", arguments, **more)

    async def unlock(self, account: str, **more: Any) -> Landed:
        """Unlock an account."""
        arguments = {"account_id": account, "reason_code": "FRAUD_RULED_OUT"}
        return await self.step("unlock_customer_account", arguments, **more)


@asynccontextmanager
async def open_bank(url: str, *, connections_max: int = 20) -> AsyncGenerator[Bank]:
    """Open the bank's doors, with its two system accounts: cash to pay from, a merchant to pay to."""
    async with Database(url, role=ROLE_APP, connections_max=connections_max) as database:
        bank = Bank(url, database)
        bank.system(kind="CASH", number=1)
        bank.system(kind="MERCHANT", number=2)
        try:
            yield bank
        finally:
            bank.hang_up()


def wipe(url: str) -> None:
    """Empty the books: far quicker than a new database for every test."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "truncate ledger.accounts, ledger.locks, ledger.holds, ledger.captures, ledger.movements, backstay.intents,"
            " backstay.audit_log restart identity cascade"
        )
        connection.execute(
            "alter sequence ledger.hold_serial restart; alter sequence ledger.capture_serial restart;"
            " alter sequence ledger.movement_serial restart"
        )


async def refused(step: Awaitable[Any]) -> SagaError:
    """Await the refusal of a step."""
    try:
        await step
    except SagaError as error:
        return error
    raise AssertionError("the step was not refused")


def invariants() -> Iterator[tuple[str, str]]:
    """Name and query of each invariant, in the order of `activities/invariants.sql`."""
    for found in parse(INVARIANTS.read_text(encoding="utf-8"))[0]:
        yield found.name, found.statement


def _context(values: dict[str, str], step_key: str, transaction_id: int) -> StepContext:
    return StepContext(
        tenant=values["tenant"],
        principal=values["principal"],
        agent="agent",
        intent_id=values["id"],
        step_id="step",
        step_key=step_key,
        transaction_id=transaction_id,
    )
