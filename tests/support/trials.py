"""Sagas whose downstream is a real bank: outcome, tables and the bank's own book are held against each other."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from temporalio.client import Client

from activities.packs.bank import Terms, make_pack
from contracts.base import JsonObject
from contracts.envelope import Envelope
from tests.support.bankhouse import BankHouse, open_bank
from tests.support.sagas import Sagas, serve
from tests.support.wire import Wire

TERMS: Final = Terms(timeout_seconds=1.0, in_flight_seconds=1, key_lifetime_seconds=3_600, patience_seconds=2)
OBJECTS: Final = """
insert into bank.objects (object_id, tenant, principal) values
    ('B00000001', 'bank', 'customer'), ('B00000002', 'bank', null), ('B00000003', 'bank', 'somebody-else'),
    ('P00000001', 'bank', 'customer'), ('P90000001', 'bank', 'customer'),
    ('K00000001', 'bank', 'customer'), ('K00000004', 'bank', 'customer'),
    ('K00000005', 'bank', 'customer'), ('K00000006', 'bank', 'customer'),
    ('K90000001', 'bank', 'customer'), ('K00000002', 'bank', 'somebody-else');
insert into bank.objects (object_id, tenant, principal, state) values ('K00000003', 'bank', 'customer', 'BLOCKED');
"""


@dataclass
class Trial:
    """Sagas and their bank."""

    sagas: Sagas
    bank: BankHouse

    def attempts(self, envelope: Envelope) -> dict[tuple[str, str], dict[str, Any]]:
        """What an intent sent, by step and direction."""
        rows = self.sagas.rows(
            "select a.* from backstay.attempts a join backstay.intents using (intent_key) where intent_id = %s",
            envelope.meta.intent_id,
        )
        return {(row["step_id"], row["direction"]): row for row in rows}

    def booked(self, envelope: Envelope) -> list[tuple[str, int]]:
        """What the bank's book says that moved under the intent's keys, in order."""
        keys = {row["remote_key"] for row in self.attempts(envelope).values()}
        return [
            (entry["order"]["kind"], entry["moved_cents"])
            for entry in self.bank.entries()
            if entry["event"] == "LANDED" and entry["key"] in keys
        ]

    def agree(self, envelope: Envelope) -> None:
        """Hold every effect and every movement of an intent against each other, both ways.

        A step that counts as landed has one movement under its key with its serial number and amount; one that does
        not has none. A compensated one is given back to the cent, and nothing that did not land is.
        """
        intent_id = envelope.meta.intent_id
        effects = {
            (row["step_id"], row["direction"]): row
            for row in self.sagas.rows(
                "select e.*, arguments::jsonb as given from backstay.effects e join backstay.intents using (intent_key)"
                " where intent_id = %s",
                intent_id,
            )
        }
        attempts = self.attempts(envelope)
        entries = [entry for entry in self.bank.entries() if entry["event"] == "LANDED"]
        for (step_id, direction), attempt in attempts.items():
            under_key = [entry for entry in entries if entry["key"] == attempt["remote_key"]]
            effect = effects.get((step_id, direction))
            live = effect is not None and effect["state"] in ("LANDED", "COMPENSATED")
            if direction == "execute":
                assert len(under_key) == int(live), (step_id, effect, under_key)
            if not under_key:
                continue
            (entry,) = under_key
            assert entry["order"]["client_reference"] == str(attempt["transaction_id"])
            if direction == "execute":
                assert effect is not None
                assert entry["moved_cents"] == effect["given"]["amount_cents"]
                charge = f"BK{entry['number']:010d}"
                refunds = [e["moved_cents"] for e in entries if e["order"]["party"] == charge]
                if effect["state"] == "COMPENSATED":
                    assert sum(refunds) == entry["moved_cents"]


@asynccontextmanager
async def trial(
    client: Client,
    database_url: str,
    directory: Path,
    *,
    terms: Terms = TERMS,
    key_lifetime_seconds: int = 86_400,
    wire: Wire | None = None,
) -> AsyncGenerator[Trial]:
    """Run a bank and a worker that knows it, by a wire of the test's if there is one, until the block ends."""
    with open_bank(directory, key_lifetime_seconds=key_lifetime_seconds) as bank:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(OBJECTS)
        url = wire.lead_to(bank.port) if wire else bank.url
        queue = f"bank-{uuid.uuid4().hex}"
        async with serve(client, database_url, queue, packs=(make_pack(url, terms),)) as sagas:
            yield Trial(sagas, bank)


def payout(step_id: str = "pay", amount_cents: int = 500, **changes: object) -> JsonObject:
    """A step that pays out."""
    arguments = {
        "bank_account_id": "B00000001",
        "payee_id": "P00000001",
        "amount_cents": amount_cents,
        "currency": "EUR",
        "reason_code": "WITHDRAWAL",
    }
    return {"step_id": step_id, "tool": "send_bank_payout", "arguments": arguments | changes}


def charge(step_id: str = "charge", amount_cents: int = 500, **changes: object) -> JsonObject:
    """A step that charges a card."""
    arguments = {"card_id": "K00000001", "amount_cents": amount_cents, "currency": "EUR", "reason_code": "PURCHASE"}
    return {"step_id": step_id, "tool": "charge_bank_card", "arguments": arguments | changes}
