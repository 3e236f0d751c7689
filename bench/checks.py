"""What the tables must show after each batch; where they do not, there is no figure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
from psycopg.rows import DictRow, dict_row

from bench.arena import BenchError
from bench.scenarios import BACKSTAY
from worker.check import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Corner
    from bench.scenarios import Order

_INTENTS: Final[LiteralString] = """
select i.session_id, i.phase, count(*) over (partition by i.session_id) as claims,
    (select count(*) from backstay.effects e where e.intent_key = i.intent_key) as effects,
    (select count(*) from backstay.effects e where e.intent_key = i.intent_key
        and e.direction = 'execute' and e.state = 'LANDED') as live,
    (select count(*) from backstay.audit_log a where a.intent_key = i.intent_key) as audits
from backstay.intents i where i.session_id = any(%s)
"""
_KEYS: Final[LiteralString] = """
select split_part(step_key, '/', 1) as order_id, count(*) as effects
from bench.keys where split_part(step_key, '/', 1) = any(%s) group by 1
"""
_MONEY: Final[LiteralString] = """
select
    (select count(*) from ledger.accounts a where balance_cents is not null and balance_cents <>
        (select coalesce(sum(case a.account_id when credit_account then amount_cents else -amount_cents end), 0)
         from ledger.movements where a.account_id in (debit_account, credit_account))) as wrong_balances,
    (select count(*) from ledger.accounts a where held_cents is not null and held_cents <>
        (select coalesce(sum(amount_cents), 0) from ledger.holds h
         where h.account_id = a.account_id and h.state = 'OPEN')) as wrong_holds,
    (select coalesce(sum(balance_cents), 0) from ledger.account_balances) as total_cents
"""


def check_batch(corner: Corner, orders: Sequence[Order], outcomes: dict[str, int]) -> None:
    """Raise BenchError unless every order left exactly its rows and the money is right."""
    wanted_outcome = "COMPENSATED" if orders[0].refused else "COMMITTED"
    if outcomes != {wanted_outcome: len(orders)}:
        raise BenchError(f"{corner.name}: {len(orders)} orders should end {wanted_outcome}, but: {outcomes}.")
    check_tables(corner, orders)


def check_tables(corner: Corner, orders: Sequence[Order]) -> None:
    """Raise BenchError unless the tables show every order's rows, no more and no less, and the money is right."""
    ids = [order.order_id for order in orders]
    with psycopg.Connection[DictRow].connect(corner.database_url, row_factory=dict_row) as connection:
        if corner.name == BACKSTAY:
            rows = connection.execute(_INTENTS, (ids,)).fetchall()
            found: dict[str, Any] = {
                row["session_id"]: {name: row[name] for name in _expected(orders[0])} for row in rows
            }
            wanted: dict[str, Any] = {order.order_id: _expected(order) for order in orders}
        else:
            rows = connection.execute(_KEYS, (ids,)).fetchall()
            found = {row["order_id"]: row["effects"] for row in rows}
            wanted = {order.order_id: order.effects for order in orders}
        if found != wanted:
            wrong = next(name for name in wanted if found.get(name) != wanted[name])
            raise BenchError(f"{corner.name}: {wrong} should have {wanted[wrong]}, has {found.get(wrong)}.")
        money = connection.execute(_MONEY).fetchone()
        if money != {"wrong_balances": 0, "wrong_holds": 0, "total_cents": 0}:
            raise BenchError(f"{corner.name}: the money is wrong: {money}.")


def _expected(order: Order) -> dict[str, Any]:
    """One claim; one row per effect; an audit row per effect, for admission and settlement, and of the way back two."""
    return {
        "phase": "COMPENSATED" if order.refused else "COMMITTED",
        "claims": 1,
        "effects": order.effects,
        "live": 0 if order.refused else order.effects,
        "audits": order.effects + (4 if order.refused else 2),
    }


def check_invariants(corner: Corner) -> str:
    """Run every invariant of `backstay check` on Backstay's tables. Raises BenchError; returns what was done."""
    if corner.name != BACKSTAY:
        return "money only"
    report = asyncio.run(check(corner.database_url))
    if not report.ok:
        broken = [found for found in report.checks if not found.ok]
        raise BenchError(f"{corner.name}: invariants are broken: {broken}.")
    return f"{len(report.checks)} invariants"
