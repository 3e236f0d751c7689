"""Lists for people: intents, what waits for a decision, what is parked, an account's page. Newest first, bounded."""

import json
from datetime import datetime
from typing import Any, Final, LiteralString

from activities.database import Database, Row, Transaction
from activities.questions import QUESTIONS, question_of
from activities.resolutions import verbs_for
from contracts.base import JsonObject, Record
from contracts.confirmation import SUFFIX
from contracts.envelope import Cause, Envelope, Meta, Outcome, Status
from contracts.errors import ErrorInfo, Phase, SagaError
from contracts.keys import canonical_json
from contracts.plan import Plan
from contracts.proposal import Proposal
from contracts.question import Question
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import LEVELS, RiskInputs, grade
from contracts.saga import IntentPhase, ParkReason, Standing
from contracts.tool import AnyContract, SideEffect
from worker.answers import now_text

LIST_MAX: Final = 200
LIST_DEFAULT: Final = 20
ACCOUNT_ROWS: Final = 20

_WAITS: Final[LiteralString] = """(i.phase = 'ADMITTED' and i.parked_reason is null and exists (
    select from backstay.approval_requests r where r.intent_key = i.intent_key and not exists (
        select from backstay.decisions d where d.intent_key = r.intent_key and d.step_id = r.step_id)))"""
_INTENTS: Final[LiteralString] = f"""
select i.intent_id, i.session_id, i.principal, i.agent, i.tools, i.risk_level, i.phase, i.cause, i.parked_reason,
    i.admitted_at, i.final_at, i.occurrence, i.attempt, {_WAITS} as waits
from backstay.intents i where i.tenant = %(tenant)s
    and (%(state)s = 'all' or (%(state)s = 'final') = (i.final_at is not null))
    and (%(state)s <> 'parked' or i.parked_reason is not null)
order by i.admitted_at desc limit %(most)s
"""  # noqa: S608 - constants
_APPROVALS: Final[LiteralString] = """
select i.intent_id, i.plan, i.request, i.risk_level, i.agent, i.principal, i.session_id, r.step_id, r.duty, r.reason,
    r.requested_at, r.expires_at, r.expires_at <= now() as expired, r.plan_digest, g.arguments as late, g.level
from backstay.approval_requests r join backstay.intents i using (intent_key)
left join backstay.late_grades g using (intent_key, step_id)
where i.tenant = %s and i.final_at is null and i.phase = 'ADMITTED' and i.parked_reason is null and not exists (
    select from backstay.decisions d where d.intent_key = r.intent_key and d.step_id = r.step_id)
order by r.expires_at limit %s
"""
_PARKED: Final[LiteralString] = """
select intent_key, intent_id, phase, cause, parked_reason, parked_since, parked_detail, agent, principal, tools,
    exists (select from backstay.effects e
        where e.intent_key = i.intent_key and e.is_pivot and e.state = 'LANDED') as past_pivot
from backstay.intents i where tenant = %s and final_at is null and parked_reason is not null
order by parked_since limit %s
"""
_ACCOUNT: Final[LiteralString] = """
select account_id, principal, kind, state, currency, limit_cents, opened_at, balance_cents, held_cents,
    available_cents from ledger.account_balances where account_id = %s and tenant = %s
"""
_HOLDS: Final[LiteralString] = """
select hold_id, case when state = 'OPEN' and expires_at <= now() then 'EXPIRED' else state end as state, amount_cents,
    captured_cents, reason_code, opened_at, expires_at, closed_at, transaction_id, intent_id
from ledger.holds where account_id = %s order by hold_id desc limit %s
"""
_MOVEMENTS: Final[LiteralString] = """
select movement_id, change_cents, other_account, operation_type, reason_code, memo, reverses, booked_at,
    transaction_id, intent_id
from ledger.account_movements where account_id = %s order by movement_id desc limit %s
"""


class IntentLine(Record):
    """One intent in a list."""

    intent_id: str
    session_id: str
    principal: str
    agent: str
    tools: tuple[str, ...]
    risk_level: str
    outcome: Outcome
    cause: Cause
    waiting_for: str | None
    admitted_at: str
    final_at: str | None
    occurrence: int
    attempt: int


class ApprovalCard(Record):
    """What an approver has to see: the exact arguments, why it is asked, what can be undone, and how to answer."""

    intent_id: str
    step_id: str
    tool: str
    arguments: JsonObject
    because: str
    duty: str
    risk_level: str
    undo: str
    plan_digest: str
    goal: str | None
    principal: str
    agent: str
    session_id: str
    requested_at: str
    expires_at: str
    expired: bool
    approve: str
    deny: str


