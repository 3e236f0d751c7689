"""Reading how an intent stands: one row, its decisions and its effects, as one transaction sees them."""

import json
from functools import lru_cache
from typing import Any, Final, LiteralString

from activities.database import Row, Transaction
from contracts.envelope import Cause, IntentReport, StepReport, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.intent import Caller
from contracts.locks import taken_away
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import Ask, Claim, EffectSeen, Graded, IntentPhase, ParkReason, Standing

INTENT_COLUMNS: Final[LiteralString] = (
    "intent_key, intent_id, tenant, principal, agent, session_id, body_digest, plan, workflow_id, run_id,"
    " former_run_ids, epoch, phase, cause, error, parked_reason, parked_since, parked_detail, report, final_at,"
    " duplicate_window_seconds, occurrence, attempt, plan_digest,"
    " final_at + make_interval(secs => duplicate_window_seconds) <= now() as window_over,"
    " (select min(l.resource) from backstay.locks l"
    " where l.intent_key = intents.intent_key and l.epoch <> intents.epoch) as lost_lock"
)
ASK: Final[LiteralString] = """
select r.step_id, r.expires_at, extract(epoch from r.expires_at - now())::float8 as due_in_seconds,
    bool_or(d.verdict = 'approve') as approved, bool_or(d.verdict = 'deny') as denied,
    g.step_id as late, g.level, g.duty, g.because, g.arguments, g.digest
from backstay.approval_requests r
left join backstay.late_grades g on g.intent_key = r.intent_key and g.step_id = r.step_id
left join backstay.decisions d on d.intent_key = r.intent_key and d.step_id = r.step_id
where r.intent_key = %s group by r.intent_key, r.step_id, g.intent_key, g.step_id order by r.step_id
"""
EFFECTS: Final[LiteralString] = """
select step_id, tool, direction, state, transaction_id, arguments, response, residue, step_key, is_pivot, source,
    warnings
from backstay.effects where intent_key = %s order by transaction_id
"""
UNKNOWN: Final[LiteralString] = """
select step_id, is_pivot from backstay.attempts
where intent_key = %s and direction = 'execute' and state in ('SENT', 'UNKNOWN') order by transaction_id
"""


@lru_cache(maxsize=512)
def plan_of(text: str) -> Plan:
    """Read a stored plan; the steps of one intent read the same text."""
    return Plan.parse(text)


def caller_of(row: Row) -> Caller:
    """Who asked, as the claim remembers."""
    return Caller(tenant=row["tenant"], principal=row["principal"], agent=row["agent"])


def ask_of(rows: list[Row]) -> Ask:
    """Sort the asked steps by what was decided; a denial beats an approval. The time is that of the next to expire."""
    if not rows:
        return Ask()
    undecided = [row for row in rows if not row["approved"] and not row["denied"]]
    due = undecided or rows
    return Ask(
        undecided=tuple(row["step_id"] for row in undecided),
        approved=tuple(row["step_id"] for row in rows if row["approved"] and not row["denied"]),
        denied=tuple(row["step_id"] for row in rows if row["denied"]),
        expires_in_seconds=max(0.0, min(row["due_in_seconds"] for row in due)),
        expires_at=min(row["expires_at"] for row in due).isoformat(timespec="seconds"),
        late=tuple(graded_of(row) for row in rows if row["late"]),
    )


def graded_of(row: Row) -> Graded:
    """Read a stored grade."""
    return Graded(
        step_id=row["step_id"],
        level=row["level"],
        duty=row["duty"],
        because=tuple(row["because"]),
        arguments=json.loads(row["arguments"]),
        digest=row["digest"],
    )


def standing_of(row: Row, asked: list[Row], plan: Plan | None = None) -> Standing:
    """Put an intent's row into the words of the saga."""
    phase, lost = IntentPhase(row["phase"]), row["lost_lock"]
    return Standing(
        intent_id=row["intent_id"],
        plan=plan or (plan_of(row["plan"]) if row["plan"] else None),
        plan_digest=row["plan_digest"],
        epoch=row["epoch"],
        phase=phase,
        cause=Cause(row["cause"]),
        error=ErrorInfo.model_validate_json(row["error"]) if row["error"] else None,
        parked=ParkReason(row["parked_reason"]) if row["parked_reason"] else None,
        parked_detail=json.loads(row["parked_detail"]) if row["parked_detail"] else None,
        report=IntentReport.model_validate_json(row["report"]) if row["report"] else None,
        ask=ask_of(asked),
        lost=taken_away(lost).info if lost is not None and phase is IntentPhase.ADMITTED else None,
    )


