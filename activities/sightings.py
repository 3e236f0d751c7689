"""Looking up what became of a step that was sent somewhere: what is certain is written, what is not is told as such.

NOT_LANDED is certain only when the downstream said so *after* the last request could still land (a question that was
asked earlier proves nothing), or when it promised never to carry the key out.
"""

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from activities.attempts import (
    STANDING_SHARED,
    UNDECIDED,
    attempt_of,
    context_of,
    echo_problems,
    fence,
    known_of,
    land,
    note,
    result_of,
    tell,
)
from activities.barrier import check_claim, planned_step
from activities.database import Database, Row, Transaction
from activities.standing import check_owner
from activities.tool import AnyRemoteTool, AnySighting, Landed, NotLanded, Unknown
from activities.verification import parks, read_back
from contracts.base import JsonObject
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason
from contracts.saga import LookupCall, Sighting
from contracts.tool import Idempotency

_EFFECT: Final[LiteralString] = "select state, response, warnings from backstay.effects where step_key = %s"
LOCK_INTENT: Final[LiteralString] = "select 1 from backstay.intents where intent_key = %s for update"
"""Taken first where the intent may have to be parked."""
WAIT_SECONDS_MIN: Final = 0.5
WAIT_SECONDS_MAX: Final = 30.0
WAITS_OF_PATIENCE: Final = 50
"""Looks that a long patience is good for once the waits have grown: history is bounded."""


