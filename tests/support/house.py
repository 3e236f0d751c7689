"""A house with a front door: a database with accounts, a worker that may be absent, posts as an agent sends them."""

import asyncio
import json
import uuid
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row
from temporalio.client import Client

from activities.database import Database
from activities.dispatch import Engine
from contracts.envelope import Envelope
from contracts.intent import Caller
from worker.door import Door
from worker.service import serving
from worker.settings import Settings
from worker.stack import LocalStack

T = TypeVar("T")

TENANT = "demo-bank"
ANNA = Caller(tenant=TENANT, principal="anna", agent="robot")
BEN = Caller(tenant=TENANT, principal="ben", agent="robot")
OTHER_BANK = Caller(tenant="other-bank", principal="anna", agent="robot")
MERCHANT = "S00000001"
CASH = "S00000002"
ANNAS = "A00000001"
BENS = "A00000002"
POOR = "A00000003"
OTHER = "A00000009"
GATED_CENTS = 1_500_000


def amount_of(session: str) -> int:
    """An amount of its own for each conversation, so that no two are near-duplicates."""
    return 501 + zlib.crc32(session.encode()) % 90_000


def freeze_and_debit(session: str, *, amount_cents: int | None = None, account: str = ANNAS, **more: object) -> bytes:
    """Write the reference chain as an agent posts it."""
    amount_cents = amount_of(session) if amount_cents is None else amount_cents
    money = {"amount_cents": amount_cents, "currency": "EUR", "reason_code": "PURCHASE"}
    steps = [
        {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": {"account_id": account, **money}},
        {
            "step_id": "debit",
            "tool": "debit_frozen_funds",
            "arguments": {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": MERCHANT, **money},
        },
    ]
    return json.dumps({"protocol": 1, "session_id": session, "steps": steps, **more}).encode()


def session() -> str:
    """Name a conversation that no other test has."""
    return f"chat-{uuid.uuid4().hex[:12]}"


async def until(look: Callable[[], T], *, seconds: float = 20.0) -> T:
    """Look until there is something, and return it. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not (found := look()):  # noqa: ASYNC110 - tables tell nobody when they change
            await asyncio.sleep(0.02)
        return found


@dataclass
class House:
    """What a test of the door may use."""

    url: str
    client: Client
    engine: Engine
    settings: Settings
    door: Door

    def rows(self, statement: str, *params: object) -> list[dict[str, Any]]:
        """Ask the tables as the superuser, or change them behind the engine's back."""
        with psycopg.Connection[DictRow].connect(self.url, row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def intent(self, envelope: Envelope) -> dict[str, Any]:
        """Read the row of the intent that an answer is about."""
        return self.rows("select * from backstay.intents where intent_id = %s", envelope.meta.intent_id)[0]

    def effect_count(self, envelope: Envelope) -> int:
        """Count what landed for it."""
        rows = self.rows(
            "select count(*) as n from backstay.effects join backstay.intents using (intent_key)"
            " where intent_id = %s and state = 'LANDED'",
            envelope.meta.intent_id,
        )
        return int(rows[0]["n"])

    def age(self, envelope: Envelope, *, hours: int = 25) -> None:
        """Let an intent have ended longer ago."""
        self.rows(
            "update backstay.intents set final_at = final_at - make_interval(hours => %s) where intent_id = %s",
            hours,
            envelope.meta.intent_id,
        )


def open_accounts(url: str) -> None:
    """Open and fund the accounts that the tests use."""
    with psycopg.connect(url, autocommit=True) as connection:
        for account, tenant, principal, kind in (
            (MERCHANT, TENANT, None, "MERCHANT"),
            (CASH, TENANT, None, "CASH"),
            (ANNAS, TENANT, "anna", "CURRENT"),
            (BENS, TENANT, "ben", "CURRENT"),
            (POOR, TENANT, "anna", "CURRENT"),
            (OTHER, "other-bank", "anna", "CURRENT"),
        ):
            connection.execute("select ledger.open_account(%s, %s, %s, %s, 'EUR')", (account, tenant, principal, kind))
        for account in (ANNAS, BENS):
            connection.execute("select ledger.fund_account(%s, %s, 100000000)", (account, CASH))


@asynccontextmanager
async def house(stack: LocalStack, client: Client, template: str, *, has_worker: bool = True) -> AsyncGenerator[House]:
    """Open a house on a fresh database; without a worker nothing that is posted goes on."""
    url = stack.create_database(template=template)
    open_accounts(url)
    settings = Settings.load(database_url=url, task_queue=f"door-{uuid.uuid4()}", tenant=TENANT)
    try:
        async with serving(settings, client) as engine:
            if has_worker:
                async with Door.of(client, engine, settings) as door:
                    yield House(url, client, engine, settings, door)
            else:
                absent = settings.model_copy(update={"task_queue": f"nobody-{uuid.uuid4()}"})
                async with Database(url) as database, Door.of(client, Engine(database, engine.packs), absent) as door:
                    yield House(url, client, engine, absent, door)
    finally:
        stack.drop_database(url)
