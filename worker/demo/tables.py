"""What PostgreSQL says, read with plain SQL as the role that may only look.

The demo believes nothing that an envelope tells: each claim is held against these rows, which the engine's own code
has no part in reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, Self

import psycopg
from psycopg.rows import dict_row

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]

_TALLY: LiteralString = """
select count(*) as intents,
    count(*) filter (where phase = 'COMMITTED') as committed,
    count(*) filter (where phase = 'COMPENSATED') as compensated,
    count(*) filter (where phase = 'NOT_APPLIED') as not_applied,
    count(*) filter (where final_at is not null and exists (
        select from backstay.resolutions r where r.intent_key = i.intent_key)) as parked_resolved
from backstay.intents i
"""


@dataclass(frozen=True, slots=True)
class Account:
    """A customer's account as it stands."""

    state: str
    balance_cents: int
    held_cents: int


@dataclass(frozen=True, slots=True)
class Saga:
    """Everything that the tables hold of one intent."""

    phase: str
    cause: str
    parked: str | None
    execute: dict[str, str]
    """State of each execute row by step."""
    compensated: tuple[str, ...]
    """Steps whose compensation has landed, in landing order."""
    movements: tuple[tuple[str, int], ...]
    """Operation type and amount, in booking order."""
    audit: dict[str, int]
    """Audit rows by kind."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Intents by how they ended."""

    intents: int
    committed: int
    compensated: int
    not_applied: int
    parked_resolved: int


class Tables:
    """A connection that can change nothing. Every read is a snapshot of its own."""

    def __init__(self, database_url: str) -> None:
        """Connect and take the role."""
        self._connection = psycopg.Connection[Row].connect(database_url, autocommit=True, row_factory=dict_row)
        self._connection.execute("set role backstay_readonly")

    def __enter__(self) -> Self:
        """Return the tables."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, statement: LiteralString, params: Sequence[object] = ()) -> list[Row]:
        """Read rows."""
        return self._connection.execute(statement, params).fetchall()

    def number(self, statement: LiteralString, params: Sequence[object] = ()) -> int:
        """Read one number."""
        row = self._connection.execute(statement, params).fetchone()
        return 0 if row is None else int(next(iter(row.values())))

    def account(self, account_id: str) -> Account:
        """Read a customer's account."""
        (row,) = self.rows(
            "select state, balance_cents, held_cents from ledger.accounts where account_id = %s", (account_id,)
        )
        return Account(**row)

    def saga(self, intent_id: str) -> Saga | None:
        """Read all that there is of an intent; None before it was admitted."""
        found = self.rows(
            "select intent_key, phase, cause, parked_reason from backstay.intents where intent_id = %s", (intent_id,)
        )
        if not found:
            return None
        intent = found[0]
        key = (intent["intent_key"],)
        effects = self.rows(
            "select step_id, direction, state from backstay.effects where intent_key = %s order by transaction_id", key
        )
        movements = self.rows(
            "select operation_type, amount_cents from ledger.movements where intent_id = %s order by movement_id",
            (intent_id,),
        )
        audit = self.rows("select kind, count(*) as n from backstay.audit_log where intent_key = %s group by kind", key)
        return Saga(
            phase=intent["phase"],
            cause=intent["cause"],
            parked=intent["parked_reason"],
            execute={row["step_id"]: row["state"] for row in effects if row["direction"] == "execute"},
            compensated=tuple(row["step_id"] for row in effects if row["direction"] == "compensate"),
            movements=tuple((row["operation_type"], row["amount_cents"]) for row in movements),
            audit={row["kind"]: row["n"] for row in audit},
        )

    def tally(self) -> Tally:
        """Count the intents by how they ended."""
        (row,) = self.rows(_TALLY)
        return Tally(**row)
