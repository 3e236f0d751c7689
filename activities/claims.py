"""Claims: the one statement that takes an intent key, with its plan, what it asks people, its alias and audit row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from activities import audit
from activities.database import Row, Transaction
from contracts.base import JsonObject, JsonValue
from contracts.envelope import Cause, IntentReport, Outcome, StepReport, StepState
from contracts.errors import ErrorInfo, SagaError
from contracts.intent import IntentRequest
from contracts.plan import Plan
from contracts.proposal import Proposal
from contracts.reasons import Reason
from contracts.risk import LEVELS, Policy
from contracts.saga import AdmitRequest, Ask, IntentPhase, Standing

_CLAIM = """
with claim as (
    insert into backstay.intents (intent_key, intent_id, tenant, principal, agent, session_id, request, body_digest,
        lineage_digest, plan, plan_digest, tools, risk_level, occurrence, attempt, workflow_id, run_id, phase, cause,
        error, report, duplicate_window_seconds, proof, proof_digest, deadline_at, final_at)
    values (%(intent_key)s, %(intent_id)s, %(tenant)s, %(principal)s, %(agent)s, %(session_id)s, %(request)s,
        %(body_digest)s, %(lineage_digest)s, %(plan)s, %(plan_digest)s, %(tools)s, %(risk_level)s, %(occurrence)s,
        %(attempt)s, %(workflow_id)s, %(run_id)s, %(phase)s, %(cause)s, %(error)s, %(report)s, %(window)s,
        %(proof)s, %(proof_digest)s, now() + make_interval(secs => %(deadline)s),
        case when %(phase)s = 'NOT_APPLIED' then now() end)
    on conflict do nothing
    returning intent_key
), asked as (
    insert into backstay.approval_requests (intent_key, step_id, duty, plan_digest, reason, expires_at)
    select claim.intent_key, a.step_id, a.duty, %(plan_digest)s, a.reason, now() + make_interval(secs => %(expiry)s)
    from claim, jsonb_to_recordset(%(asked)s::jsonb) as a(step_id text, duty text, reason text)
), near as (
    insert into backstay.near_duplicates (near_key, intent_key, step_id)
    select n.near_key, claim.intent_key, n.step_id
    from claim, unnest(%(near_keys)s::text[], %(near_steps)s::text[]) as n(near_key, step_id)
), alias as (
    insert into backstay.intent_aliases (tenant, principal, idempotency_key, intent_key)
    select %(tenant)s, %(principal)s, %(idempotency_key)s, claim.intent_key from claim
    where %(idempotency_key)s::text is not null
    on conflict do nothing
    returning 1
), noted as (
    select backstay.append_audit('admitted', %(tenant)s, claim.intent_key, null, null, %(agent)s, %(principal)s, null,
        null, %(arguments)s, %(policy_digest)s, null, %(result)s) from claim
)
select (select count(*) from claim) as claimed, (select count(*) from alias) as aliased,
    (select count(*) from noted) as noted, (now() + make_interval(secs => %(expiry)s)) as expires_at
"""
OPEN_WINDOW_SECONDS: Final = 86_400
"""Of an intent without steps; it grows with the steps that are added."""


@dataclass(frozen=True)
class Asking:
    """A run that asks for admission, and what it asks for; `text` is its input as the claim stores it."""

    request: AdmitRequest
    text: str
    known: IntentRequest
    proposal: Proposal


def stored_text(raw: JsonValue) -> str:
    """Write a workflow's input as claims store it, so that sweep can start the same run again."""
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))


def masked_arguments(proposal: Proposal) -> JsonObject:
    """Show all arguments, by step, without what the contracts call sensitive."""
    return {
        step.step_id: json.loads(audit.masked(step.arguments, step.contract.sensitive_fields))
        for step in proposal.steps
    }


