"""Confirmations that a person says are done, or need not be: past the point of no return there is only forward."""

import json
from typing import Final, LiteralString

from activities import audit
from activities.database import Row, Transaction
from activities.grading import outputs_of
from activities.standing import EFFECTS, caller_of
from contracts.binding import resolve
from contracts.keys import canonical_json, digest_of
from contracts.plan import Plan
from contracts.saga import Resolution

_LAND: Final[LiteralString] = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, is_pivot, argument_digest,
    arguments, response, residue, source, epoch)
values (%(step_key)s, %(intent_key)s, %(step_id)s, %(tool)s, 'execute', 'LANDED', true, %(argument_digest)s,
    %(arguments)s, '{}', %(residue)s, 'operator', %(epoch)s)
on conflict (step_key) do nothing returning transaction_id
"""


async def land_confirmation(transaction: Transaction, row: Row, plan: Plan, resolution: Resolution) -> str | None:
    """Write on an operator's word that a confirmation is done, or left out, which stays as residue; return that.

    Whoever confirms later meets the row and lands nothing. One that has landed after all stays as it is.
    """
    step = plan.by_id[resolution.step_id or ""]
    effects = await transaction.all(EFFECTS, (plan.intent_key,))
    arguments = resolve(step.arguments, await outputs_of(transaction, plan, effects))
    arguments_json = canonical_json(arguments)
    residue = f"not confirmed: {resolution.evidence}" if resolution.verb == "skip" else None
    landed = await transaction.one(
        _LAND,
        {
            "step_key": plan.execute_key(step.step_id),
            "intent_key": plan.intent_key,
            "step_id": step.step_id,
            "tool": step.tool.partition("@")[0],
            "argument_digest": digest_of(arguments_json),
            "arguments": arguments_json.decode(),
            "residue": residue,
            "epoch": row["epoch"],
        },
    )
    if landed is None:
        return None
    await audit.append(
        transaction,
        "effect",
        caller=caller_of(row),
        intent_key=plan.intent_key,
        step_id=step.step_id,
        tool=step.tool,
        actor=resolution.operator,
        transaction_id=landed["transaction_id"],
        arguments=json.dumps(dict.fromkeys(arguments, audit.MASK)),
        policy_digest=plan.policy_digest,
        decisions=resolution.resolution_id,
        result={},
    )
    return residue