class ParkedLine(Record):
    """An intent that rests until an operator acts, what it is stuck on, and what may be said."""

    intent_id: str
    phase: IntentPhase
    cause: Cause
    reason: ParkReason
    since: str
    tools: tuple[str, ...]
    stuck: tuple[JsonObject, ...]
    unknown: tuple[Question, ...] = ()
    commands: tuple[str, ...]


async def intents(database: Database, tenant: str, *, state: str = "all", limit: int = LIST_DEFAULT) -> Envelope:
    """List intents; `state` is all, open, parked or final."""
    most = min(limit, LIST_MAX)
    rows = await database.all(_INTENTS, {"tenant": tenant, "state": state, "most": most + 1})
    return _listed("intents", [_line(row) for row in rows[:most]], truncated=len(rows) > most)


async def approvals(database: Database, tenant: str, *, limit: int = LIST_DEFAULT) -> Envelope:
    """List what waits for a decision, the next to expire first."""
    most = min(limit, LIST_MAX)
    rows = await database.all(_APPROVALS, (tenant, most + 1))
    return _listed("approvals", [_card(row) for row in rows[:most]], truncated=len(rows) > most)


async def parked(database: Database, tenant: str, *, limit: int = LIST_DEFAULT) -> Envelope:
    """List what is parked, the longest resting first."""
    most = min(limit, LIST_MAX)

    async def work(transaction: Transaction) -> tuple[list[Row], list[Row]]:
        rows = await transaction.all(_PARKED, (tenant, most + 1))
        return rows, await transaction.all(QUESTIONS, ([row["intent_key"] for row in rows],))

    rows, questions = await database.run(work)
    lines = [_parked(row, [one for one in questions if one["intent_key"] == row["intent_key"]]) for row in rows[:most]]
    return _listed("parked", lines, truncated=len(rows) > most)


async def account(database: Database, tenant: str, account_id: str) -> Envelope:
    """Show an account: balance, what is held, its latest holds and movements. Raises SagaError(OBJECT_NOT_FOUND)."""

    async def work(transaction: Transaction) -> JsonObject | None:
        row = await transaction.one(_ACCOUNT, (account_id, tenant))
        if row is None:
            return None
        holds = await transaction.all(_HOLDS, (account_id, ACCOUNT_ROWS))
        movements = await transaction.all(_MOVEMENTS, (account_id, ACCOUNT_ROWS))
        return _plain(row) | {
            "holds": [_plain(hold) for hold in holds],
            "movements": [_plain(movement) for movement in movements],
        }

    found = await database.run(work)
    if found is None:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"There is no account {account_id[:40]}; account ids look like A00000001.",
            details={"account_id": account_id[:40]},
            phase=Phase.VALIDATION,
        )
    return answer(found)


def key_of(proposal: Proposal, business_reference: str | None) -> JsonObject:
    """Show the canonical form of an intent; its sha256 is the intent key."""
    caller, intent = proposal.caller, proposal.intent
    canonical = canonical_json(
        [
            caller.tenant,
            caller.principal,
            intent.session_id,
            proposal.canonical_steps,
            business_reference,
            intent.occurrence,
            proposal.attempt,
        ]
    )
    return {
        "intent_key": proposal.intent_key,
        "intent_id": proposal.intent_id,
        "body_digest": proposal.body_digest,
        "canonical": canonical.decode(),
    }


def tool_list(registry: Registry) -> JsonObject:
    """List the tools by name."""
    return {
        "tools": [
            {
                "tool": contract.wire_name,
                "title": contract.title,
                "side_effect": contract.side_effect.value,
                "stability": contract.stability.value,
                "does": contract.description.does,
            }
            for _, contract in sorted(registry.items())
        ]
    }


def tool_in_full(contract: AnyContract) -> JsonObject:
    """Show all that a contract says."""
    least = grade(contract, RiskInputs())
    return {
        "tool": contract.wire_name,
        "title": contract.title,
        "description": contract.description.text(),
        "side_effect": contract.side_effect.value,
        "stability": contract.stability.value,
        "may_refuse": contract.may_refuse,
        "reasons": [reason.value for reason in contract.reasons],
        "compensates_by": contract.compensates_by,
        "confirms": contract.confirms.does if contract.confirms is not None else None,
        "preconditions": list(contract.preconditions),
        "postconditions": list(contract.postconditions),
        "level": least.level,
        "duty": least.duty.value,
        "identity_fields": list(contract.identity_fields) if contract.identity_fields is not None else None,
        "sensitive_fields": sorted(contract.sensitive_fields),
        "resources": [
            {"argument": use.argument, "kind": use.kind, "access": use.access.value, "states": sorted(use.states)}
            for use in contract.resources
        ],
        "timeout_seconds": contract.timeout_seconds,
        "duplicate_window_seconds": contract.duplicate_window_seconds,
        "examples": [{"utterance": example.utterance, "arguments": example.arguments} for example in contract.examples],
        "input": contract.input.model_json_schema(),
        "output": contract.output.model_json_schema(mode="serialization"),
    }


