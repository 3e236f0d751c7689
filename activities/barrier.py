"""The barrier: a step's key row, its business change and its audit row, in one transaction or not at all.

It settles the three races of distributed sagas by unique inserts (source: DTM's subtransaction barrier):
a repeat finds the stored answer; a compensation without an execute leaves a tombstone and touches nothing; an
execute that arrives late finds the tombstone and lands nowhere. Beyond DTM: every execute holds a share lock on
the intent's row and lands only while the phase is ADMITTED and the run that asks is the one that owns the claim.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Final, LiteralString, TypeVar

from pydantic import BaseModel, ValidationError

from activities import audit
from activities.database import Database, Row, Transaction
from activities.fallback import fence_first, fenced_for
from activities.late import asked_digest
from activities.locks import LockedError, queue_up, take_locks
from activities.reservations import check_outlasts
from activities.standing import caller_of, check_owner, plan_of, warnings_of
from activities.tool import AnyRemoteTool, AnyTool, StepContext
from contracts.base import JsonObject
from contracts.binding import fills
from contracts.errors import Phase, SagaError
from contracts.keys import canonical_json, digest, digest_of
from contracts.locks import asks_again_after
from contracts.plan import Plan, PlannedStep
from contracts.problems import field_problems
from contracts.reasons import Reason
from contracts.saga import Claim, CompensateCall, LookupCall, StepCall, StepResult
from contracts.shape import shape_of
from contracts.tool import AnyContract, SideEffect

T = TypeVar("T")

STANDING: Final[LiteralString] = """
with standing as (
    select i.intent_key, i.intent_id, i.tenant, i.principal, i.agent, i.plan, i.plan_digest, i.phase, i.run_id, i.epoch,
        i.parked_reason, i.deadline_at < now() as overdue,
        exists (select 1 from backstay.kill_switches k
            where k.scope = 'all' or (k.scope = 'tenant' and k.subject = i.tenant)
            or (k.scope = 'agent' and k.subject = i.agent) or (k.scope = 'tool' and k.subject = %(tool)s)) as killed
    from backstay.intents i where i.intent_key = %(intent_key)s for share of i
)"""
"""How an intent stands, under the lock that every execute shares and a close excludes."""
_LAND: Final[LiteralString] = (
    STANDING  # noqa: S608 - constants
    + """, landed as (
    insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, is_pivot,
        argument_digest, arguments, epoch)
    select %(step_key)s, intent_key, %(step_id)s, %(tool)s, 'execute', 'LANDED', %(is_pivot)s,
        %(argument_digest)s, %(arguments)s, epoch
    from standing
    where phase = 'ADMITTED' and run_id = %(run_id)s and epoch = %(epoch)s
        and parked_reason is null and not overdue and not killed
    on conflict (step_key) do nothing
    returning transaction_id
)
select standing.*, (select transaction_id from landed) as transaction_id from standing
"""
)
_SPEND: Final[LiteralString] = """
insert into backstay.approval_consumptions (step_key, intent_key, step_id, decision_id)
select %(step_key)s, d.intent_key, d.step_id, d.decision_id from backstay.decisions d
where d.intent_key = %(intent_key)s and d.step_id = %(step_id)s and d.verdict = 'approve'
    and d.plan_digest = %(asked)s
    and (select max(last.decided_at) from backstay.decisions last
        where last.intent_key = d.intent_key and last.verdict = 'approve')
        + make_interval(secs => %(valid)s) >= now()
    and not exists (select 1 from backstay.decisions n
        where n.intent_key = d.intent_key and n.step_id = d.step_id and n.verdict = 'deny')
returning decision_id
"""
_KINDS: Final = {Reason.OUTCOME_UNKNOWN: "outcome_unknown"}
_STANDING: Final[LiteralString] = """
select intent_key, intent_id, tenant, principal, agent, plan, plan_digest, phase, run_id, epoch, parked_reason
from backstay.intents where intent_key = %(intent_key)s
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


def planned_step(
    standing: Row, tool: AnyTool | AnyRemoteTool, call: StepCall | CompensateCall | LookupCall
) -> PlannedStep:
    """Find the step in the plan that was admitted; a message is never believed about what was planned.

    Raises SagaError(MISMATCH) when step, tool or a literal argument is not what the plan says.
    """
    planned = plan_of(standing["plan"]).by_id.get(call.step_id) if standing["plan"] else None
    contract = tool.contract
    if planned is None or planned.tool != contract.wire_name or planned.side_effect is not contract.side_effect:
        raise SagaError(
            Reason.MISMATCH,
            f"Intent {standing['intent_id']} has no step {call.step_id!r} with {contract.wire_name}.",
            details={"step_id": call.step_id, "tool": contract.wire_name},
        )
    if isinstance(call, StepCall) and not fills(planned.arguments, call.arguments):
        raise SagaError(
            Reason.MISMATCH,
            f"Step {call.step_id!r} was admitted with other arguments; only bindings may be filled in.",
            details={"step_id": call.step_id},
        )
    return planned


