"""The world of the benchmark: a migrated database with 1,000 funded customer accounts and one merchant."""

from __future__ import annotations

from typing import Final

import psycopg

from bench.scenarios import ACCOUNTS

TENANT: Final = "demo-bank"
AGENT: Final = "bench"
CURRENCY: Final = "EUR"
CASH: Final = "S00000001"
MERCHANT: Final = "S00000002"
FUNDS_CENTS: Final = 1_000_000_000

_KEYS = """
create schema bench;
create table bench.keys (
    step_key text primary key,
    transaction_id bigint generated always as identity,
    response text
);
grant usage on schema bench to backstay_app;
grant select, insert, update on bench.keys to backstay_app;
"""


def furnish(database_url: str) -> None:
    """Open and fund the accounts, and make the key table of those who have no engine."""
    with psycopg.connect(database_url) as connection:
        connection.execute(_KEYS)
        connection.execute(
            "select ledger.open_account(%s, %s, null, 'CASH', %s), ledger.open_account(%s, %s, null, 'MERCHANT', %s)",
            (CASH, TENANT, CURRENCY, MERCHANT, TENANT, CURRENCY),
        )
        connection.execute(
            "select ledger.open_account('A' || to_char(n, 'FM00000000'), %s, 'customer-' || n, 'CURRENT', %s)"
            " from generate_series(1, %s) n",
            (TENANT, CURRENCY, ACCOUNTS),
        )
        connection.execute(
            "select ledger.fund_account('A' || to_char(n, 'FM00000000'), %s, %s) from generate_series(1, %s) n",
            (CASH, FUNDS_CENTS, ACCOUNTS),
        )
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
