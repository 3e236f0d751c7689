"""Compensating what landed elsewhere: only what is known to have landed, under a key of its own, never in a storm.

The same two commits as a step: the attempt before the call, the compensation with its audit row after it. Each sending
costs one of the downstream's compensations a minute, which all intents share, so that a broken downstream is not sent
thousands of refunds at once.
"""

import asyncio
import json
import time
from typing import Final, LiteralString

from activities.attempts import (
    UNDECIDED,
    Sent,
    attempt_of,
    context_of,
    flight_of,
    note,
    note_not_sent,
    send_again,
    tell,
)
from activities.barrier import audited, check_claim, planned_step
from activities.compensation import done_before
from activities.database import Database, Row, Transaction
from activities.tool import AnyRemoteTool, Compensated, NotSentError
from contracts.base import JsonObject
from contracts.errors import Phase, SagaError
from contracts.keys import remote_key
from contracts.reasons import Reason
from contracts.remoteness import send_within
from contracts.saga import CompensateCall, CompensateResult

_STANDING: Final[LiteralString] = "select * from backstay.intents where intent_key = %s for share"
_EFFECT: Final[LiteralString] = "select * from backstay.effects where step_key = %s for update"
_SEND: Final[LiteralString] = """
insert into backstay.attempts (step_key, intent_key, step_id, tool, direction, remote_key, downstream,
    argument_digest, arguments, epoch, in_flight_until, key_valid_until, patience_until)
values (%(step_key)s, %(intent_key)s, %(step_id)s, %(tool)s, 'compensate', %(remote_key)s, %(downstream)s,
    %(argument_digest)s, %(arguments)s, %(epoch)s, now() + make_interval(secs => %(flight)s),
    now() + make_interval(secs => %(lifetime)s), now() + make_interval(secs => %(patience)s))
on conflict (step_key) do nothing returning transaction_id
"""
_RATE: Final[LiteralString] = """
insert into backstay.compensation_rates as rate (downstream, minute, sent)
values (%(downstream)s, date_trunc('minute', now()), 1)
on conflict (downstream) do update set minute = greatest(rate.minute, excluded.minute),
    sent = case when rate.minute < excluded.minute then 1 else rate.sent + 1 end
where rate.minute < excluded.minute or rate.sent < %(most)s
returning sent
"""
_NEXT_MINUTE: Final[LiteralString] = (
    "select extract(epoch from minute + interval '1 minute' - now())::float8 as wait_seconds"
    " from backstay.compensation_rates where downstream = %s"
)
_UNDONE: Final[LiteralString] = """
insert into backstay.effects (step_key, transaction_id, intent_key, step_id, tool, direction, state, argument_digest,
    arguments, response, residue, epoch) overriding system value
select step_key, transaction_id, intent_key, step_id, tool, direction, 'LANDED', argument_digest, arguments,
    %(response)s, %(residue)s, epoch
from backstay.attempts where step_key = %(step_key)s
"""


async def compensate_remote_step(database: Database, tool: AnyRemoteTool, call: CompensateCall) -> CompensateResult:
    """Undo a landed step once, or answer a repeat with what is stored.

    Raises SagaError: the downstream's refusal, OUTCOME_UNKNOWN (it may be undone and its key's lifetime is over: the
    step parks), and what `compensate_step` raises; RATE_LIMITED with `retry_after_seconds`: nothing was tried;
    transient: DEPENDENCY_DOWN, the same key is sent again.
    """
    return await audited(database, lambda: _carry_out(database, tool, call), tool.contract, call)


async def _carry_out(database: Database, tool: AnyRemoteTool, call: CompensateCall) -> CompensateResult:
    begun = await database.run(lambda transaction: _begin(transaction, tool, call))
    if isinstance(begun, CompensateResult):
        return begun
    sent, effect = begun
    done = await _send(database, tool, call, sent, effect)
    return await database.run(lambda transaction: _undone(transaction, tool, call, done))


async def _begin(
    transaction: Transaction, tool: AnyRemoteTool, call: CompensateCall
) -> CompensateResult | tuple[Sent, Row]:
    """Commit the attempt and spend one of the downstream's compensations, or answer what is known."""
    contract, started = tool.contract, time.monotonic()
    standing = check_claim(await transaction.one(_STANDING, (call.claim.intent_key,)), call.claim)
    planned_step(standing, tool, call)
    effect = await transaction.one(_EFFECT, (call.execute_key,))
    if effect is None or effect["state"] != "LANDED":
        if effect is not None and effect["state"] == "COMPENSATED":
            return await done_before(transaction, call, standing, effect)
        raise SagaError(
            Reason.OUTCOME_UNKNOWN,
            f"Step {call.step_id!r} is not known to have landed; nothing is compensated by guess.",
            phase=Phase.COMPENSATION,
        )
    if standing["phase"] != "CLOSING":
        raise SagaError(
            Reason.SUPERSEDED, f"Intent {standing['intent_id']} is {standing['phase']}; nothing is compensated now."
        )
    if tool.compensate is None:
        raise SagaError(
            Reason.TOO_LATE, f"Step {call.step_id!r} cannot be undone by any tool.", phase=Phase.COMPENSATION
        )
    await _spend_rate(transaction, tool)
    written = await transaction.one(
        _SEND,
        {
            "step_key": call.compensate_key,
            "intent_key": call.claim.intent_key,
            "step_id": call.step_id,
            "tool": contract.name,
            "remote_key": remote_key(call.compensate_key),
            "downstream": contract.downstream,
            "argument_digest": effect["argument_digest"],
            "arguments": effect["arguments"],
            "epoch": call.claim.epoch,
            "flight": flight_of(contract),
            "lifetime": contract.key_lifetime_seconds,
            "patience": contract.patience_seconds,
        },
    )
    attempt = await attempt_of(transaction, contract, call.compensate_key, lock=True)
    if attempt is None:
        raise AssertionError("it was inserted just now, or was there before")
    is_open = written is None and attempt["state"] in UNDECIDED
    if written is None:
        if is_open and not (contract.idempotency.knows_keys and attempt["key_valid"]):
            raise SagaError(
                Reason.OUTCOME_UNKNOWN,
                f"Step {call.step_id!r} may be undone, and its key may not be sent again; look there and say `done`.",
                details={"transaction_id": attempt["transaction_id"], "remote_key": attempt["remote_key"]},
                phase=Phase.COMPENSATION,
            )
        await send_again(transaction, contract, attempt, call.claim.epoch)
    sent = Sent(
        standing=standing,
        step_key=call.compensate_key,
        transaction_id=attempt["transaction_id"],
        sends=attempt["sends"] if written else attempt["sends"] + 1,
        is_clear=not is_open,
        in_flight_before=attempt["in_flight_until"] if is_open else attempt["asked_at"],
        started=started,
    )
    await tell(transaction, contract, standing, attempt, "sent", {"sends": sent.sends})
    return sent, effect