def context_of(standing: Row, call: StepCall | CompensateCall, step_key: str, transaction_id: int) -> StepContext:
    """Tell a handler who, for whom and under which key, all of it from the claim."""
    return StepContext(
        tenant=standing["tenant"],
        principal=standing["principal"],
        agent=standing["agent"],
        intent_id=standing["intent_id"],
        step_id=call.step_id,
        step_key=step_key,
        transaction_id=transaction_id,
    )


def check_claim(standing: Row | None, claim: Claim) -> Row:
    """Refuse a run that does not own the intent, or an intent that rests. Raises SagaError."""
    owned = check_owner(standing, claim)
    if owned["parked_reason"] is not None:
        raise SagaError(Reason.INTENT_PARKED, f"Intent {owned['intent_id']} is parked: {owned['parked_reason']}.")
    return owned


async def execute_step(database: Database, tool: AnyTool, call: StepCall) -> StepResult:
    """Land a step once, or answer what its key already says.

    Raises SagaError: the tool's refusal, SUPERSEDED, RUN_STALE, INTENT_PARKED, KEY_REUSED, MISMATCH, KILL_SWITCH_ON,
    DEADLINE_EXCEEDED, APPROVAL_MISSING, RESOURCE_LOCKED; transient: IN_PROGRESS, DEPENDENCY_DOWN. After any of them
    nothing of this step is in the database but one audit row of the refusal, or its place in a queue.
    """

    async def work(transaction: Transaction) -> StepResult:
        return await _land(transaction, tool, call)

    if not tool.contract.writes:
        return await audited(database, lambda: _read(database, tool, call), tool.contract, call)
    return await audited(database, lambda: database.run(work), tool.contract, call)


async def audited(
    database: Database, work: Callable[[], Awaitable[T]], contract: AnyContract, call: StepCall | CompensateCall
) -> T:
    """Do `work`; when it refuses, everything of it is gone and one audit row is committed before the answer.

    Where it has to wait for a lock nothing was decided: only its place in the queue is committed.
    """
    refused: SagaError
    try:
        return await work()
    except LockedError as error:
        refused = await queue_up(database, error)
        if asks_again_after(refused.info) is not None:
            raise refused from None
    except SagaError as error:
        refused = error

    async def note(transaction: Transaction) -> None:
        standing = await transaction.one(_STANDING, {"intent_key": call.claim.intent_key})
        if standing is None:
            return
        executing = isinstance(call, StepCall)
        await audit.append(
            transaction,
            _KINDS.get(refused.reason, "refusal") if executing else "compensation_refused",
            caller=caller_of(standing),
            intent_key=call.claim.intent_key,
            step_id=call.step_id,
            tool=contract.wire_name if executing else contract.compensate_name,
            arguments=audit.masked(call.arguments, contract.sensitive_fields) if isinstance(call, StepCall) else None,
            policy_digest=plan_of(standing["plan"]).policy_digest if standing["plan"] else None,
            result={"reason": refused.reason.value, "message": str(refused)},
        )

    if not refused.reason.is_transient:
        await database.run(note)
    raise refused


async def _read(database: Database, tool: AnyTool, call: StepCall) -> StepResult:
    """Run a tool that only reads, and remember its answer: what later steps bound from it must not change."""

    async def look(transaction: Transaction) -> JsonObject:
        await transaction.later("set transaction read only")
        known = await transaction.ask("select response from backstay.readings where step_key = %s", (call.step_key,))
        found = await (await transaction.ask(_STANDING, {"intent_key": call.claim.intent_key})).one()
        standing, reading = check_claim(found, call.claim), await known.one()
        planned_step(standing, tool, call)
        if reading is not None:
            return {"stored": json.loads(reading["response"])}
        arguments = validated(tool.contract, call.arguments)
        output: BaseModel = await tool.execute(transaction, arguments, context_of(standing, call, call.step_key, 0))
        return {"fresh": canonical_json(output.model_dump(mode="json")).decode()}

    seen = await database.run(look)
    if "stored" in seen:
        response: JsonObject = seen["stored"]
    else:
        response = json.loads(await database.run(lambda transaction: remember(transaction, call, seen["fresh"])))
    return StepResult(step_id=call.step_id, step_key=call.step_key, applied_args=call.arguments, output=response)


async def remember(transaction: Transaction, call: StepCall, response: str) -> str:
    """Store what a step read, unless an earlier answer is stored; return what is."""
    await transaction.later(
        "insert into backstay.readings (step_key, intent_key, response) values (%s, %s, %s) on conflict do nothing",
        (call.step_key, call.claim.intent_key, response),
    )
    row = await transaction.one("select response from backstay.readings where step_key = %s", (call.step_key,))
    return response if row is None else str(row["response"])


