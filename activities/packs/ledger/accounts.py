"""Accounts: their state and what is available."""

from typing import Final, LiteralString

ACCOUNT_RESOURCE: Final[LiteralString] = """
select account_id as object_id, tenant, principal, state, currency, limit_cents,
    balance_cents - held_cents as available_cents
from ledger.accounts where account_id = any(%s)
"""
"""`available_cents` is null for a system account: it always has enough."""
