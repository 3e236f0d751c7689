"""The phase of an intent: close, settle and park, each one compare-and-set in one transaction.

Without `close_intent` money is lost: local steps that committed can be unknown to the workflow (measured: a
cancel during the last local step left its effect live). So the way back starts here, with the list of all
effects, under a lock that every execute shares.
"""

import json
from typing import Any, LiteralString

from activities import audit
from activities.database import Database, Row, Transaction
from activities.standing import caller_of, effects_seen, locked, standing_of, step_reports, unknown_steps, without_plan
from contracts.envelope import Cause, IntentReport
from contracts.saga import (
    Closed,
    CloseRequest,
    IntentPhase,
    ParkReason,
    ParkRequest,
    SettleRequest,
    Standing,
)


def pivot_landed(effects: list[Row]) -> bool:
    """True when a step that cannot be undone has landed: the way back is shut."""
    return any(effect["is_pivot"] and effect["state"] == "LANDED" for effect in effects)


async def close_intent(database: Database, request: CloseRequest) -> Closed:
    """Shut the way forward and list what landed. Repeating it gives the same answer.

    Answers instead of closing: a final phase or a parked intent as it is; `past_pivot` when an irreversible effect
    has landed, `pivot_unknown` when it may have;
    `due_in_seconds` when the cause is an expiry that has not come by the database's clock.
    Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
    """

    async def work(transaction: Transaction) -> Closed:
        row, asked, effects = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        unknown = await unknown_steps(transaction, standing.plan, request.claim.intent_key)
        answer = Closed(
            standing=without_plan(standing),
            effects=effects_seen(effects),
            unknown=tuple(attempt["step_id"] for attempt in unknown),
        )
        if standing.phase is not IntentPhase.ADMITTED or standing.parked is not None:
            return answer
        if pivot_landed(effects):
            return answer.model_copy(update={"past_pivot": True})
        if any(attempt["is_pivot"] for attempt in unknown):
            return answer.model_copy(update={"pivot_unknown": True})
        if request.cause is Cause.EXPIRED and (not standing.ask.undecided or standing.ask.expires_in_seconds > 0):
            return Closed(standing=without_plan(standing), due_in_seconds=standing.ask.expires_in_seconds)
        error = request.error.model_dump_json() if request.error else None
        await transaction.later(
            "update backstay.intents set phase = 'CLOSING', cause = %s, error = %s where intent_key = %s",
            (request.cause.value, error, request.claim.intent_key),
        )
        await audit.append(
            transaction,
            "closed",
            caller=caller_of(row),
            intent_key=request.claim.intent_key,
            actor=request.actor,
            result={"cause": request.cause.value},
        )
        closing = without_plan(standing).model_copy(
            update={"phase": IntentPhase.CLOSING, "cause": request.cause, "error": request.error}
        )
        return answer.model_copy(update={"standing": closing})

    return await database.run(work)


async def settle_intent(database: Database, request: SettleRequest) -> Standing:
    """Set the final phase if the rows agree with the plan, else park MISMATCH. Repeating it gives the same answer.

    ADMITTED becomes COMMITTED only if exactly the plan's writing steps are live and every lock that was taken still
    stands; CLOSING becomes COMPENSATED or NOT_APPLIED only if none is live. A step whose outcome is not known parks it
    OUTCOME_UNKNOWN instead. Where a lock was lost it stays ADMITTED and is told `lost`, to turn back; past the pivot,
    where it cannot, it parks.
    Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
    """

    async def work(transaction: Transaction) -> Standing:
        row, asked, effects = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        if standing.phase.is_final or standing.parked is not None:
            return without_plan(standing)
        if standing.plan is None:
            raise AssertionError("only an admitted plan settles")
        if unknown := await unknown_steps(transaction, standing.plan, request.claim.intent_key):
            stuck = [{"step_id": attempt["step_id"], "error": None} for attempt in unknown]
            return await _park(transaction, row, standing, reason=ParkReason.OUTCOME_UNKNOWN, detail={"steps": stuck})
        wanted = sorted(step.step_id for step in standing.plan.steps if step.writes and step.stands_for is None)
        executed = [effect for effect in effects if effect["direction"] == "execute"]
        landed = sorted(effect["step_id"] for effect in executed if effect["state"] == "LANDED")
        live = standing.plan.stood_for(landed)
        committing = standing.phase is IntentPhase.ADMITTED
        if (live != wanted) if committing else live:
            detail = {"live": landed, "wanted": wanted if committing else []}
            return await _park(transaction, row, standing, reason=ParkReason.MISMATCH, detail=detail)
        if standing.lost is not None:
            if not pivot_landed(effects):
                return without_plan(standing)
            told: dict[str, Any] = {"steps": [], "lost": standing.lost.model_dump(mode="json")}
            return await _park(transaction, row, standing, reason=ParkReason.STUCK_AFTER_PIVOT, detail=told)
        if committing:
            phase = IntentPhase.COMMITTED
        elif any(effect["state"] == "COMPENSATED" for effect in executed):
            phase = IntentPhase.COMPENSATED
        else:
            phase = IntentPhase.NOT_APPLIED
        report = IntentReport(
            outcome=phase.outcome,
            cause=standing.cause,
            steps=step_reports(standing.plan, effects, request.steps),
            plan_digest=standing.plan_digest,
        )
        await _end(transaction, row, phase, report)
        return standing.model_copy(update={"plan": None, "phase": phase, "report": report})

    return await database.run(work)


async def park_intent(database: Database, request: ParkRequest) -> Standing:
    """Put an intent to rest: execute barriers refuse from this commit on. Raises as `close_intent`."""

    async def work(transaction: Transaction) -> Standing:
        row, asked, _ = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        if standing.phase.is_final or standing.parked is not None:
            return without_plan(standing)
        return await _park(transaction, row, standing, reason=request.reason, detail=request.detail)

    return await database.run(work)


async def _end(transaction: Transaction, row: Row, phase: IntentPhase, report: IntentReport) -> None:
    await transaction.later(
        "update backstay.intents set phase = %s, final_at = now(), report = %s where intent_key = %s",
        (phase.value, report.model_dump_json(), row["intent_key"]),
    )
    await audit.append(
        transaction,
        "settled",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        result={"outcome": phase.value, "cause": report.cause.value},
    )


async def _park(
    transaction: Transaction, row: Row, standing: Standing, *, reason: ParkReason, detail: dict[str, Any]
) -> Standing:
    await transaction.later(
        "update backstay.intents set parked_reason = %s, parked_since = now(), parked_detail = %s"
        " where intent_key = %s",
        (reason.value, json.dumps(detail), row["intent_key"]),
    )
    await audit.append(
        transaction,
        "parked",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        result={"reason": reason.value, "detail": detail},
    )
    return standing.model_copy(update={"plan": None, "parked": reason, "parked_detail": detail})


UNPARK: LiteralString = (
    "update backstay.intents set parked_reason = null, parked_since = null, parked_detail = null where intent_key = %s"
)
