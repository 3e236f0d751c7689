"""Writes that happen elsewhere: the attempt is committed, the call is made outside any transaction, its outcome noted.

The call's answer is one of four things: landed, refused, certainly not sent, or unknown. Unknown is never taken for
failed. What was sent is sent again only under its own key, only while the downstream surely still knows the key (or
once it is certain that nothing landed), and only while the intent goes forward; else it is looked up, until it is
certain or a person is called. Source of the rules: DESIGN.md section 3, rule 6.
"""

import asyncio
import json
import time
from typing import Final, LiteralString

from pydantic import BaseModel

from activities.attempts import (
    UNDECIDED,
    Sent,
    attempt_of,
    context_of,
    echo_problems,
    flight_of,
    land,
    note,
    note_not_sent,
    send_again,
    tell,
)
from activities.barrier import (
    STANDING,
    audited,
    check_claim,
    planned_step,
    remember,
    spend_approval,
    stored,
    validated,
)
from activities.database import Database, Row, Transaction
from activities.fallback import fence_first, fenced_for
from activities.late import asked_digest
from activities.locks import take_locks
from activities.sightings import LOCK_INTENT, look_up_step
from activities.standing import plan_of
from activities.tool import AnyRemoteTool, NotSentError, OutcomeUnknownError
from activities.verification import parks, read_back
from contracts.base import JsonObject
from contracts.errors import ErrorInfo, SagaError
from contracts.keys import canonical_json, digest_of, remote_key
from contracts.reasons import Reason
from contracts.remoteness import send_within
from contracts.saga import LookupCall, StepCall, StepResult
from contracts.tool import SideEffect

_SEND: Final[LiteralString] = (
    STANDING  # noqa: S608 - constants
    + """, sent as (
    insert into backstay.attempts (step_key, intent_key, step_id, tool, direction, is_pivot, remote_key, downstream,
        argument_digest, arguments, epoch, in_flight_until, key_valid_until, patience_until)
    select %(step_key)s, intent_key, %(step_id)s, %(tool)s, 'execute', %(is_pivot)s, %(remote_key)s, %(downstream)s,
        %(argument_digest)s, %(arguments)s, epoch, now() + make_interval(secs => %(flight)s),
        now() + make_interval(secs => %(lifetime)s), now() + make_interval(secs => %(patience)s)
    from standing
    where phase = 'ADMITTED' and run_id = %(run_id)s and epoch = %(epoch)s
        and parked_reason is null and not overdue and not killed
        and not exists (select 1 from backstay.effects e where e.step_key = %(step_key)s)
    on conflict (step_key) do nothing
    returning transaction_id
)
select standing.*, (select transaction_id from sent) as transaction_id from standing
"""
)


async def execute_remote_step(database: Database, tool: AnyRemoteTool, call: StepCall) -> StepResult:
    """Send a step and note what came of it; answer what is known of one that was sent before.

    Raises SagaError: the downstream's refusal, OUTCOME_UNKNOWN, and what `execute_step` raises; transient:
    DEPENDENCY_DOWN when it was certainly not sent. After a refusal nothing of it is live anywhere.
    """
    work = _read if not tool.contract.writes else _carry_out
    return await audited(database, lambda: work(database, tool, call), tool.contract, call)


async def _carry_out(database: Database, tool: AnyRemoteTool, call: StepCall) -> StepResult:
    arguments = validated(tool.contract, call.arguments)
    begun = await database.run(lambda transaction: _begin(transaction, tool, call, again=False))
    if begun is None:
        looked = LookupCall(claim=call.claim, step_id=call.step_id)
        sighting = await look_up_step(database, tool, looked)
        if sighting.result is not None:
            return sighting.result
        if not sighting.may_resend and sighting.state == "UNKNOWN":
            raise OutcomeUnknownError(f"Whether step {call.step_id!r} landed is not known.", details=sighting.known)
        begun = await database.run(lambda transaction: _begin(transaction, tool, call, again=True))
    if isinstance(begun, Sent):
        return await _send(database, tool, call, arguments, begun)
    if begun is None:
        raise OutcomeUnknownError(f"Whether step {call.step_id!r} landed is not known.")
    return begun


