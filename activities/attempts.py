"""Attempt rows: what was sent somewhere else, committed before it was sent, and what came of it.

A process may die at any point between the commit of the attempt and that of its outcome. What is left is a question
that a lookup answers, never a gap: only a row that says so is certain, and every change of one is a compare-and-set
over its state and the number of sendings, so that an answer to an old question never decides about a new one.
"""

import json
from dataclasses import dataclass
from typing import Final, LiteralString

from pydantic import BaseModel

from activities import audit
from activities.database import Row, Transaction
from activities.standing import caller_of, plan_of, warnings_of
from activities.tool import RemoteContext
from activities.verification import park_moved, parks
from contracts.base import JsonObject
from contracts.keys import canonical_json, remote_key
from contracts.remoteness import send_within
from contracts.saga import CompensateCall, LookupCall, StepCall, StepResult
from contracts.tool import AnyContract

UNDECIDED: Final = ("SENT", "UNKNOWN")
Call = StepCall | LookupCall | CompensateCall

_READ: Final[LiteralString] = """
select *, now() as asked_at, in_flight_until <= now() as past_flight, patience_until <= now() as over,
    key_valid_until > now() + make_interval(secs => %(margin)s) as key_valid,
    extract(epoch from now() - first_sent_at)::float8 as age_seconds,
    extract(epoch from in_flight_until - now())::float8 as flight_seconds
from backstay.attempts where step_key = %(step_key)s
"""
_LOCKED: Final[LiteralString] = _READ + " for update"
_SEND_AGAIN: Final[LiteralString] = """
update backstay.attempts set state = 'SENT', sends = sends + 1, epoch = %(epoch)s,
    in_flight_until = greatest(in_flight_until, now() + make_interval(secs => %(flight)s)),
    key_valid_until = case when sends = 0 then now() + make_interval(secs => %(lifetime)s) else key_valid_until end,
    patience_until = case when sends = 0 then now() + make_interval(secs => %(patience)s) else patience_until end
where step_key = %(step_key)s
"""
_SET: Final[LiteralString] = """
update backstay.attempts set state = %(state)s, known = %(known)s,
    patience_until = greatest(patience_until, now() + make_interval(secs => %(patience)s))
where step_key = %(step_key)s and sends = %(sends)s and state in ('SENT', 'UNKNOWN') returning state
"""
_NOT_SENT: Final[LiteralString] = """
update backstay.attempts set state = %(state)s, sends = sends - 1, in_flight_until = %(in_flight_until)s,
    known = %(known)s
where step_key = %(step_key)s and sends = %(sends)s and state = 'SENT'
"""
_LANDED: Final[LiteralString] = """
insert into backstay.effects (step_key, transaction_id, intent_key, step_id, tool, direction, state, is_pivot,
    argument_digest, arguments, response, source, epoch, warnings) overriding system value
select step_key, transaction_id, intent_key, step_id, tool, direction, %(state)s, is_pivot, argument_digest, arguments,
    %(response)s, %(source)s, epoch, %(warnings)s
from backstay.attempts where step_key = %(step_key)s
on conflict (step_key) do nothing returning transaction_id
"""
_EFFECT: Final[LiteralString] = (
    "select state, arguments, response, transaction_id, residue, warnings"
    " from backstay.effects where step_key = %s for update"
)
STANDING_SHARED: Final[LiteralString] = """
select intent_key, intent_id, tenant, principal, agent, plan, plan_digest, phase, run_id, epoch, parked_reason,
    deadline_at < now() as overdue,
    exists (select 1 from backstay.kill_switches k
        where k.scope = 'all' or (k.scope = 'tenant' and k.subject = i.tenant)
        or (k.scope = 'agent' and k.subject = i.agent) or (k.scope = 'tool' and k.subject = %(tool)s)) as killed
from backstay.intents i where intent_key = %(intent_key)s for share of i
"""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """An attempt that is committed, so that the call may be made.

    `is_clear`: nothing that was sent before under this key may still land, so that a refusal is definite.
    `started`: of this process's monotonic clock, before the attempt was committed.
    """

    standing: Row
    step_key: str
    transaction_id: int
    sends: int
    is_clear: bool
    in_flight_before: object = None
    started: float


