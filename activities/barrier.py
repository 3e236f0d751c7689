"""The barrier: a step's key row, its business change and its audit row, in one transaction or not at all.

It settles the three races of distributed sagas by unique inserts (source: DTM's subtransaction barrier):
a repeat finds the stored answer; a compensation without an execute leaves a tombstone and touches nothing; an
execute that arrives late finds the tombstone and lands nowhere. Beyond DTM: every execute holds a share lock on
the intent's row and lands only while the phase is ADMITTED and the run that asks is the one that owns the claim.
"""

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from activities import audit
from activities.database import Database, Row, Transaction
from activities.tool import AnyTool, StepContext
from contracts.base import JsonObject
from contracts.errors import Phase, SagaError
from contracts.keys import canonical_json, digest
from contracts.problems import field_problems
from contracts.reasons import Reason
from contracts.saga import CompensateCall, CompensateResult, StepCall, StepResult
from contracts.shape import shape_of
from contracts.tool import AnyContract, SideEffect

T = TypeVar("T")

_LAND = """
with standing as (
    select i.phase, i.run_id, i.epoch, i.parked_reason, i.deadline_at < now() as overdue,
        exists (select 1 from backstay.kill_switches k
            where k.scope = 'all' or (k.scope = 'tenant' and k.subject = %(tenant)s)
            or (k.scope = 'agent' and k.subject = %(agent)s) or (k.scope = 'tool' and k.subject = %(tool)s)) as killed
    from backstay.intents i where i.intent_key = %(intent_key)s for share of i
), landed as (
    insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, is_pivot,
        argument_digest, arguments, epoch)
    select %(step_key)s, %(intent_key)s, %(step_id)s, %(tool)s, 'execute', 'LANDED', %(is_pivot)s,
        %(argument_digest)s, %(arguments)s, epoch
    from standing
    where phase = 'ADMITTED' and run_id = %(run_id)s and epoch = %(epoch)s
        and parked_reason is null and not overdue and not killed
    on conflict (step_key) do nothing
    returning transaction_id
)
select standing.*, (select transaction_id from landed) as transaction_id from standing
"""
_SPEND = """
insert into backstay.approval_consumptions (step_key, intent_key, step_id, decision_id)
select %(step_key)s, d.intent_key, d.step_id, d.decision_id from backstay.decisions d
where d.intent_key = %(intent_key)s and d.step_id = %(step_id)s and d.verdict = 'approve'
    and d.plan_digest = %(plan_digest)s and d.decided_at + make_interval(secs => %(valid)s) >= now()
    and not exists (select 1 from backstay.decisions n
        where n.intent_key = d.intent_key and n.step_id = d.step_id and n.verdict = 'deny')
returning decision_id
"""


def validated(contract: AnyContract, arguments: JsonObject) -> BaseModel:
    """Read raw arguments strictly, as they came over the wire. Raises SagaError(ARGUMENTS_INVALID)."""
    model: type[BaseModel] = contract.input
    try:
        return model.model_validate_json(json.dumps(arguments), strict=True)
    except ValidationError as error:
        problems = field_problems(
            error, shape_of(model), arguments, at=("arguments",), sensitive=contract.sensitive_fields
        )
        raise SagaError(
            Reason.ARGUMENTS_INVALID,
            f"{len(problems)} field(s) are wrong: {', '.join(problem.path for problem in problems)}.",
            fields=problems,
            phase=Phase.VALIDATION,
        ) from None


