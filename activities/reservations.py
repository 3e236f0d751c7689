"""Reservations in the barrier: whether one outlasts its intent, and the tool that makes it final."""

from datetime import datetime
from typing import Final, LiteralString

from pydantic import BaseModel

from activities.database import Transaction
from activities.tool import AnyTool, StepContext, Tool
from contracts.confirmation import Confirming, confirmation_of, expires_too_early
from contracts.saga import StepCall
from contracts.tool import AnyContract

_DEADLINE: Final[LiteralString] = "select deadline_at from backstay.intents where intent_key = %s"


async def check_outlasts(transaction: Transaction, contract: AnyContract, call: StepCall, output: BaseModel) -> None:
    """Refuse a reservation that may expire while its intent still goes forward; its transaction rolls back.

    Both moments are the database's. Raises SagaError(WINDOW_CLOSED).
    """
    if contract.confirms is None:
        return
    row = await transaction.one(_DEADLINE, (call.claim.intent_key,))
    expires_at: datetime = getattr(output, contract.confirms.expires_at)
    if row is not None and expires_at < row["deadline_at"]:
        raise expires_too_early(call.step_id, expires_at, row["deadline_at"])


def confirming(tool: AnyTool) -> AnyTool | None:
    """Make the tool that confirms what a tool reserved; None when nothing has to be confirmed."""
    contract, confirm = confirmation_of(tool.contract), tool.confirm
    if contract is None or confirm is None:
        return None

    async def execute(transaction: Transaction, given: Confirming[BaseModel, BaseModel], context: StepContext) -> object:
        return await confirm(transaction, given.step, given.reservation, context)

    return Tool(contract=contract, execute=execute)