async def _land(transaction: Transaction, tool: AnyTool, call: StepCall) -> StepResult:
    contract = tool.contract
    arguments = validated(contract, call.arguments)
    arguments_json = canonical_json(call.arguments)
    standing = await transaction.one(
        _LAND,
        {
            "intent_key": call.claim.intent_key,
            "run_id": call.claim.run_id,
            "epoch": call.claim.epoch,
            "tool": contract.name,
            "step_key": call.step_key,
            "step_id": call.step_id,
            "is_pivot": contract.side_effect is SideEffect.IRREVERSIBLE,
            "argument_digest": digest_of(arguments_json),
            "arguments": arguments_json.decode(),
        },
    )
    standing = check_claim(standing, call.claim)
    planned = planned_step(standing, tool, call)
    if standing["transaction_id"] is None:
        return await stored(transaction, call, standing)
    plan = plan_of(standing["plan"])
    await fence_first(transaction, planned, standing, call)
    asked = await asked_digest(transaction, planned, call, standing)
    await take_locks(transaction, plan, call)
    decision_id = await spend_approval(transaction, call, asked, plan) if asked is not None else None
    context = context_of(standing, call, call.step_key, standing["transaction_id"])
    output: BaseModel = await tool.execute(transaction, arguments, context)
    if tool.verify is not None:
        await tool.verify(transaction, arguments, output, context)
    await check_outlasts(transaction, contract, call, output)
    response_text = canonical_json(output.model_dump(mode="json")).decode()
    await transaction.later(
        "update backstay.effects set response = %s where step_key = %s", (response_text, call.step_key)
    )
    # Read back from what is stored, so that the first answer and every repeat of it are the same bytes.
    response = json.loads(response_text)
    await audit.append(
        transaction,
        "effect",
        caller=caller_of(standing),
        intent_key=call.claim.intent_key,
        step_id=call.step_id,
        tool=contract.wire_name,
        transaction_id=context.transaction_id,
        arguments=audit.masked(call.arguments, contract.sensitive_fields),
        policy_digest=plan.policy_digest,
        decisions=decision_id,
        result=audit.hidden(response, contract.sensitive_fields),
    )
    return StepResult(
        step_id=call.step_id,
        step_key=call.step_key,
        transaction_id=context.transaction_id,
        applied_args=json.loads(arguments_json),
        output=response,
    )


async def stored(transaction: Transaction, call: StepCall, standing: Row) -> StepResult:
    """Say why nothing new may land: the stored answer of a repeat, or the reason."""
    if standing["phase"] != "ADMITTED":
        raise SagaError(Reason.SUPERSEDED, f"Intent {standing['intent_id']} is {standing['phase']}; no step may land.")
    row = await transaction.one(
        "select state, argument_digest, arguments, response, transaction_id, warnings"
        " from backstay.effects where step_key = %s",
        (call.step_key,),
    )
    if row is None:
        if standing["overdue"]:
            raise SagaError(Reason.DEADLINE_EXCEEDED, f"The deadline of intent {standing['intent_id']} has passed.")
        if standing["killed"]:
            raise SagaError(Reason.KILL_SWITCH_ON, f"New effects of {call.step_id!r} are switched off; try later.")
        raise SagaError(Reason.IN_PROGRESS, f"Step key {call.step_key} is being written; it is tried again.")
    if row["state"] != "LANDED":
        message = f"Step {call.step_id!r} was compensated; it can never land."
        raise SagaError(Reason.SUPERSEDED, message, details=await fenced_for(transaction, standing, call))
    if row["argument_digest"] != digest(call.arguments):
        raise SagaError(
            Reason.KEY_REUSED, f"Step key {call.step_key} landed with other arguments; make another intent."
        )
    return StepResult(
        step_id=call.step_id,
        step_key=call.step_key,
        transaction_id=row["transaction_id"],
        applied_args=json.loads(row["arguments"]),
        output=json.loads(row["response"]),
        warnings=warnings_of(row),
    )


async def spend_approval(transaction: Transaction, call: StepCall, asked: str, plan: Plan) -> str:
    """Spend the one decision that covers this step and names what was asked, or refuse."""
    spent = await transaction.one(
        _SPEND,
        {
            "step_key": call.step_key,
            "intent_key": call.claim.intent_key,
            "step_id": call.step_id,
            "asked": asked,
            "valid": plan.approval_valid_seconds,
        },
    )
    if spent is None:
        raise SagaError(
            Reason.APPROVAL_MISSING,
            f"Step {call.step_id!r} has no valid, unspent approval for this plan; have it approved again.",
            phase=Phase.APPROVAL,
        )
    return str(spent["decision_id"])
