"""Reading a landed remote write back: what it promised is there, something else is, or others have been there since.

What was found is committed together with the effect, so that no crash comes between the two. What cannot be read back
has landed all the same. A difference that others may have made is told or called for, and never compensated: it is not
ours (DESIGN.md section 3, rule 4).
"""

import asyncio
import json

from pydantic import BaseModel

from activities import audit
from activities.database import Row, Transaction
from activities.standing import caller_of
from activities.tool import AnyRemoteTool, RemoteContext
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import ParkReason
from contracts.tool import AnyContract, WhenMoved

NOT_VERIFIED = "NOT_VERIFIED"


async def read_back(
    tool: AnyRemoteTool, context: RemoteContext, arguments: BaseModel, output: BaseModel
) -> tuple[str, ...]:
    """Ask the tool whether the write stands as it promised; tell what is to be told.

    Raises SagaError(MISMATCH) where something else was carried out under the step's own key: that is an open question,
    which a person has to see.
    """
    if tool.verify is None:
        return ()
    try:
        async with asyncio.timeout(tool.contract.timeout_seconds):
            moved = await tool.verify(context, arguments, output)
    except SagaError as error:
        if error.reason is Reason.MISMATCH:
            raise
        return (f"{NOT_VERIFIED}: {error}",)
    except Exception as error:  # noqa: BLE001 - it has landed, whatever a question about it comes to
        return (f"{NOT_VERIFIED}: reading it back ended with {type(error).__name__}",)
    return () if moved is None else (f"{Reason.WORLD_MOVED}: {moved.detail}",)


def parks(contract: AnyContract, warnings: tuple[str, ...]) -> bool:
    """True when a person has to look before the saga goes on."""
    return contract.when_moved is WhenMoved.PARK and any(said.startswith(Reason.WORLD_MOVED) for said in warnings)


async def park_moved(transaction: Transaction, standing: Row, step_id: str, warnings: tuple[str, ...]) -> None:
    """Put an intent to rest that goes forward, in the transaction of the effect: nothing more lands meanwhile."""
    detail = {"steps": [{"step_id": step_id, "error": None, "known": {"warnings": list(warnings)}}]}
    parked = await transaction.one(
        "update backstay.intents set parked_reason = %s, parked_since = now(), parked_detail = %s"
        " where intent_key = %s and phase = 'ADMITTED' and parked_reason is null returning intent_key",
        (ParkReason.WORLD_MOVED.value, json.dumps(detail), standing["intent_key"]),
    )
    if parked is not None:
        await audit.append(
            transaction,
            "parked",
            caller=caller_of(standing),
            intent_key=standing["intent_key"],
            result={"reason": ParkReason.WORLD_MOVED.value, "detail": detail},
        )