def without_plan(standing: Standing) -> Standing:
    """Leave the plan out: the saga has it from admission, and history holds it once; an opened one may have grown."""
    grows = standing.plan is not None and standing.plan.opened
    return standing if grows else standing.model_copy(update={"plan": None})


def effects_seen(rows: list[Row]) -> tuple[EffectSeen, ...]:
    """List the execute rows, in landing order."""
    return tuple(
        EffectSeen(
            step_id=row["step_id"], state=row["state"], transaction_id=row["transaction_id"], residue=row["residue"]
        )
        for row in rows
        if row["direction"] == "execute"
    )


def warnings_of(effect: Row) -> tuple[str, ...]:
    """What reading a landed step back has found."""
    return tuple(json.loads(effect["warnings"])) if effect["warnings"] else ()


def check_owner(row: Row | None, claim: Claim) -> Row:
    """Refuse a run that does not own the intent. Raises SagaError: INTENT_NOT_FOUND, RUN_STALE."""
    if row is None:
        raise SagaError(Reason.INTENT_NOT_FOUND, f"No intent with key {claim.intent_key} was admitted.")
    if row["run_id"] != claim.run_id or row["epoch"] != claim.epoch:
        raise SagaError(
            Reason.RUN_STALE,
            f"Run {claim.run_id} (epoch {claim.epoch}) no longer owns intent {row['intent_id']}.",
            details={"run_id": claim.run_id, "epoch": claim.epoch},
        )
    return row


async def locked(transaction: Transaction, claim: Claim) -> tuple[Row, list[Row], list[Row]]:
    """Lock an intent's row and read its decisions and effects, in one round trip. Raises as `check_owner`."""
    asked_row = await transaction.ask(
        f"select {INTENT_COLUMNS} from backstay.intents where intent_key = %s for update",  # noqa: S608 - constants
        (claim.intent_key,),
    )
    asked_decisions = await transaction.ask(ASK, (claim.intent_key,))
    effects = await (await transaction.ask(EFFECTS, (claim.intent_key,))).all()
    return check_owner(await asked_row.one(), claim), await asked_decisions.all(), effects


async def unknown_steps(transaction: Transaction, plan: Plan | None, intent_key: str) -> list[Row]:
    """List the steps that were sent somewhere and whose outcome is not known; costs nothing without remote steps."""
    if plan is None or not plan.is_remote:
        return []
    return await transaction.all(UNKNOWN, (intent_key,))


def step_reports(plan: Plan, effects: list[Row], remembered: tuple[StepReport, ...]) -> tuple[StepReport, ...]:
    """Tell each step by its effect row; what the tables do not hold comes from the saga's memory."""
    rows: dict[str, Any] = {row["step_id"]: row for row in effects if row["direction"] == "execute"}
    memory = {report.step_id: report for report in remembered}
    reports: list[StepReport] = []
    for step in plan.steps:
        known = memory.get(step.step_id)
        row = rows.get(step.step_id)
        if row is None or row["state"] == "TOMBSTONE":
            told = known or StepReport(step_id=step.step_id, tool=step.tool, state=StepState.PLANNED)
            fenced = row is not None and told.state is StepState.PLANNED
            if fenced or (step.writes and told.state in (StepState.DONE, StepState.EXECUTING)):
                told = told.model_copy(update={"state": StepState.SUPERSEDED})
            if row is not None and row["residue"] is not None:
                told = told.model_copy(update={"step_key": row["step_key"], "residue": row["residue"]})
            reports.append(told)
            continue
        reports.append(
            StepReport(
                step_id=step.step_id,
                tool=step.tool,
                state=StepState.DONE if row["state"] == "LANDED" else StepState.COMPENSATED,
                step_key=row["step_key"],
                transaction_id=row["transaction_id"],
                applied_args=json.loads(row["arguments"]),
                output=json.loads(row["response"]),
                residue=row["residue"],
                warnings=warnings_of(row),
                error=known.error if known and row["state"] == "LANDED" else None,
            )
        )
    return tuple(reports)