async def _begin(
    transaction: Transaction, tool: AnyRemoteTool, call: StepCall, *, again: bool
) -> StepResult | Sent | None:
    """Commit the attempt, or answer what its key already says; None: it was sent before and has to be looked up first.

    `again`: it was looked up, so an undecided attempt is sent once more if it may be. Raises SagaError when not.
    """
    contract, started = tool.contract, time.monotonic()
    arguments_json = canonical_json(call.arguments)
    found = await transaction.one(
        _SEND,
        {
            "intent_key": call.claim.intent_key,
            "run_id": call.claim.run_id,
            "epoch": call.claim.epoch,
            "tool": contract.name,
            "step_key": call.step_key,
            "step_id": call.step_id,
            "is_pivot": contract.side_effect is SideEffect.IRREVERSIBLE,
            "remote_key": remote_key(call.step_key),
            "downstream": contract.downstream,
            "argument_digest": digest_of(arguments_json),
            "arguments": arguments_json.decode(),
            "flight": flight_of(contract),
            "lifetime": contract.key_lifetime_seconds,
            "patience": contract.patience_seconds,
        },
    )
    standing = check_claim(found, call.claim)
    planned = planned_step(standing, tool, call)
    attempt = await attempt_of(transaction, contract, call.step_key, lock=True)
    if standing["transaction_id"] is not None and attempt is not None:
        await fence_first(transaction, planned, standing, call)
        await take_locks(transaction, plan_of(standing["plan"]), call)
        if (asked := await asked_digest(transaction, planned, call, standing)) is not None:
            await spend_approval(transaction, call, asked, plan_of(standing["plan"]))
        sent = _sent(standing, attempt, started, sends=1, is_clear=True)
    else:
        if attempt is None or attempt["state"] == "LANDED":
            return await stored(transaction, call, standing)
        if attempt["argument_digest"] != digest_of(arguments_json):
            raise SagaError(Reason.KEY_REUSED, f"Step key {call.step_key} was sent with other arguments.")
        if attempt["state"] in UNDECIDED and not again:
            return None
        await _check_again(transaction, tool, call, standing, attempt)
        if attempt["state"] not in UNDECIDED:
            await take_locks(transaction, plan_of(standing["plan"]), call)
        await send_again(transaction, contract, attempt, call.claim.epoch)
        is_clear = attempt["state"] not in UNDECIDED
        sent = _sent(standing, attempt, started, sends=attempt["sends"] + 1, is_clear=is_clear)
    await tell(transaction, contract, standing, attempt, "sent", {"sends": sent.sends})
    return sent


def _sent(standing: Row, attempt: Row, started: float, *, sends: int, is_clear: bool) -> Sent:
    return Sent(
        standing=standing,
        step_key=attempt["step_key"],
        transaction_id=attempt["transaction_id"],
        sends=sends,
        is_clear=is_clear,
        in_flight_before=attempt["asked_at"] if is_clear else attempt["in_flight_until"],
        started=started,
    )


async def _check_again(
    transaction: Transaction, tool: AnyRemoteTool, call: StepCall, standing: Row, attempt: Row
) -> None:
    """Refuse to send an attempt once more. Raises SagaError: definite only where nothing of it may still land."""
    contract = tool.contract
    open_question = attempt["state"] in UNDECIDED
    if attempt["state"] == "REFUSED":
        raise refused_before(attempt)
    if attempt["state"] == "FENCED":
        message = f"Step {call.step_id!r} was fenced; it can never land."
        raise SagaError(Reason.SUPERSEDED, message, details=await fenced_for(transaction, standing, call))
    if standing["phase"] != "ADMITTED" or standing["overdue"] or standing["killed"]:
        if not open_question:
            await stored(transaction, call, standing)
        raise OutcomeUnknownError(f"Step {call.step_id!r} may have landed, and nothing is sent again now.")
    knows = contract.idempotency.knows_keys
    if attempt["sends"] > 0 and knows and not attempt["key_valid"]:
        if open_question:
            raise OutcomeUnknownError(f"Step {call.step_id!r} may have landed; its key's lifetime is over.")
        raise SagaError(
            Reason.TOO_LATE,
            f"Step {call.step_id!r} did not land, and its key's lifetime is over: it is not sent again.",
        )
    if open_question and not knows:
        raise OutcomeUnknownError(f"Step {call.step_id!r} may have landed, and its downstream knows no keys.")


def refused_before(attempt: Row) -> SagaError:
    """The refusal that is stored with an attempt, as it was said first."""
    told = json.loads(attempt["known"]).get("refusal")
    if told is None:
        return SagaError(Reason.SUPERSEDED, f"Step {attempt['step_id']!r} was refused.")
    info = ErrorInfo.model_validate(told)
    error = SagaError(info.code, info.message)
    error.info = info
    return error