async def execute_step(database: Database, tool: AnyTool, call: StepCall) -> StepResult:
    """Land a step once, or answer what its key already says.

    Raises SagaError: the tool's refusal, SUPERSEDED, RUN_STALE, INTENT_PARKED, KEY_REUSED, KILL_SWITCH_ON,
    DEADLINE_EXCEEDED, APPROVAL_MISSING; transient: IN_PROGRESS, DEPENDENCY_DOWN. After any of them nothing of
    this step is in the database but one audit row of the refusal.
    """

    async def work(transaction: Transaction) -> StepResult:
        arguments = validated(tool.contract, call.arguments)
        if tool.contract.writes:
            return await _land(transaction, tool, call, arguments)
        return await _read(transaction, tool, call, arguments)

    async def note(transaction: Transaction, refused: SagaError) -> None:
        await audit.append(
            transaction,
            "refusal",
            caller=call.caller,
            intent_key=call.claim.intent_key,
            step_id=call.step_id,
            tool=tool.contract.wire_name,
            arguments=audit.masked(call.arguments, tool.contract.sensitive_fields),
            policy_digest=call.policy_digest,
            result={"reason": refused.reason.value, "message": str(refused)},
        )

    return await _audited(database, work, note)


async def _audited(
    database: Database,
    work: Callable[[Transaction], Awaitable[T]],
    note: Callable[[Transaction, SagaError], Awaitable[None]],
) -> T:
    """Run `work`; when it refuses, everything of it is gone and `note` alone is committed before the answer."""
    try:
        return await database.run(work)
    except SagaError as error:
        refused = error
    if not refused.reason.is_transient:
        await database.run(lambda transaction: note(transaction, refused))
    raise refused


async def _read(transaction: Transaction, tool: AnyTool, call: StepCall, arguments: BaseModel) -> StepResult:
    output: BaseModel = await tool.execute(transaction, arguments, _context(call, 0))
    return StepResult(
        step_id=call.step_id,
        step_key=call.step_key,
        applied_args=call.arguments,
        output=output.model_dump(mode="json"),
    )


async def _land(transaction: Transaction, tool: AnyTool, call: StepCall, arguments: BaseModel) -> StepResult:
    argument_digest = digest(call.arguments)
    arguments_text = canonical_json(call.arguments).decode()
    standing = await transaction.one(
        _LAND,
        {
            "intent_key": call.claim.intent_key,
            "run_id": call.claim.run_id,
            "epoch": call.claim.epoch,
            "tenant": call.caller.tenant,
            "agent": call.caller.agent,
            "tool": tool.contract.name,
            "step_key": call.step_key,
            "step_id": call.step_id,
            "is_pivot": tool.contract.side_effect is SideEffect.IRREVERSIBLE,
            "argument_digest": argument_digest,
            "arguments": arguments_text,
        },
    )
    if standing is None:
        raise SagaError(Reason.INTENT_NOT_FOUND, f"No intent {call.intent_id} was admitted; start its workflow.")
    if standing["transaction_id"] is None:
        return await _stored(transaction, call, standing, argument_digest)
    decision_id = await _spend_approval(transaction, call) if call.gated else None
    context = _context(call, standing["transaction_id"])
    output: BaseModel = await tool.execute(transaction, arguments, context)
    if tool.verify is not None:
        await tool.verify(transaction, arguments, output, context)
    response_text = canonical_json(output.model_dump(mode="json")).decode()
    await transaction.later(
        "update backstay.effects set response = %s where step_key = %s", (response_text, call.step_key)
    )
    # Read back from what is stored, so that the first answer and every repeat of it are the same bytes.
    response = json.loads(response_text)
    await audit.append(
        transaction,
        "effect",
        caller=call.caller,
        intent_key=call.claim.intent_key,
        step_id=call.step_id,
        tool=tool.contract.wire_name,
        transaction_id=context.transaction_id,
        arguments=audit.masked(call.arguments, tool.contract.sensitive_fields),
        policy_digest=call.policy_digest,
        decisions=decision_id,
        result=response,
    )
    return StepResult(
        step_id=call.step_id,
        step_key=call.step_key,
        transaction_id=context.transaction_id,
        applied_args=json.loads(arguments_text),
        output=response,
    )


