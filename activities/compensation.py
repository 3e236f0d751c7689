"""Compensation: an effect undone once, in one transaction with its key row and its audit row, or fenced.

A compensation that comes before its step leaves a tombstone and touches no business row: the step can then never land.
Input and output are read from the effect row; a message says only which step. Source: DTM's empty compensation.
"""

import json
from typing import Final, LiteralString

from activities import audit
from activities.barrier import audited, check_claim, context_of, planned_step
from activities.database import Database, Row, Transaction
from activities.standing import caller_of, plan_of
from activities.tool import AnyTool
from contracts.errors import Phase, SagaError
from contracts.reasons import Reason
from contracts.saga import CompensateCall, CompensateResult

_STANDING: Final[LiteralString] = """
select intent_key, intent_id, tenant, principal, agent, plan, plan_digest, phase, run_id, epoch, parked_reason
from backstay.intents where intent_key = %(intent_key)s for share
"""
_FENCE: Final[LiteralString] = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest, arguments, epoch)
select %(execute_key)s, i.intent_key, %(step_id)s, %(tool)s, 'execute', 'TOMBSTONE', '', '{}', i.epoch
from backstay.intents i
where i.intent_key = %(intent_key)s and i.phase = 'CLOSING' and i.run_id = %(run_id)s and i.epoch = %(epoch)s
    and i.parked_reason is null
on conflict (step_key) do nothing
"""
_EFFECT: Final[LiteralString] = """
select state, arguments, response, transaction_id, residue from backstay.effects
where step_key = %(execute_key)s for update
"""
_COMPENSATE: Final[LiteralString] = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest, arguments, epoch)
select %(compensate_key)s, i.intent_key, %(step_id)s, %(tool)s, 'compensate', 'LANDED', e.argument_digest,
    e.arguments, i.epoch
from backstay.intents i join backstay.effects e on e.step_key = %(execute_key)s
where i.intent_key = %(intent_key)s and i.phase = 'CLOSING' and i.run_id = %(run_id)s and i.epoch = %(epoch)s
    and i.parked_reason is null and e.state <> 'COMPENSATED'
on conflict (step_key) do nothing
returning transaction_id
"""


async def compensate_step(database: Database, tool: AnyTool, call: CompensateCall) -> CompensateResult:
    """Undo a landed step once; fence one that never landed; answer a repeat with the stored result.

    Raises SagaError: the tool's refusal (the step parks), RUN_STALE, INTENT_PARKED, MISMATCH, SUPERSEDED (the intent is
    not closing); transient: IN_PROGRESS, DEPENDENCY_DOWN.
    """

    async def work(transaction: Transaction) -> CompensateResult:
        return await _undo(transaction, tool, call)

    return await audited(database, lambda: database.run(work), tool.contract, call)


async def _undo(transaction: Transaction, tool: AnyTool, call: CompensateCall) -> CompensateResult:
    keys = {
        "intent_key": call.claim.intent_key,
        "run_id": call.claim.run_id,
        "epoch": call.claim.epoch,
        "execute_key": call.execute_key,
        "compensate_key": call.compensate_key,
        "step_id": call.step_id,
        "tool": tool.contract.name,
    }
    asked_standing = await transaction.ask(_STANDING, keys)
    await transaction.later(_FENCE, keys)
    asked_effect = await transaction.ask(_EFFECT, keys)
    written = await (await transaction.ask(_COMPENSATE, keys)).one()
    standing, effect = check_claim(await asked_standing.one(), call.claim), await asked_effect.one()
    planned_step(standing, tool, call)
    if written is None:
        return await done_before(transaction, call, standing, effect)
    if effect is None:
        raise AssertionError("the fence has just put an execute row there")
    undone = effect["state"] == "LANDED"
    transaction_id: int = written["transaction_id"]
    residue = await _run(transaction, tool, call, standing, effect, transaction_id) if undone else None
    await transaction.later(
        "update backstay.effects set response = %s, residue = %s where step_key = %s",
        (json.dumps({"undone": undone}), residue, call.compensate_key),
    )
    await audit.append(
        transaction,
        "effect",
        caller=caller_of(standing),
        intent_key=call.claim.intent_key,
        step_id=call.step_id,
        tool=tool.contract.compensate_name,
        transaction_id=transaction_id,
        arguments=audit.masked(json.loads(effect["arguments"]), tool.contract.sensitive_fields),
        policy_digest=plan_of(standing["plan"]).policy_digest,
        result={"undone": undone, "residue": residue},
    )
    return CompensateResult(
        step_id=call.step_id,
        step_key=call.compensate_key,
        transaction_id=transaction_id,
        undone=undone,
        residue=residue,
    )


async def _run(  # noqa: PLR0917 - what is undone, by whom, and where it is written
    transaction: Transaction, tool: AnyTool, call: CompensateCall, standing: Row, effect: Row, transaction_id: int
) -> str | None:
    """Let the tool undo its effect, and mark the effect; return what could not be restored."""
    if tool.compensate is None:
        raise SagaError(
            Reason.TOO_LATE, f"Step {call.step_id!r} cannot be undone by any tool.", phase=Phase.COMPENSATION
        )
    done = await tool.compensate(
        transaction,
        tool.contract.input.model_validate_json(effect["arguments"], strict=True),
        tool.contract.output.model_validate_json(effect["response"], strict=True),
        context_of(standing, call, call.compensate_key, transaction_id),
    )
    await transaction.later(
        "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s where step_key = %s",
        (done.residue, call.execute_key),
    )
    return done.residue


async def done_before(
    transaction: Transaction, call: CompensateCall, standing: Row, effect: Row | None
) -> CompensateResult:
    """Answer a repeat with what is stored; an operator may have said `done` or `skip` for the step meanwhile."""
    row = await transaction.one(
        "select transaction_id, response, residue from backstay.effects where step_key = %s", (call.compensate_key,)
    )
    if row is not None:
        return CompensateResult(
            step_id=call.step_id,
            step_key=call.compensate_key,
            transaction_id=row["transaction_id"],
            undone=json.loads(row["response"])["undone"],
            residue=row["residue"],
        )
    if effect is not None and effect["state"] == "COMPENSATED":
        return CompensateResult(
            step_id=call.step_id,
            step_key=call.compensate_key,
            transaction_id=effect["transaction_id"],
            undone=False,
            residue=effect["residue"],
        )
    raise SagaError(
        Reason.SUPERSEDED, f"Intent {standing['intent_id']} is {standing['phase']}; nothing is compensated now."
    )
