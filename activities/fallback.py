"""The fence before a fallback: in its own transaction the key of its step is shut for good, or the fallback is refused.

A refusal says nothing about an earlier attempt of the same activity that is still on its way somewhere. So a fallback
relies on no answer: whatever it writes, or notes before it is sent, is committed together with a tombstone under the
first key. Who comes late with that key finds it, and lands nowhere.
"""

from typing import Final, LiteralString

from activities.attempts import UNDECIDED, fence
from activities.database import Row, Transaction
from activities.standing import plan_of
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.fallback import FENCED_FOR
from contracts.keys import execute_key
from contracts.plan import PlannedStep
from contracts.reasons import Reason
from contracts.saga import StepCall

_ATTEMPT: Final[LiteralString] = "select step_key, state from backstay.attempts where step_key = %s for update"
_FENCE: Final[LiteralString] = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, is_pivot, argument_digest,
    arguments, epoch)
select %(step_key)s, intent_key, %(step_id)s, %(tool)s, 'execute', 'TOMBSTONE', %(is_pivot)s, '', '{}', epoch
from backstay.intents where intent_key = %(intent_key)s
on conflict (step_key) do nothing
"""
_STANDS: Final[LiteralString] = """
select step_key from backstay.effects where step_key = %(step_key)s
union all select step_key from backstay.attempts where step_key = %(step_key)s limit 1
"""


async def fence_first(transaction: Transaction, planned: PlannedStep, standing: Row, call: StepCall) -> None:
    """Shut the key of the step that a fallback stands for. Raises SagaError(SUPERSEDED) where it has landed, or may."""
    if planned.stands_for is None:
        return
    first = plan_of(standing["plan"]).by_id[planned.stands_for]
    step_key = execute_key(call.claim.intent_key, first.step_id)
    attempt = await transaction.one(_ATTEMPT, (step_key,)) if first.is_remote else None
    if attempt is not None and attempt["state"] not in (*UNDECIDED, "LANDED"):
        await fence(transaction, attempt)
    elif attempt is None:
        values = {
            "step_key": step_key,
            "intent_key": call.claim.intent_key,
            "step_id": first.step_id,
            "tool": first.tool.partition("@")[0],
            "is_pivot": first.is_pivot,
        }
        await transaction.later(_FENCE, values)
    row = await transaction.one("select state from backstay.effects where step_key = %s", (step_key,))
    if row is None or row["state"] != "TOMBSTONE":
        raise SagaError(
            Reason.SUPERSEDED,
            f"Step {first.step_id!r} {'may have landed' if row is None else 'has landed'}; its fallback never runs.",
            details={"step_id": first.step_id},
        )


async def fenced_for(transaction: Transaction, standing: Row, call: StepCall) -> JsonObject:
    """Name the fallback that stands for a fenced step; nothing where it was fenced for another reason."""
    fallback = plan_of(standing["plan"]).fallbacks.get(call.step_id)
    if fallback is None:
        return {}
    stands = await transaction.one(_STANDS, {"step_key": execute_key(call.claim.intent_key, fallback)})
    return {} if stands is None else {FENCED_FOR: fallback}