async def _stored(transaction: Transaction, call: StepCall, standing: Row, argument_digest: str) -> StepResult:
    """Say why nothing new may land: the stored answer of a repeat, or the reason."""
    if standing["run_id"] != call.claim.run_id or standing["epoch"] != call.claim.epoch:
        raise SagaError(Reason.RUN_STALE, f"Run {call.claim.run_id} no longer owns intent {call.intent_id}.")
    if standing["phase"] != "ADMITTED":
        raise SagaError(Reason.SUPERSEDED, f"Intent {call.intent_id} is {standing['phase']}; no step may land.")
    if standing["parked_reason"] is not None:
        raise SagaError(Reason.INTENT_PARKED, f"Intent {call.intent_id} is parked: {standing['parked_reason']}.")
    row = await transaction.one(
        "select state, argument_digest, arguments, response, transaction_id from backstay.effects where step_key = %s",
        (call.step_key,),
    )
    if row is None:
        if standing["killed"]:
            raise SagaError(Reason.KILL_SWITCH_ON, f"New effects of {call.step_id!r} are switched off; try later.")
        if standing["overdue"]:
            raise SagaError(Reason.DEADLINE_EXCEEDED, f"The deadline of intent {call.intent_id} has passed.")
        raise SagaError(Reason.IN_PROGRESS, f"Step key {call.step_key} is being written; it is tried again.")
    if row["state"] != "LANDED":
        raise SagaError(Reason.SUPERSEDED, f"Step {call.step_id!r} was compensated; it can never land.")
    if row["argument_digest"] != argument_digest:
        raise SagaError(
            Reason.KEY_REUSED, f"Step key {call.step_key} landed with other arguments; make another intent."
        )
    return StepResult(
        step_id=call.step_id,
        step_key=call.step_key,
        transaction_id=row["transaction_id"],
        applied_args=json.loads(row["arguments"]),
        output=json.loads(row["response"]),
    )


async def _spend_approval(transaction: Transaction, call: StepCall) -> str:
    """Spend the one decision that covers this step, or refuse."""
    spent = await transaction.one(
        _SPEND,
        {
            "step_key": call.step_key,
            "intent_key": call.claim.intent_key,
            "step_id": call.step_id,
            "plan_digest": call.plan_digest,
            "valid": call.approval_valid_seconds,
        },
    )
    if spent is None:
        raise SagaError(
            Reason.APPROVAL_MISSING,
            f"Step {call.step_id!r} has no valid, unspent approval for this plan; have it approved again.",
            phase=Phase.APPROVAL,
        )
    return str(spent["decision_id"])


_FENCE = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest, arguments, epoch)
select %(execute_key)s, i.intent_key, %(step_id)s, %(tool)s, 'execute', 'TOMBSTONE', '', '{}', i.epoch
from backstay.intents i
where i.intent_key = %(intent_key)s and i.phase = 'CLOSING' and i.run_id = %(run_id)s and i.epoch = %(epoch)s
on conflict (step_key) do nothing
"""
_COMPENSATE = """
insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest, arguments, epoch)
select %(compensate_key)s, i.intent_key, %(step_id)s, %(tool)s, 'compensate', 'LANDED', e.argument_digest,
    e.arguments, i.epoch