async def _spend_rate(transaction: Transaction, tool: AnyRemoteTool) -> None:
    """Spend one of the compensations that the downstream is sent in this minute. Raises SagaError(RATE_LIMITED)."""
    contract = tool.contract
    values = {"downstream": contract.downstream, "most": contract.compensations_per_minute}
    if await transaction.one(_RATE, values) is not None:
        return
    row = await transaction.one(_NEXT_MINUTE, (contract.downstream,))
    wait = max(1.0, row["wait_seconds"]) if row else 1.0
    raise SagaError(
        Reason.RATE_LIMITED,
        f"{contract.downstream} is sent at most {contract.compensations_per_minute} compensations a minute; it waits.",
        details={"retry_after_seconds": wait},
        phase=Phase.COMPENSATION,
    )


async def _send(database: Database, tool: AnyRemoteTool, call: CompensateCall, sent: Sent, effect: Row) -> Compensated:
    """Make the call, in no transaction. Raises SagaError: transient ones where the same key is sent again."""
    try:
        return await _call(tool, call, sent, effect)
    except NotSentError as error:
        seen = str(error)
        await database.run(lambda transaction: note_not_sent(transaction, sent, {"seen": seen}))
        raise
    except SagaError as error:
        if sent.is_clear and error.reason.is_definite:
            await _note(database, sent, "REFUSED", {"refusal": error.info.model_dump(mode="json")})
            raise
        raise await _unknown(database, call, sent, str(error)) from error
    except Exception as error:
        raise await _unknown(database, call, sent, f"the call ended with {type(error).__name__}") from error


async def _call(tool: AnyRemoteTool, call: CompensateCall, sent: Sent, effect: Row) -> Compensated:
    """Call the handler; what only an operator knows to have landed has no output."""
    contract = tool.contract
    if tool.compensate is None:
        raise AssertionError("nothing is sent without a handler")
    if time.monotonic() - sent.started > send_within(contract):
        raise NotSentError(f"The compensation of {call.step_id!r} was not sent: this worker came to it too late.")
    arguments = contract.input.model_validate_json(effect["arguments"], strict=True)
    output = None
    if effect["source"] == "saga":
        output = contract.output.model_validate_json(effect["response"], strict=True)
    context = context_of(sent.standing, call, sent.step_key, sent.transaction_id)
    async with asyncio.timeout(contract.timeout_seconds):
        return await tool.compensate(context, arguments, output)


async def _note(database: Database, sent: Sent, state: str, known: JsonObject) -> None:
    await database.run(lambda transaction: note(transaction, sent.step_key, sent.sends, state, known))


async def _unknown(database: Database, call: CompensateCall, sent: Sent, seen: str) -> SagaError:
    await _note(database, sent, "UNKNOWN", {"seen": seen})
    return SagaError(
        Reason.DEPENDENCY_DOWN, f"Whether step {call.step_id!r} is undone is not known: {seen}; it is sent again."
    )


async def _undone(
    transaction: Transaction, tool: AnyRemoteTool, call: CompensateCall, done: Compensated
) -> CompensateResult:
    """Write that a step is undone, with its audit row; an operator may have said so meanwhile."""
    standing = await transaction.one(_STANDING, (call.claim.intent_key,))
    effect = await transaction.one(_EFFECT, (call.execute_key,))
    attempt = await attempt_of(transaction, tool.contract, call.compensate_key, lock=True)
    if standing is None or effect is None or attempt is None:
        raise AssertionError("all three were there before the call")
    await transaction.later("update backstay.attempts set state = 'LANDED' where step_key = %s", (call.compensate_key,))
    if effect["state"] != "LANDED":
        if attempt["state"] != "LANDED":
            await tell(transaction, tool.contract, standing, attempt, "landed_late", {"residue": done.residue})
        return await done_before(transaction, call, standing, effect)
    response = json.dumps({"undone": True})
    await transaction.later(_UNDONE, {"step_key": call.compensate_key, "response": response, "residue": done.residue})
    await transaction.later(
        "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s where step_key = %s",
        (done.residue, call.execute_key),
    )
    await tell(transaction, tool.contract, standing, attempt, "effect", {"undone": True, "residue": done.residue})
    return CompensateResult(
        step_id=call.step_id,
        step_key=call.compensate_key,
        transaction_id=attempt["transaction_id"],
        undone=True,
        residue=done.residue,
    )