@dataclass(frozen=True, kw_only=True)
class _Open:
    """An attempt that has to be asked about."""

    standing: Row
    attempt: Row


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What the downstream said; `wrong`: something else was carried out under the key, which a person has to see.

    `warnings`: what reading it back found.
    """

    sighting: AnySighting
    is_fenced: bool = False
    wrong: bool = False
    warnings: tuple[str, ...] = ()


async def look_up_step(
    database: Database, tool: AnyRemoteTool, call: LookupCall, *, by_operator: bool = False
) -> Sighting:
    """Say what is known of a step, asking the downstream where the tables do not say; write what became certain.

    `by_operator`: also while the intent is parked. Raises SagaError: RUN_STALE, INTENT_PARKED, MISMATCH (not of the
    plan); transient ones of the database. Whatever the downstream does is an answer, not an exception.
    """
    begun = await database.run(lambda transaction: _open(transaction, tool, call, by_operator=by_operator))
    if isinstance(begun, Sighting):
        return begun
    said = await _ask(tool, call, begun)
    return await database.run(lambda transaction: _write(transaction, tool, call, begun.attempt, said))


async def _open(
    transaction: Transaction, tool: AnyRemoteTool, call: LookupCall, *, by_operator: bool
) -> Sighting | _Open:
    keys = {"intent_key": call.claim.intent_key, "tool": tool.contract.name}
    found = await transaction.one(STANDING_SHARED, keys)
    standing = check_owner(found, call.claim) if by_operator else check_claim(found, call.claim)
    planned_step(standing, tool, call)
    effect = await transaction.one(_EFFECT, (call.step_key,))
    attempt = await attempt_of(transaction, tool.contract, call.step_key, lock=False)
    if attempt is not None and attempt["state"] in UNDECIDED and (effect is None or effect["state"] == "TOMBSTONE"):
        return _Open(standing=standing, attempt=attempt)
    return _decided(tool, call, standing, attempt, effect)


def _decided(tool: AnyRemoteTool, call: LookupCall, standing: Row, attempt: Row | None, effect: Row | None) -> Sighting:
    """Answer from the tables alone."""
    if attempt is None:
        return Sighting(step_id=call.step_id, state="NOT_LANDED")
    known = known_of(attempt)
    if effect is not None and effect["state"] == "LANDED":
        return Sighting(step_id=call.step_id, state="LANDED", result=result_of(attempt, effect), known=known)
    refusal = known.get("refusal") if attempt["state"] == "REFUSED" else None
    resend = attempt["state"] == "NOT_LANDED" and _may_resend(tool, call, standing, attempt, certain=True)
    return Sighting(
        step_id=call.step_id,
        state="NOT_LANDED",
        error=ErrorInfo.model_validate(refusal) if refusal else None,
        may_resend=resend,
        after_seconds=wait_of(attempt) if resend else 0,
        known=known,
    )


def _may_resend(tool: AnyRemoteTool, call: LookupCall, standing: Row, attempt: Row, *, certain: bool) -> bool:
    """True while the same key may be sent again: forward, in its lifetime, not too often, and nothing forbids it.

    What was never sent at all has had its attempts already.
    """
    contract = tool.contract
    forward = standing["phase"] == "ADMITTED" and not (call.closing or standing["overdue"] or standing["killed"])
    if contract.idempotency.knows_keys:
        recognised = bool(attempt["key_valid"])
    else:
        recognised = certain and contract.idempotency is Idempotency.LOOKUP
    return forward and recognised and 0 < attempt["sends"] < contract.attempts_max


def wait_of(attempt: Row, patience_seconds: float = 0) -> float:
    """How long to wait before the next look: half as long as it has lasted, within bounds, not past its window."""
    most = max(WAIT_SECONDS_MAX, patience_seconds / WAITS_OF_PATIENCE)
    wait = min(max(WAIT_SECONDS_MIN, attempt["age_seconds"] / 2), most)
    flight: float = attempt["flight_seconds"]
    seconds: float = round(min(wait, max(WAIT_SECONDS_MIN, flight)) if flight > 0 else wait, 3)
    return seconds


async def _ask(tool: AnyRemoteTool, call: LookupCall, begun: _Open) -> _Said:
    """Ask the downstream, in no transaction; on the way back tell it never to carry the key out, where it can."""
    contract, attempt = tool.contract, begun.attempt
    context = context_of(begun.standing, call, call.step_key, attempt["transaction_id"])
    arguments = contract.input.model_validate_json(attempt["arguments"], strict=True)
    said: AnySighting = Unknown(detail="the downstream offers no lookup")
    handlers = ((tool.cancel_by_key if call.closing else None, True), (tool.lookup, False))
    for handler, is_fence in handlers:
        if handler is None or not isinstance(said, Unknown):
            continue
        try:
            async with asyncio.timeout(contract.timeout_seconds):
                said = await handler(context, arguments)
            if isinstance(said, Landed):
                output = contract.output.model_validate(said.output.model_dump())
                if wrong := echo_problems(contract, arguments, output):
                    return _Said(sighting=Unknown(detail=f"something else landed: {'; '.join(wrong)}"), wrong=True)
                found = await read_back(tool, context, arguments, output)
                return _Said(sighting=said, warnings=found)
        except SagaError as error:
            if error.reason is Reason.MISMATCH:
                return _Said(sighting=Unknown(detail=str(error)), wrong=True)
            said = Unknown(detail=str(error))
        except Exception as error:  # noqa: BLE001 - whatever a downstream does, it did not say
            said = Unknown(detail=f"the lookup ended with {type(error).__name__}")
        if isinstance(said, NotLanded) and is_fence:
            return _Said(sighting=said, is_fenced=True)
    return _Said(sighting=said)


async def _write(transaction: Transaction, tool: AnyRemoteTool, call: LookupCall, asked: Row, said: _Said) -> Sighting:
    """Write what became certain; an answer about an attempt that was sent again meanwhile decides nothing."""
    contract, seen = tool.contract, said.sighting
    if parks(contract, said.warnings):
        await transaction.later(LOCK_INTENT, (call.claim.intent_key,))
    standing = await transaction.one(STANDING_SHARED, {"intent_key": call.claim.intent_key, "tool": contract.name})
    attempt = await attempt_of(transaction, contract, call.step_key, lock=True)
    if standing is None or attempt is None:
        raise AssertionError("both were there before the downstream was asked")
    if isinstance(seen, Landed):
        output = contract.output.model_validate(seen.output.model_dump()).model_dump(mode="json")
        result = await land(transaction, contract, standing, attempt, output, warnings=said.warnings)
        return Sighting(
            step_id=call.step_id,
            state="NOT_LANDED" if result is None else "LANDED",
            result=result,
            known=known_of(attempt),
        )
    if attempt["state"] not in UNDECIDED or attempt["sends"] != asked["sends"]:
        effect = await transaction.one(_EFFECT, (call.step_key,))
        if attempt["state"] in UNDECIDED:
            return _undecided(tool, call, standing, attempt)
        return _decided(tool, call, standing, attempt, effect)
    mismatched = said.wrong or "mismatch" in known_of(attempt)
    refusal = seen.refused if isinstance(seen, NotLanded) and not (mismatched or said.is_fenced) else None
    if refusal is not None and refusal.reason.is_definite:  # nothing that is on its way lands either
        return await _refused(transaction, tool, call, standing, attempt, refusal)
    if isinstance(seen, NotLanded) and not mismatched and (said.is_fenced or _is_settled(asked, seen)):
        return await _not_landed(transaction, tool, call, standing, attempt, is_fenced=said.is_fenced)
    known = _seen(attempt, seen, wrong=said.wrong)
    patient = 0
    if call.closing and not known.get("closing"):
        known["closing"], patient = True, contract.patience_seconds
    later = attempt | {"over": mismatched or (attempt["over"] and not patient)}
    sighting = _undecided(tool, call, standing, later, known=known_of(attempt) | known)
    known["next_look_at"] = None if sighting.over else _after(attempt, sighting.after_seconds)
    await note(transaction, call.step_key, attempt["sends"], "UNKNOWN", known, patient)
    return sighting


def _after(attempt: Row, seconds: float) -> str:
    """When the saga looks again, before it sends again too."""
    at: datetime = attempt["asked_at"] + timedelta(seconds=seconds)
    return at.isoformat(timespec="seconds")


def _is_settled(asked: Row, seen: NotLanded) -> bool:
    """True when nothing could land any more by the time the downstream was asked."""
    return bool(asked["past_flight"]) and (seen.changes_until is None or seen.changes_until <= asked["asked_at"])


async def _refused(  # noqa: PLR0917 - a step, and what was said of it
    transaction: Transaction, tool: AnyRemoteTool, call: LookupCall, standing: Row, attempt: Row, refusal: SagaError
) -> Sighting:
    """It was refused for good, and whoever asked did not hear it: an answer as if he had."""
    known: JsonObject = {"refusal": refusal.info.model_dump(mode="json")}
    await note(transaction, call.step_key, attempt["sends"], "REFUSED", known)
    told: JsonObject = {"reason": refusal.reason.value, "message": str(refusal)}
    await tell(transaction, tool.contract, standing, attempt, "refusal", told)
    return _decided(tool, call, standing, attempt | {"state": "REFUSED", "known": json.dumps(known)}, None)


def _undecided(
    tool: AnyRemoteTool, call: LookupCall, standing: Row, attempt: Row, known: JsonObject | None = None
) -> Sighting:
    over = bool(attempt["over"])
    return Sighting(
        step_id=call.step_id,
        state="UNKNOWN",
        may_resend=not over and _may_resend(tool, call, standing, attempt, certain=False),
        over=over and (bool(attempt["past_flight"]) or "mismatch" in (known or {})),
        after_seconds=wait_of(attempt, tool.contract.patience_seconds),
        known=known or known_of(attempt),
    )


async def _not_landed(
    transaction: Transaction, tool: AnyRemoteTool, call: LookupCall, standing: Row, attempt: Row, *, is_fenced: bool
) -> Sighting:
    """It is certain: on the way back it is fenced as well, so that nothing that comes late counts."""
    shut = is_fenced or (call.closing and standing["phase"] == "CLOSING")
    kind = "fenced" if shut else "not_landed"
    if shut:
        await fence(transaction, attempt)
    else:
        await note(transaction, call.step_key, attempt["sends"], "NOT_LANDED", _seen(attempt, NotLanded()))
    await tell(transaction, tool.contract, standing, attempt, kind, {"sends": attempt["sends"]})
    resend = not shut and _may_resend(tool, call, standing, attempt, certain=True)
    return Sighting(
        step_id=call.step_id,
        state="NOT_LANDED",
        may_resend=resend,
        after_seconds=wait_of(attempt) if resend else 0,
        known=known_of(attempt) | {"state": "FENCED" if shut else "NOT_LANDED"},
    )


def _seen(attempt: Row, sighting: AnySighting, *, wrong: bool = False) -> JsonObject:
    """What was known, and what the downstream said last."""
    known = {name: value for name, value in known_of(attempt).items() if name in ("seen", "mismatch", "closing")}
    if isinstance(sighting, Unknown):
        known["seen"] = sighting.detail
    elif isinstance(sighting, NotLanded):
        known["seen"] = "not there" if sighting.changes_until is None else f"not there until {sighting.changes_until}"
    if wrong:
        known["mismatch"] = known["seen"]
    return known
