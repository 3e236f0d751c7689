"""Admission: one transaction that claims the intent key and stores the plan, once, or refuses.

A repeat by the same run gets the stored plan byte for byte; the same workflow under a new run adopts the claim and
parks it INTERRUPTED; any other workflow is told who owns it and writes nothing. A rejection that may be retried
claims nothing and raises; any other is claimed and final at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from pydantic import ValidationError

from activities import audit
from activities.database import Database, Row, Transaction
from activities.repeats import ALIAS, KNOWN, admit_repeat, check_alias
from activities.standing import ASK, standing_of
from activities.tool import Pack
from contracts.envelope import Cause, IntentReport, Outcome, StepReport, StepState
from contracts.errors import ErrorInfo, Phase, SagaError
from contracts.intent import Caller, IntentRequest
from contracts.keys import intent_key
from contracts.plan import Plan
from contracts.planning import ObjectState, literals, plan_for
from contracts.problems import field_problems
from contracts.proposal import Proposal, propose, require_chain
from contracts.reasons import Reason, Retryable
from contracts.registry import Registry
from contracts.risk import LEVELS, Policy
from contracts.saga import AdmitRequest, Ask, IntentPhase, ParkReason, Standing
from contracts.shape import shape_of

_CLAIM = """
with claim as (
    insert into backstay.intents (intent_key, intent_id, tenant, principal, agent, session_id, request, body_digest,
        plan, plan_digest, tools, risk_level, occurrence, attempt, workflow_id, run_id, phase, cause, error, report,
        duplicate_window_seconds, deadline_at, final_at)
    values (%(intent_key)s, %(intent_id)s, %(tenant)s, %(principal)s, %(agent)s, %(session_id)s, %(request)s,
        %(body_digest)s, %(plan)s, %(plan_digest)s, %(tools)s, %(risk_level)s, %(occurrence)s, %(attempt)s,
        %(workflow_id)s, %(run_id)s, %(phase)s, %(cause)s, %(error)s, %(report)s, %(window)s,
        now() + make_interval(secs => %(deadline)s), case when %(phase)s = 'NOT_APPLIED' then now() end)
    on conflict do nothing
    returning intent_key
), asked as (
    insert into backstay.approval_requests (intent_key, step_id, duty, plan_digest, reason, expires_at)
    select claim.intent_key, a.step_id, a.duty, %(plan_digest)s, a.reason, now() + make_interval(secs => %(expiry)s)
    from claim, jsonb_to_recordset(%(asked)s::jsonb) as a(step_id text, duty text, reason text)
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

_SWITCHES: LiteralString = "select scope, subject, reason from backstay.kill_switches"


@dataclass(frozen=True)
class Admission:
    """Everything that admission decides by: database, tools, what their objects are, policy."""

    database: Database
    registry: Registry
    packs: tuple[Pack, ...]
    policy: Policy

    async def admit(self, request: AdmitRequest) -> Standing:
        """Claim the intent for this run, or answer how it stands.

        Raises SagaError with a typed reason when nothing was claimed.
        """
        known = read_request(request.request)
        proposal = propose(
            known.intent,
            known.caller,
            self.registry,
            attempt=known.attempt,
            business_reference=known.business_reference,
        )
        require_chain(proposal)
        for _ in range(2):
            standing = await self.database.run(lambda transaction: self._admit(transaction, request, known, proposal))
            if standing is not None:
                return standing
        raise SagaError(Reason.IN_PROGRESS, f"Intent {proposal.intent_id} is being claimed by another run; wait.")

    async def _admit(
        self, transaction: Transaction, request: AdmitRequest, known: IntentRequest, proposal: Proposal
    ) -> Standing | None:
        """Return None when another run claimed the key between our read and our insert."""
        asked_row = await transaction.ask(KNOWN, (proposal.intent_key,))
        asked_decisions = await transaction.ask(ASK, (proposal.intent_key,))
        asked_alias = await transaction.ask(ALIAS, (known.caller.tenant, known.caller.principal, known.idempotency_key))
        asked_killed = await transaction.ask(_SWITCHES, ())
        objects = await self.objects(transaction, proposal)
        row, alias = await asked_row.one(), await asked_alias.one()
        check_alias(alias, proposal)
        if row is not None:
            asked = await asked_decisions.all()
            return await self._repeat(
                transaction, request, known, proposal, row=row, asked=asked, aliased=alias is not None
            )
        _check_switches(await asked_killed.all(), known.caller, proposal)
        await self._check_lineage(transaction, known, proposal)
        try:
            plan = plan_for(proposal, objects, self.policy)
        except SagaError as error:
            if error.reason.retryable is not Retryable.NEVER:
                raise
            return await self._claim_rejected(transaction, request, known, proposal, error.info)
        return await self._claim(transaction, request, known, proposal, plan)

    async def plan(self, known: IntentRequest, proposal: Proposal) -> Plan:
        """Judge an intent as `admit` does and write nothing: a dry run. Raises SagaError as admission refuses."""

        async def work(transaction: Transaction) -> Plan:
            switches = await transaction.all(_SWITCHES)
            objects = await self.objects(transaction, proposal)
            _check_switches(switches, known.caller, proposal)
            await self._check_lineage(transaction, known, proposal)
            return plan_for(proposal, objects, self.policy)

        return await self.database.run(work)

    async def objects(self, transaction: Transaction, proposal: Proposal) -> dict[str, ObjectState]:
        """Read every object that a literal names: `kind:id` to its state."""
        wanted: dict[str, set[str]] = {}
        for step in proposal.steps:
            for kind, object_id in literals(step):
                wanted.setdefault(kind, set()).add(object_id)
        found: dict[str, ObjectState] = {}
        for pack in self.packs:
            for kind, query in pack.resources.items():
                if kind in wanted:
                    rows = await transaction.all(query, (sorted(wanted[kind]),))
                    found.update({f"{kind}:{row['object_id']}": ObjectState(**row) for row in rows})
        return found

    async def _repeat(
        self,
        transaction: Transaction,
        request: AdmitRequest,
        known: IntentRequest,
        proposal: Proposal,
        *,
        row: Row,
        asked: list[Row],
        aliased: bool,
    ) -> Standing:
        """Answer a claimed key: the stored plan, an adoption, or who owns it."""
        await admit_repeat(
            transaction,
            row,
            proposal,
            idempotency_key=known.idempotency_key,
            replays=aliased or row["workflow_id"] == request.workflow_id,
        )
        standing = standing_of(row, asked)
        if row["workflow_id"] != request.workflow_id or request.run_id in row["former_run_ids"]:
            return standing.model_copy(update={"duplicate": True})
        if standing.phase.is_final:
            return standing.model_copy(update={"duplicate": row["run_id"] != request.run_id})
        if row["run_id"] == request.run_id:
            return standing
        adopted = await transaction.one(
            "update backstay.intents set run_id = %(run_id)s, former_run_ids = former_run_ids || run_id,"
            " epoch = epoch + 1, parked_reason = 'INTERRUPTED', parked_since = now(), parked_detail = %(detail)s"
            " where intent_key = %(intent_key)s and run_id = %(former)s and epoch = %(epoch)s and final_at is null"
            " returning epoch",
            {
                "run_id": request.run_id,
                "intent_key": proposal.intent_key,
                "former": row["run_id"],
                "epoch": row["epoch"],
                "detail": json.dumps({"former_run_id": row["run_id"], "parked_before": row["parked_reason"]}),
            },
        )
        if adopted is None:
            raise SagaError(Reason.IN_PROGRESS, f"Intent {proposal.intent_id} changed while it was adopted.")
        await audit.append(
            transaction,
            "adopted",
            caller=proposal.caller,
            intent_key=proposal.intent_key,
            result={"epoch": adopted["epoch"], "run_id": request.run_id},
        )
        return standing.model_copy(update={"epoch": adopted["epoch"], "parked": ParkReason.INTERRUPTED})

    async def _check_lineage(self, transaction: Transaction, known: IntentRequest, proposal: Proposal) -> None:
        """Occurrence n needs n - 1 final; a retry needs the named attempt to have left nothing behind."""
        intent = proposal.intent
        if intent.occurrence > 1:
            earlier = await self._sibling(transaction, known, proposal, occurrence=intent.occurrence - 1, attempt=1)
            if earlier is None or earlier["final_at"] is None:
                raise SagaError(
                    Reason.OCCURRENCE_NOT_READY,
                    f"Occurrence {intent.occurrence} needs occurrence {intent.occurrence - 1} to have a final outcome.",
                    details={"occurrence": intent.occurrence},
                )
        if (known.attempt > 1) != (intent.retry_of is not None):
            raise SagaError(Reason.RETRY_NOT_ALLOWED, "`retry_of` names the attempt that is retried, and only that.")
        if known.attempt > 1:
            earlier = await self._sibling(
                transaction, known, proposal, occurrence=intent.occurrence, attempt=known.attempt - 1
            )
            if earlier is None or earlier["intent_id"] != intent.retry_of or not left_nothing(earlier):
                raise SagaError(
                    Reason.RETRY_NOT_ALLOWED,
                    f"Intent {intent.retry_of} is not an attempt at this that left nothing behind.",
                    details={"retry_of": intent.retry_of},
                )

    async def _sibling(
        self, transaction: Transaction, known: IntentRequest, proposal: Proposal, *, occurrence: int, attempt: int
    ) -> Row | None:
        key = intent_key(
            tenant=proposal.caller.tenant,
            principal=proposal.caller.principal,
            session_id=proposal.intent.session_id,
            canonical_steps=proposal.canonical_steps,
            business_reference=known.business_reference,
            occurrence=occurrence,
            attempt=attempt,
        )
        return await transaction.one(KNOWN, (key,))

    async def _claim(
        self,
        transaction: Transaction,
        request: AdmitRequest,
        known: IntentRequest,
        proposal: Proposal,
        plan: Plan,
    ) -> Standing | None:
        values = self._values(request, known, proposal)
        values |= {
            "plan": plan.model_dump_json(),
            "plan_digest": plan.digest,
            "tools": list(plan.tools),
            "risk_level": plan.risk_level,
            "asked": json.dumps(
                [
                    {"step_id": step.step_id, "duty": step.duty.value, "reason": "; ".join(step.because)}
                    for step in plan.gated_steps
                ]
            ),
            "result": json.dumps({"plan_digest": plan.digest, "risk_level": plan.risk_level}),
        }
        claimed = await transaction.one(_CLAIM, values)
        if not _is_ours(claimed, known):
            return None
        undecided = tuple(sorted(step.step_id for step in plan.gated_steps))
        ask = Ask()
        if undecided and claimed is not None:
            ask = Ask(
                undecided=undecided,
                expires_in_seconds=float(self.policy.approval_expiry_seconds),
                expires_at=claimed["expires_at"].isoformat(timespec="seconds"),
            )
        return Standing(intent_id=proposal.intent_id, plan=plan, ask=ask)

    async def _claim_rejected(
        self,
        transaction: Transaction,
        request: AdmitRequest,
        known: IntentRequest,
        proposal: Proposal,
        error: ErrorInfo,
    ) -> Standing | None:
        """Claim a rejection that no retry can change: the phase is NOT_APPLIED at once."""
        report = IntentReport(
            outcome=Outcome.NOT_APPLIED,
            cause=Cause.REJECTED,
            steps=tuple(
                StepReport(step_id=step.step_id, tool=step.contract.wire_name, state=StepState.PLANNED)
                for step in proposal.steps
            ),
        )
        values = self._values(request, known, proposal)
        values |= {
            "phase": IntentPhase.NOT_APPLIED.value,
            "cause": Cause.REJECTED.value,
            "error": error.model_dump_json(),
            "report": report.model_dump_json(),
            "result": json.dumps({"rejected": error.code.value, "message": error.message}, ensure_ascii=False),
        }
        if not _is_ours(await transaction.one(_CLAIM, values), known):
            return None
        return Standing(
            intent_id=proposal.intent_id,
            phase=IntentPhase.NOT_APPLIED,
            cause=Cause.REJECTED,
            error=error,
            report=report,
        )

    def _values(self, request: AdmitRequest, known: IntentRequest, proposal: Proposal) -> dict[str, Any]:
        return {
            "intent_key": proposal.intent_key,
            "intent_id": proposal.intent_id,
            "tenant": known.caller.tenant,
            "principal": known.caller.principal,
            "agent": known.caller.agent,
            "session_id": proposal.intent.session_id,
            "request": json.dumps(request.request, ensure_ascii=False, separators=(",", ":")),
            "body_digest": proposal.body_digest,
            "plan": None,
            "plan_digest": None,
            "tools": [],
            "risk_level": LEVELS[0],
            "occurrence": proposal.intent.occurrence,
            "attempt": known.attempt,
            "workflow_id": request.workflow_id,
            "run_id": request.run_id,
            "phase": IntentPhase.ADMITTED.value,
            "cause": Cause.NONE.value,
            "error": None,
            "report": None,
            "window": max(step.contract.duplicate_window_seconds for step in proposal.steps),
            "deadline": self.policy.intent_deadline_seconds,
            "expiry": self.policy.approval_expiry_seconds,
            "asked": "[]",
            "idempotency_key": known.idempotency_key,
            "arguments": json.dumps(
                {
                    step.step_id: json.loads(audit.masked(step.arguments, step.contract.sensitive_fields))
                    for step in proposal.steps
                },
                ensure_ascii=False,
            ),
            "policy_digest": self.policy.digest,
            "result": "{}",
        }


def read_request(raw: Any) -> IntentRequest:  # noqa: ANN401 - whatever a client sent
    """Read the workflow's input. Raises SagaError(ARGUMENTS_INVALID)."""
    try:
        return IntentRequest.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        raise SagaError(
            Reason.ARGUMENTS_INVALID,
            "The workflow's input is not an intent request; see `docs/intents.md`.",
            fields=field_problems(error, shape_of(IntentRequest), raw),
            phase=Phase.VALIDATION,
        ) from None


def left_nothing(row: Row) -> bool:
    """True when an intent ended and left no effect and no residue."""
    if row["phase"] not in ("NOT_APPLIED", "COMPENSATED"):
        return False
    report = IntentReport.model_validate_json(row["report"])
    return all(step.residue is None for step in report.steps)


def _check_switches(rows: Sequence[Row], caller: Caller, proposal: Proposal) -> None:
    on = {(row["scope"], row["subject"]) for row in rows}
    tools = {("tool", step.contract.name) for step in proposal.steps if step.contract.writes}
    met = on & ({("tenant", caller.tenant), ("agent", caller.agent)} | tools) or {
        pair for pair in on if pair[0] == "all"
    }
    if met:
        scope, subject = min(met)
        raise SagaError(
            Reason.KILL_SWITCH_ON,
            f"New effects are switched off for {scope} {subject}; try later.",
            details={"scope": scope, "subject": subject},
            phase=Phase.AUTHORIZATION,
        )


def _is_ours(claimed: Row | None, known: IntentRequest) -> bool:
    """True when this transaction wrote the claim, and the alias where one was asked for."""
    if claimed is None or not claimed["claimed"]:
        return False
    if known.idempotency_key is not None and not claimed["aliased"]:
        raise SagaError(Reason.IN_PROGRESS, "The idempotency key is being claimed by another post; wait.")
    return True
