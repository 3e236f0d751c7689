"""Reservations in the barrier: whether one outlasts its intent, and the tool that makes it final."""

from typing import Final, LiteralString

from pydantic import BaseModel

from activities.database import Transaction
from activities.tool import AnyTool, StepContext, Tool
from contracts.confirmation import Confirming, confirmation_of, expires_too_early
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import StepCall
from contracts.tool import AnyContract

_DEADLINE: Final[LiteralString] = "select deadline_at from backstay.intents where intent_key = %s"
_NOT_LANDED: Final[LiteralString] = """
select step ->> 'step_id' as step_id
from backstay.intents i
cross join lateral jsonb_array_elements(i.plan::jsonb -> 'steps') as step
where i.intent_id = %s and step ->> 'side_effect' <> 'READ_ONLY' and step ->> 'stands_for' is null
    and step ->> 'step_id' not like '%%.confirm' and not exists (
        select from backstay.effects e where e.intent_key = i.intent_key and e.direction = 'execute'
            and e.state = 'LANDED' and e.step_id in (step ->> 'step_id', step ->> 'step_id' || '.fallback'))
"""


async def check_outlasts(transaction: Transaction, contract: AnyContract, call: StepCall, output: BaseModel) -> None:
    """Refuse a reservation that may expire while its intent still goes forward; its transaction rolls back.

    Both moments are the database's. Raises SagaError(WINDOW_CLOSED).
    """
    if contract.confirms is None:
        return
    row = await transaction.one(_DEADLINE, (call.claim.intent_key,))
    expires_at = getattr(output, contract.confirms.expires_at)
    if row is not None and expires_at < row["deadline_at"]:
        raise expires_too_early(call.step_id, expires_at, row["deadline_at"])


def confirming(tool: AnyTool) -> AnyTool | None:
    """Make the tool that confirms what a tool reserved; None when nothing has to be confirmed.

    It refuses with MISMATCH while something else of its plan has not landed, whatever the saga believes.
    """
    contract, confirm = confirmation_of(tool.contract), tool.confirm
    if contract is None or confirm is None:
        return None

    async def execute(
        transaction: Transaction, given: Confirming[BaseModel, BaseModel], context: StepContext
    ) -> BaseModel:
        missing = [row["step_id"] for row in await transaction.all(_NOT_LANDED, (context.intent_id,))]
        if missing:
            raise SagaError(
                Reason.MISMATCH,
                f"Nothing is confirmed before {', '.join(missing)} landed.",
                details={"step_id": context.step_id, "not_landed": missing},
            )
        return await confirm(transaction, given.step, given.reservation, context)

    return Tool(contract=contract, execute=execute)
