"""The owner of the ledger: opens, funds and closes accounts, which no agent and no tool may do."""

from __future__ import annotations

from typing import Final, Self

import psycopg

MERCHANT: Final = "S00000001"
CASH: Final = "S00000002"
CURRENT: Final = "A00000001"
SAVINGS: Final = "A00000002"
FRIEND: Final = "A00000003"
SECOND: Final = "A00000004"

_OPENED: Final = (
    # account, principal, kind, cents
    (MERCHANT, None, "MERCHANT", 0),
    (CASH, None, "CASH", 0),
    (CURRENT, "demo-customer", "CURRENT", 4_000_000),
    (SAVINGS, "demo-customer", "SAVINGS", 50_000),
    (FRIEND, "demo-friend", "CURRENT", 10_000),
    (SECOND, "demo-customer", "CURRENT", 20_000),
)


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

    def open_accounts(self, tenant: str) -> int:
        """Open the demo's accounts with their first balances; return how much there is, in cents."""
        with self._connection.transaction():
            for account_id, principal, kind, _ in _OPENED:
                self._connection.execute(
                    "select ledger.open_account(%s, %s, %s, %s, 'EUR')", (account_id, tenant, principal, kind)
                )
            for account_id, _, _, cents in _OPENED:
                if cents:
                    self._connection.execute("select ledger.fund_account(%s, %s, %s)", (account_id, CASH, cents))
        return sum(cents for *_, cents in _OPENED)

    def close_account(self, account_id: str) -> None:
        """Close an account for good: nothing moves on it any more."""
        self._connection.execute("select ledger.close_account(%s)", (account_id,))
