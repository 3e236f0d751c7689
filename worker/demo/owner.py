"""The owner of the ledger: opens, funds and closes accounts, which no agent and no tool may do."""

from __future__ import annotations

from typing import Final, Self

import psycopg

from worker.demo.processes import ROOT

ACCOUNTS: Final = ROOT / "examples" / "accounts.sql"
CURRENT: Final = "A00000001"
SAVINGS: Final = "A00000002"
FRIEND: Final = "A00000003"
SECOND: Final = "A00000004"


class Owner:
    """A connection with the owner's role."""

    def __init__(self, database_url: str) -> None:
        """Connect and take the role."""
        self._connection = psycopg.connect(database_url, autocommit=True)
        self._connection.execute("set role backstay_owner")

    def __enter__(self) -> Self:
        """Return the owner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._connection.close()

    def open_accounts(self) -> None:
        """Open the accounts of the examples, with their first balances."""
        self._connection.execute(ACCOUNTS.read_bytes())

    def close_account(self, account_id: str) -> None:
        """Close an account for good: nothing moves on it any more."""
        self._connection.execute("select ledger.close_account(%s)", (account_id,))