async def claim(
    transaction: Transaction, asking: Asking, plan: Plan, near: Mapping[str, str], policy: Policy
) -> Standing | None:
    """Claim the key with its plan and near-keys; None when somebody else did. Raises SagaError(IN_PROGRESS)."""
    values = _values(asking, policy)
    values |= {
        "plan": plan.model_dump_json(),
        "plan_digest": plan.digest,
        "near_keys": list(near.values()),
        "near_steps": list(near),
        "proof": asking.proposal.proof.text,
        "proof_digest": plan.proof_digest,
        "tools": list(plan.tools),
        "risk_level": plan.risk_level,
        "asked": json.dumps(
            [
                {"step_id": step.step_id, "duty": step.duty.value, "reason": "; ".join(step.because)}
                for step in plan.gated_steps
            ]
        ),
        "result": json.dumps(
            {"plan_digest": plan.digest, "proof_digest": plan.proof_digest, "risk_level": plan.risk_level}
        ),
    }
    claimed = await transaction.one(_CLAIM, values)
    if not _is_ours(claimed, asking.known):
        return None
    undecided = tuple(sorted(step.step_id for step in plan.gated_steps))
    ask = Ask()
    if undecided and claimed is not None:
        ask = Ask(
            undecided=undecided,
            expires_in_seconds=float(policy.approval_expiry_seconds),
            expires_at=claimed["expires_at"].isoformat(timespec="seconds"),
        )
    return Standing(intent_id=asking.proposal.intent_id, plan=plan, plan_digest=plan.digest, ask=ask)


async def claim_rejected(transaction: Transaction, asking: Asking, error: ErrorInfo, policy: Policy) -> Standing | None:
    """Claim a rejection that no retry can change: the phase is NOT_APPLIED at once."""
    report = IntentReport(
        outcome=Outcome.NOT_APPLIED,
        cause=Cause.REJECTED,
        steps=tuple(
            StepReport(step_id=step.step_id, tool=step.contract.wire_name, state=StepState.PLANNED)
            for step in asking.proposal.steps
        ),
    )
    values = _values(asking, policy)
    values |= {
        "phase": IntentPhase.NOT_APPLIED.value,
        "cause": Cause.REJECTED.value,
        "error": error.model_dump_json(),
        "report": report.model_dump_json(),
        "result": json.dumps({"rejected": error.code.value, "message": error.message}, ensure_ascii=False),
    }
    if not _is_ours(await transaction.one(_CLAIM, values), asking.known):
        return None
    return Standing(
        intent_id=asking.proposal.intent_id,
        phase=IntentPhase.NOT_APPLIED,
        cause=Cause.REJECTED,
        error=error,
        report=report,
    )


def _values(asking: Asking, policy: Policy) -> dict[str, Any]:
    known, proposal = asking.known, asking.proposal
    return {
        "intent_key": proposal.intent_key,
        "intent_id": proposal.intent_id,
        "tenant": known.caller.tenant,
        "principal": known.caller.principal,
        "agent": known.caller.agent,
        "session_id": proposal.intent.session_id,
        "request": asking.text,
        "body_digest": proposal.body_digest,
        "lineage_digest": proposal.lineage_digest,
        "plan": None,
        "plan_digest": None,
        "near_keys": [],
        "near_steps": [],
        "proof": None,
        "proof_digest": None,
        "tools": [],
        "risk_level": LEVELS[0],
        "occurrence": proposal.intent.occurrence,
        "attempt": known.attempt,
        "workflow_id": asking.request.workflow_id,
        "run_id": asking.request.run_id,
        "phase": IntentPhase.ADMITTED.value,
        "cause": Cause.NONE.value,
        "error": None,
        "report": None,
        "window": max((step.contract.duplicate_window_seconds for step in proposal.steps), default=OPEN_WINDOW_SECONDS),
        "deadline": policy.intent_deadline_seconds,
        "expiry": policy.approval_expiry_seconds,
        "asked": "[]",
        "idempotency_key": known.idempotency_key,
        "arguments": json.dumps(masked_arguments(proposal), ensure_ascii=False),
        "policy_digest": policy.digest,
        "result": "{}",
    }


def _is_ours(claimed: Row | None, known: IntentRequest) -> bool:
    """True when this transaction wrote the claim, and the alias where one was asked for."""
    if claimed is None or not claimed["claimed"]:
        return False
    if known.idempotency_key is not None and not claimed["aliased"]:
        raise SagaError(Reason.IN_PROGRESS, "The idempotency key is being claimed by another post; wait.")
    return True