from backstay.intents i join backstay.effects e on e.step_key = %(execute_key)s
where i.intent_key = %(intent_key)s and i.phase = 'CLOSING' and i.run_id = %(run_id)s and i.epoch = %(epoch)s
on conflict (step_key) do nothing
returning transaction_id
"""


async def compensate_step(database: Database, tool: AnyTool, call: CompensateCall) -> CompensateResult:
    """Undo a landed step once; fence one that never landed; answer a repeat with the stored result.

    Input and output come from the effect row. Raises SagaError: the tool's refusal (the step parks), RUN_STALE,
    SUPERSEDED (the intent is not closing); transient: IN_PROGRESS, DEPENDENCY_DOWN.
    """

    async def note(transaction: Transaction, refused: SagaError) -> None:
        await audit.append(
            transaction,
            "compensation_refused",
            caller=call.caller,
            intent_key=call.claim.intent_key,
            step_id=call.step_id,
            tool=tool.contract.compensate_name,
            policy_digest=call.policy_digest,
            result={"reason": refused.reason.value, "message": str(refused)},
        )

    return await _audited(database, lambda transaction: _undo(transaction, tool, call), note)


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
    asked_standing = await transaction.ask(
        "select phase, run_id, epoch from backstay.intents where intent_key = %(intent_key)s for share", keys
    )
    await transaction.later(_FENCE, keys)
    asked_effect = await transaction.ask(
        "select state, arguments, response from backstay.effects where step_key = %(execute_key)s for update", keys
    )
    written = await (await transaction.ask(_COMPENSATE, keys)).one()
    standing, effect = await asked_standing.one(), await asked_effect.one()
    if written is None:
        return await _compensated_before(transaction, call, standing)
    if effect is None:
        raise AssertionError("the fence has just put an execute row there")
    undone = effect["state"] == "LANDED"
    residue: str | None = None
    if undone:
        residue = await _run_compensation(transaction, tool, call, effect, written["transaction_id"])
    await transaction.later(
        "update backstay.effects set response = %s, residue = %s where step_key = %s",
        (json.dumps({"undone": undone}), residue, call.compensate_key),
    )
    await audit.append(
        transaction,
        "effect",
        caller=call.caller,
        intent_key=call.claim.intent_key,
        step_id=call.step_id,
        tool=tool.contract.compensate_name,
        transaction_id=written["transaction_id"],
        arguments=audit.masked(json.loads(effect["arguments"]), tool.contract.sensitive_fields),
        policy_digest=call.policy_digest,
        result={"undone": undone, "residue": residue},
    )
    return CompensateResult(
        step_id=call.step_id,
        step_key=call.compensate_key,
        transaction_id=written["transaction_id"],
        undone=undone,
        residue=residue,
    )


async def _run_compensation(
    transaction: Transaction, tool: AnyTool, call: CompensateCall, effect: Row, transaction_id: int
) -> str | None:
    if tool.compensate is None:
        raise SagaError(
            Reason.TOO_LATE, f"Step {call.step_id!r} cannot be undone by any tool.", phase=Phase.COMPENSATION
        )
    context = StepContext(
        tenant=call.caller.tenant,
        principal=call.caller.principal,
        agent=call.caller.agent,
        intent_id=call.intent_id,
        step_id=call.step_id,
        step_key=call.compensate_key,
        transaction_id=transaction_id,
    )
    done = await tool.compensate(
        transaction,
        tool.contract.input.model_validate_json(effect["arguments"], strict=True),
        tool.contract.output.model_validate_json(effect["response"], strict=True),
        context,
    )
    await transaction.later(
        "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s where step_key = %s",
        (done.residue, call.execute_key),
    )
    return done.residue


async def _compensated_before(transaction: Transaction, call: CompensateCall, standing: Row | None) -> CompensateResult:
    if standing is None:
        raise SagaError(Reason.INTENT_NOT_FOUND, f"No intent {call.intent_id} was admitted.")
    if standing["run_id"] != call.claim.run_id or standing["epoch"] != call.claim.epoch:
        raise SagaError(Reason.RUN_STALE, f"Run {call.claim.run_id} no longer owns intent {call.intent_id}.")
    row = await transaction.one(
        "select transaction_id, response, residue from backstay.effects where step_key = %s", (call.compensate_key,)
    )
    if row is None:
        raise SagaError(
            Reason.SUPERSEDED, f"Intent {call.intent_id} is {standing['phase']}; nothing is compensated now."
        )
    return CompensateResult(
        step_id=call.step_id,
        step_key=call.compensate_key,
        transaction_id=row["transaction_id"],
        undone=json.loads(row["response"])["undone"],
        residue=row["residue"],
    )


def _context(call: StepCall, transaction_id: int) -> StepContext:
    return StepContext(
        tenant=call.caller.tenant,
        principal=call.caller.principal,
        agent=call.caller.agent,
        intent_id=call.intent_id,
        step_id=call.step_id,
        step_key=call.step_key,
        transaction_id=transaction_id,
    )