def margin_of(contract: AnyContract) -> float:
    """How long before the end of a key's lifetime it is sent for the last time: a request takes its time."""
    return contract.timeout_seconds + send_within(contract)


def flight_of(contract: AnyContract) -> float:
    """How long after its attempt was noted a request may land."""
    return contract.in_flight_seconds + send_within(contract)


async def attempt_of(transaction: Transaction, contract: AnyContract, step_key: str, *, lock: bool) -> Row | None:
    """Read an attempt, with what the database's clock says of it."""
    values = {"step_key": step_key, "margin": margin_of(contract)}
    return await transaction.one(_LOCKED if lock else _READ, values)


def context_of(standing: Row, call: Call, step_key: str, transaction_id: int) -> RemoteContext:
    """Tell a remote handler who, for whom and under which keys, all of it from the claim."""
    return RemoteContext(
        tenant=standing["tenant"],
        principal=standing["principal"],
        agent=standing["agent"],
        intent_id=standing["intent_id"],
        step_id=call.step_id,
        step_key=step_key,
        transaction_id=transaction_id,
        remote_key=remote_key(step_key),
        execute_remote_key=remote_key(call.execute_key) if isinstance(call, CompensateCall) else None,
    )


async def send_again(transaction: Transaction, contract: AnyContract, attempt: Row, epoch: int) -> None:
    """Note one more sending of an attempt that is locked."""
    await transaction.later(
        _SEND_AGAIN,
        {
            "step_key": attempt["step_key"],
            "epoch": epoch,
            "flight": flight_of(contract),
            "lifetime": contract.key_lifetime_seconds,
            "patience": contract.patience_seconds,
        },
    )


async def note(  # noqa: PLR0917 - one row, all of it
    transaction: Transaction, step_key: str, sends: int, state: str, known: JsonObject, patience_seconds: float = 0
) -> bool:
    """Write what is known of an attempt that is undecided; False when it is decided, or was sent again meanwhile."""
    row = await transaction.one(
        _SET,
        {
            "step_key": step_key,
            "sends": sends,
            "state": state,
            "known": json.dumps(known, default=str),
            "patience": patience_seconds,
        },
    )
    return row is not None


async def note_not_sent(transaction: Transaction, sent: Sent, known: JsonObject) -> None:
    """Take a sending back that certainly did nothing: the attempt is as it was before it."""
    await transaction.later(
        _NOT_SENT,
        {
            "step_key": sent.step_key,
            "sends": sent.sends,
            "state": "NOT_LANDED" if sent.is_clear else "UNKNOWN",
            "in_flight_until": sent.in_flight_before,
            "known": json.dumps(known),
        },
    )


def echo_problems(contract: AnyContract, arguments: BaseModel, output: BaseModel) -> list[str]:
    """Name the fields of an answer that are not what was asked for: an output field echoes the input's of its name."""
    asked, told = arguments.model_dump(mode="json"), output.model_dump(mode="json")
    shared = sorted(asked.keys() & told.keys())
    return [
        name if name in contract.sensitive_fields else f"{name}: asked {asked[name]!r}, answered {told[name]!r}"
        for name in shared
        if asked[name] is not None and asked[name] != told[name]
    ]


def known_of(attempt: Row) -> JsonObject:
    """All that is known of an attempt, for the person who is called."""
    return {
        **json.loads(attempt["known"]),
        "state": attempt["state"],
        "remote_key": attempt["remote_key"],
        "downstream": attempt["downstream"],
        "transaction_id": attempt["transaction_id"],
        "sends": attempt["sends"],
        "first_sent_at": attempt["first_sent_at"].isoformat(timespec="seconds"),
        "in_flight_until": attempt["in_flight_until"].isoformat(timespec="seconds"),
        "key_valid_until": attempt["key_valid_until"].isoformat(timespec="seconds"),
    }


def result_of(attempt: Row, effect: Row) -> StepResult:
    """The answer of a step that landed, read back from what is stored."""
    return StepResult(
        step_id=attempt["step_id"],
        step_key=attempt["step_key"],
        transaction_id=attempt["transaction_id"],
        applied_args=json.loads(attempt["arguments"]),
        output=json.loads(effect["response"]),
        warnings=warnings_of(effect),
    )