async def _send(
    database: Database, tool: AnyRemoteTool, call: StepCall, arguments: BaseModel, sent: Sent
) -> StepResult:
    """Make the call, in no transaction, and note what came of it. A worker that ends meanwhile leaves it SENT."""
    try:
        output, warnings = await _call(tool, call, arguments, sent)
    except NotSentError as error:
        not_sent: JsonObject = {"seen": str(error)}
        await database.run(lambda transaction: note_not_sent(transaction, sent, not_sent))
        raise
    except SagaError as error:
        if sent.is_clear and error.reason.is_definite:
            raise await _refused(database, sent, error) from error
        raise await _unknown(database, sent, call.step_id, str(error), error.reason) from error
    except Exception as error:
        raise await _unknown(database, sent, call.step_id, f"the call ended with {type(error).__name__}") from error
    return await _note_landed(database, tool, call, output, warnings)


async def _call(
    tool: AnyRemoteTool, call: StepCall, arguments: BaseModel, sent: Sent
) -> tuple[JsonObject, tuple[str, ...]]:
    """Call the handler; its answer is checked against the output model and what was asked for, and read back."""
    contract = tool.contract
    if time.monotonic() - sent.started > send_within(contract):
        raise NotSentError(f"Step {call.step_id!r} was not sent: this worker came to it too late.")
    context = context_of(sent.standing, call, sent.step_key, sent.transaction_id)
    async with asyncio.timeout(contract.timeout_seconds):
        answer: BaseModel = await tool.execute(context, arguments)
    output = contract.output.model_validate(answer.model_dump())
    if wrong := echo_problems(contract, arguments, output):
        raise SagaError(Reason.MISMATCH, f"Step {call.step_id!r} was answered for something else: {'; '.join(wrong)}.")
    told: JsonObject = output.model_dump(mode="json")
    return told, await read_back(tool, context, arguments, output)


async def _refused(database: Database, sent: Sent, error: SagaError) -> SagaError:
    known: JsonObject = {"refusal": error.info.model_dump(mode="json")}
    written = await database.run(lambda transaction: note(transaction, sent.step_key, sent.sends, "REFUSED", known))
    return error if written else OutcomeUnknownError(f"{error} The key is in use meanwhile.")


async def _unknown(
    database: Database, sent: Sent, step_id: str, seen: str, reason: Reason | None = None
) -> OutcomeUnknownError:
    known: JsonObject = {"seen": seen}
    if reason in (Reason.MISMATCH, Reason.KEY_REUSED):
        known["mismatch"] = seen
    await database.run(lambda transaction: note(transaction, sent.step_key, sent.sends, "UNKNOWN", known))
    return OutcomeUnknownError(f"Whether step {step_id!r} landed is not known: {seen}.", details=known)


async def _note_landed(
    database: Database, tool: AnyRemoteTool, call: StepCall, output: JsonObject, warnings: tuple[str, ...]
) -> StepResult:
    async def work(transaction: Transaction) -> StepResult | None:
        if parks(tool.contract, warnings):
            await transaction.later(LOCK_INTENT, (call.claim.intent_key,))
        standing = await transaction.one(
            "select * from backstay.intents where intent_key = %s for share", (call.claim.intent_key,)
        )
        attempt = await attempt_of(transaction, tool.contract, call.step_key, lock=True)
        if standing is None or attempt is None:
            raise AssertionError("the attempt was committed before the call")
        return await land(transaction, tool.contract, standing, attempt, output, warnings=warnings)

    result = await database.run(work)
    if result is None:
        raise SagaError(Reason.SUPERSEDED, f"Step {call.step_id!r} landed when nothing could follow from it any more.")
    return result


async def _read(database: Database, tool: AnyRemoteTool, call: StepCall) -> StepResult:
    """Ask a downstream something, and remember its answer: what later steps bound from it must not change."""

    async def known(transaction: Transaction) -> tuple[Row, Row | None]:
        found = await transaction.one("select * from backstay.intents where intent_key = %s", (call.claim.intent_key,))
        standing = check_claim(found, call.claim)
        planned_step(standing, tool, call)
        reading = await transaction.one("select response from backstay.readings where step_key = %s", (call.step_key,))
        return standing, reading

    standing, reading = await database.run(known)
    if reading is None:
        arguments = validated(tool.contract, call.arguments)
        context = context_of(standing, call, call.step_key, 0)
        try:
            async with asyncio.timeout(tool.contract.timeout_seconds):
                output: BaseModel = await tool.execute(context, arguments)
        except (TimeoutError, OutcomeUnknownError) as error:
            raise SagaError(
                Reason.DEPENDENCY_DOWN, f"Step {call.step_id!r} got no answer; it is asked again."
            ) from error
        fresh = canonical_json(output.model_dump(mode="json")).decode()
        response = await database.run(lambda transaction: remember(transaction, call, fresh))
    else:
        response = reading["response"]
    return StepResult(
        step_id=call.step_id, step_key=call.step_key, applied_args=call.arguments, output=json.loads(response)
    )
