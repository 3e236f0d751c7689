"""The ledger's transactions with an idempotency row and nothing else: what every contender does at the bottom.

The SQL is the ledger pack's own, and so is the way it travels (pool and pipeline of `activities.database`): the
contenders differ in orchestration only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from activities.packs.ledger.captures import DEBIT_FROZEN_FUNDS, DebitFrozenFunds
from activities.packs.ledger.holds import FREEZE_ACCOUNT_FUNDS, FreezeAccountFunds
from activities.packs.ledger.reversals import REVERSE_LEDGER_MOVEMENT, ReverseLedgerMovement
from activities.tool import StepContext
from bench.scenarios import AMOUNT_CENTS
from bench.world import CURRENCY, MERCHANT, TENANT

if TYPE_CHECKING:
    from pydantic import BaseModel

    from activities.database import Database, Transaction
    from activities.tool import AnyTool

_CLAIM_KEY = "insert into bench.keys (step_key) values (%s) on conflict do nothing returning transaction_id"
_READ_KEY = "select response from bench.keys where step_key = %s"
_STORE = "update bench.keys set response = %s where step_key = %s"


def freeze_arguments(account_id: str) -> FreezeAccountFunds:
    """Hold the benchmark's amount."""
    return FreezeAccountFunds.model_validate_json(
        json.dumps(
            {
                "account_id": account_id,
                "amount_cents": AMOUNT_CENTS,
                "currency": CURRENCY,
                "hold_ttl_seconds": 3600,
                "reason_code": "PURCHASE",
            }
        )
    )


def debit_arguments(hold_id: str) -> DebitFrozenFunds:
    """Take all of the hold for the merchant."""
    return DebitFrozenFunds.model_validate_json(
        json.dumps(
            {
                "hold_id": hold_id,
                "amount_cents": AMOUNT_CENTS,
                "currency": CURRENCY,
                "credit_account_id": MERCHANT,
                "reason_code": "PURCHASE",
            }
        )
    )


async def freeze(database: Database, step_key: str, principal: str, account_id: str) -> str:
    """Open a hold once; return its id."""
    output = await _once(database, FREEZE_ACCOUNT_FUNDS, step_key, principal, freeze_arguments(account_id))
    return str(output["hold_id"])


async def debit(database: Database, step_key: str, principal: str, hold_id: str) -> str:
    """Capture a hold once; return the movement's id. Raises SagaError when the hold is not open."""
    output = await _once(database, DEBIT_FROZEN_FUNDS, step_key, principal, debit_arguments(hold_id))
    return str(output["movement_id"])


async def reverse(database: Database, step_key: str, principal: str, movement_id: str) -> None:
    """Reverse a movement. Raises SagaError for that of a capture, which is refunded and never reversed."""
    arguments = ReverseLedgerMovement.model_validate_json(
        json.dumps(
            {
                "movement_id": movement_id,
                "amount_cents": AMOUNT_CENTS,
                "currency": CURRENCY,
                "reason_code": "WRONG_AMOUNT",
            }
        )
    )
    await _once(database, REVERSE_LEDGER_MOVEMENT, step_key, principal, arguments)


async def release(database: Database, step_key: str, principal: str, account_id: str) -> None:
    """Release what `freeze` under this key held, once; nothing if it never happened."""
    await _undo(database, FREEZE_ACCOUNT_FUNDS, step_key, principal, freeze_arguments(account_id))


async def refund(database: Database, step_key: str, principal: str, hold_id: str) -> None:
    """Give back what `debit` under this key took, once; nothing if it never happened."""
    await _undo(database, DEBIT_FROZEN_FUNDS, step_key, principal, debit_arguments(hold_id))


async def _once(
    database: Database, tool: AnyTool, step_key: str, principal: str, arguments: BaseModel
) -> dict[str, Any]:
    async def work(transaction: Transaction) -> dict[str, Any]:
        claimed = await transaction.one(_CLAIM_KEY, (step_key,))
        if claimed is None:
            stored = await transaction.one(_READ_KEY, (step_key,))
            return dict(json.loads((stored or {})["response"]))
        output: BaseModel = await tool.execute(
            transaction, arguments, _context(step_key, principal, claimed["transaction_id"])
        )
        await transaction.later(_STORE, (output.model_dump_json(), step_key))
        return output.model_dump(mode="json")

    return await database.run(work)


async def _undo(database: Database, tool: AnyTool, step_key: str, principal: str, arguments: BaseModel) -> None:
    async def work(transaction: Transaction) -> None:
        asked = await transaction.ask(_READ_KEY, (step_key,))
        claimed = await transaction.one(_CLAIM_KEY, (f"{step_key}/undo",))
        stored = await asked.one()
        if claimed is None or stored is None or tool.compensate is None:
            return
        output = tool.contract.output.model_validate_json(stored["response"])
        context = _context(f"{step_key}/undo", principal, claimed["transaction_id"])
        await tool.compensate(transaction, arguments, output, context)

    await database.run(work)


def _context(step_key: str, principal: str, transaction_id: int) -> StepContext:
    order_id, _, step_id = step_key.partition("/")
    return StepContext(
        tenant=TENANT,
        principal=principal,
        agent="bench",
        intent_id=order_id,
        step_id=step_id,
        step_key=step_key,
        transaction_id=transaction_id,
    )