async def land(  # noqa: PLR0917 - what landed, of which intent, as whom it is told
    transaction: Transaction,
    contract: AnyContract,
    standing: Row,
    attempt: Row,
    output: JsonObject,
    source: str = "saga",
    actor: str | None = None,
    warnings: tuple[str, ...] = (),
) -> StepResult | None:
    """Write that a step landed, whatever has become of its intent meanwhile: a fact is never refused.

    `warnings` are what reading it back found; the intent parks where its contract wants a person to look.
    `standing` and `attempt` are locked. Where the way is shut the effect is live all the same, also after a tombstone,
    so that it is compensated or the intent parks. None when nothing can follow from it any more: it was compensated,
    or the intent has ended, which the audit log and `backstay check` tell.
    """
    step_key, response = attempt["step_key"], canonical_json(output).decode()
    is_final = standing["phase"] not in ("ADMITTED", "CLOSING")
    if is_final:
        await _become(transaction, step_key, "LANDED")
        await tell(transaction, contract, standing, attempt, "landed_late", output, actor)
        return None
    said = json.dumps(warnings) if warnings else None
    values = {"step_key": step_key, "state": "LANDED", "response": response, "source": source, "warnings": said}
    if await transaction.one(_LANDED, values) is None:
        effect = await transaction.one(_EFFECT, (step_key,))
        if effect is None or effect["state"] == "COMPENSATED":
            return None
        if effect["state"] == "LANDED":
            return result_of(attempt, effect)
        await transaction.later(
            "update backstay.effects set state = 'LANDED', response = %s, warnings = %s, residue = null,"
            " landed_at = now() where step_key = %s",
            (response, said, step_key),
        )
    await _become(transaction, step_key, "LANDED")
    await tell(transaction, contract, standing, attempt, "effect", output, actor)
    if standing["phase"] != "ADMITTED":
        await tell(transaction, contract, standing, attempt, "landed_late", output, actor)
    if warnings:
        found: JsonObject = {"warnings": list(warnings)}
        await tell(transaction, contract, standing, attempt, "read_back", found, actor)
    if parks(contract, warnings):
        await park_moved(transaction, standing, attempt["step_id"], warnings)
    return result_of(attempt, {"response": response, "warnings": said})


async def fence(transaction: Transaction, attempt: Row, residue: str | None = None) -> None:
    """Forbid for good that a step counts, which has not landed; its attempt is locked.

    `residue`: what is known of one that may have landed, where only an operator says that it has not.
    """
    values = {
        "step_key": attempt["step_key"],
        "state": "TOMBSTONE",
        "response": None,
        "source": "saga",
        "warnings": None,
    }
    await transaction.one(_LANDED, values)
    if residue is not None:
        await transaction.later(
            "update backstay.effects set residue = %s where step_key = %s and state = 'TOMBSTONE'",
            (residue, attempt["step_key"]),
        )
    await _become(transaction, attempt["step_key"], "FENCED")


async def _become(transaction: Transaction, step_key: str, state: str) -> None:
    await transaction.later("update backstay.attempts set state = %s where step_key = %s", (state, step_key))


async def tell(  # noqa: PLR0917 - one audit row
    transaction: Transaction,
    contract: AnyContract,
    standing: Row,
    attempt: Row,
    kind: str,
    result: JsonObject,
    actor: str | None = None,
) -> None:
    """Queue an audit row about an attempt."""
    executing = attempt["direction"] == "execute"
    spent = await transaction.one(
        "select decision_id from backstay.approval_consumptions where step_key = %s", (attempt["step_key"],)
    )
    await audit.append(
        transaction,
        kind,
        caller=caller_of(standing),
        intent_key=standing["intent_key"],
        step_id=attempt["step_id"],
        tool=contract.wire_name if executing else contract.compensate_name,
        actor=actor,
        transaction_id=attempt["transaction_id"],
        arguments=audit.masked(json.loads(attempt["arguments"]), contract.sensitive_fields),
        policy_digest=plan_of(standing["plan"]).policy_digest,
        decisions=spent["decision_id"] if spent else None,
        result=audit.hidden(result, contract.sensitive_fields),
    )