def answer(data: JsonObject, meta: Meta | None = None) -> Envelope:
    """Wrap what was asked for."""
    return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=meta or Meta(timestamp=now_text()))


def resolve_commands(intent_id: str, standing: Standing, *, past_pivot: bool) -> tuple[tuple[str, str], ...]:
    """Every verb that an operator may say now, with its `backstay resolve` command."""
    commands: list[tuple[str, str]] = []
    for step_id, verbs in verbs_for(standing, pivot_landed=past_pivot).items():
        for verb in verbs:
            evidence = ' --evidence "what was done"' if verb in ("done", "skip") else ""
            commands.append((verb, f"backstay resolve {intent_id} {f'{step_id} ' if step_id else ''}{verb}{evidence}"))
    return tuple(commands)


def undo_text(side_effect: SideEffect, *, confirmed: bool = False) -> str:
    """Say to an approver whether it can be undone; what is `confirmed` in the end only until then."""
    if confirmed:
        return "can be undone until it is confirmed, which is when all else has landed; not afterwards"
    return {
        SideEffect.READ_ONLY: "nothing to undo: it only reads",
        SideEffect.REVERSIBLE: "can be undone by its compensation",
        SideEffect.IRREVERSIBLE: "cannot be undone",
    }[side_effect]


def _listed(name: str, lines: list[Any], *, truncated: bool) -> Envelope:
    data = {name: [line.model_dump(mode="json") for line in lines]}
    return answer(data, Meta(timestamp=now_text(), returned_count=len(lines), truncated=truncated))


def _line(row: Row) -> IntentLine:
    phase = IntentPhase(row["phase"])
    waiting = (
        f"an operator ({row['parked_reason']})" if row["parked_reason"] else "a decision" if row["waits"] else None
    )
    return IntentLine(
        intent_id=row["intent_id"],
        session_id=row["session_id"],
        principal=row["principal"],
        agent=row["agent"],
        tools=tuple(row["tools"]),
        risk_level=row["risk_level"],
        outcome=Outcome.PARKED if row["parked_reason"] else phase.outcome,
        cause=Cause(row["cause"]),
        waiting_for=waiting,
        admitted_at=_time(row["admitted_at"]),
        final_at=_time(row["final_at"]) if row["final_at"] else None,
        occurrence=row["occurrence"],
        attempt=row["attempt"],
    )


def _card(row: Row) -> ApprovalCard:
    plan = Plan.parse(row["plan"])
    step = plan.by_id[row["step_id"]]
    intent_id = row["intent_id"]
    return ApprovalCard(
        intent_id=intent_id,
        step_id=step.step_id,
        tool=step.tool,
        arguments=json.loads(row["late"]) if row["late"] else step.arguments,
        because=row["reason"],
        duty=row["duty"],
        risk_level=LEVELS[int(row["level"])] if row["late"] else str(row["risk_level"]),
        undo=undo_text(step.side_effect, confirmed=f"{step.step_id}{SUFFIX}" in plan.by_id),
        plan_digest=row["plan_digest"],
        goal=json.loads(row["request"])["intent"].get("goal"),
        principal=row["principal"],
        agent=row["agent"],
        session_id=row["session_id"],
        requested_at=_time(row["requested_at"]),
        expires_at=_time(row["expires_at"]),
        expired=row["expired"],
        approve=f"backstay approve {intent_id} {step.step_id}",
        deny=f"backstay deny {intent_id} {step.step_id}",
    )


def _parked(row: Row, questions: list[Row]) -> ParkedLine:
    detail: JsonObject = json.loads(row["parked_detail"] or "{}")
    standing = Standing(
        intent_id=row["intent_id"],
        phase=IntentPhase(row["phase"]),
        parked=ParkReason(row["parked_reason"]),
        parked_detail=detail,
    )
    return ParkedLine(
        intent_id=row["intent_id"],
        phase=standing.phase,
        cause=Cause(row["cause"]),
        reason=ParkReason(row["parked_reason"]),
        since=_time(row["parked_since"]),
        tools=tuple(row["tools"]),
        stuck=tuple(
            {"step_id": step["step_id"], "error": _message(step.get("error"))} for step in detail.get("steps", [])
        ),
        unknown=tuple(question_of(attempt) for attempt in questions),
        commands=tuple(
            command for _, command in resolve_commands(row["intent_id"], standing, past_pivot=row["past_pivot"])
        ),
    )


def _message(error: JsonObject | None) -> str | None:
    return None if error is None else ErrorInfo.model_validate(error).message


def _plain(row: Row) -> JsonObject:
    return {name: _time(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _time(value: datetime) -> str:
    return value.isoformat(timespec="seconds")
