"""Admission: one transaction that claims the intent key and stores the plan, once, or refuses.

What was claimed is never judged again: a run under the claim's own workflow id, with the request that is stored, gets
what is stored, whatever today's contracts would make of it. So does a repeat by the same run. The same workflow under
a new run adopts the claim and parks it INTERRUPTED, once Temporal says that the run that owned it is over; any other
workflow is told who owns it and writes nothing. A rejection that may be retried claims nothing, is noted and raises;
any other is claimed and final at once.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from pydantic import ValidationError

from activities import audit
from activities.claims import Asking, claim, claim_rejected, masked_arguments, stored_text
from activities.database import Database, Row, Transaction
from activities.lineage import check_lineage
from activities.near import alike, ask_alike, lock_near
from activities.objects import read_objects
from activities.repeats import ALIAS, KNOWN, OWN, admit_repeat, check_alias
from activities.standing import ASK, caller_of, standing_of
from activities.tool import Pack
from contracts.errors import Phase, SagaError
from contracts.intent import Caller, IntentRequest
from contracts.near import near_keys
from contracts.plan import Plan
from contracts.planning import plan_for
from contracts.problems import field_problems
from contracts.proposal import Proposal, propose
from contracts.reasons import Reason, Retryable
from contracts.registry import Registry
from contracts.risk import Policy
from contracts.saga import AdmitRequest, ParkReason, Standing
from contracts.shape import shape_of

CLAIM_ATTEMPTS_MAX = 2
_SWITCHES: LiteralString = "select scope, subject, reason from backstay.kill_switches"
_ADOPT: LiteralString = """
update backstay.intents set run_id = %(run_id)s, former_run_ids = former_run_ids || run_id, epoch = epoch + 1,
    parked_reason = 'INTERRUPTED', parked_since = now(), parked_detail = %(detail)s
where intent_key = %(intent_key)s and run_id = %(former)s and epoch = %(epoch)s and final_at is null
returning epoch
"""

IsOpen = Callable[[str, str], Awaitable[bool]]
"""Ask Temporal whether this run (workflow id, run id) is open. Raises SagaError(DEPENDENCY_DOWN)."""


async def everybody_is_open(workflow_id: str, run_id: str) -> bool:  # noqa: ARG001 - the shape of `IsOpen`
    """Answer where there is no Temporal to ask: nothing is adopted."""
    return True


@dataclass(frozen=True)
class Interrupted:
    """A claim whose owner may be over: what its row says, and how it stands."""

    row: Row
    standing: Standing


@dataclass(frozen=True)
class Admission:
    """Everything that admission decides by: database, tools, what their objects are, policy, who still runs."""

    database: Database
    registry: Registry
    packs: tuple[Pack, ...]
    policy: Policy
    is_open: IsOpen = everybody_is_open

    async def admit(self, request: AdmitRequest) -> Standing:
        """Claim the intent for this run, or answer how it stands.

        Raises SagaError with a typed reason when nothing was claimed.
        """
        text = stored_text(request.request)
        known = asking = None
        try:
            known = read_request(request.request)
            asking = Asking(request, text, known, self._proposed(known))
        except SagaError as error:
            found = await self._own(request, text)
            if found is None:
                await self._note(error, known, None)
                raise
            return await self._settled(request, found)
        try:
            return await self._settled(request, await self._found_or_claimed(asking))
        except SagaError as error:
            await self._note(error, known, asking.proposal)
            raise

    def _proposed(self, known: IntentRequest) -> Proposal:
        return propose(
            known.intent,
            known.caller,
            self.registry,
            attempt=known.attempt,
            business_reference=known.business_reference,
        )

    async def _own(self, request: AdmitRequest, text: str) -> Standing | Interrupted | None:
        """Find what this very request claimed before, although today it would be refused."""
        if not text.isascii() and not _is_unicode(text):
            return None

        async def work(transaction: Transaction) -> Standing | Interrupted | None:
            row = await transaction.one(OWN, (request.workflow_id, text))
            if row is None:
                return None
            return _answer(request, row, await transaction.all(ASK, (row["intent_key"],)))

        return await self.database.run(work)

    async def _found_or_claimed(self, asking: Asking) -> Standing | Interrupted:
        for _ in range(CLAIM_ATTEMPTS_MAX):
            found = await self.database.run(lambda transaction: self._admit(transaction, asking))
            if found is not None:
                return found
        raise SagaError(
            Reason.IN_PROGRESS, f"Intent {asking.proposal.intent_id} is being claimed by another run; wait."
        )

    async def _admit(self, transaction: Transaction, asking: Asking) -> Standing | Interrupted | None:
        """Return None when another run claimed the key between our read and our insert."""
        request, known, proposal = asking.request, asking.known, asking.proposal
        asked_row = await transaction.ask(
            KNOWN,
            {"intent_key": proposal.intent_key, "workflow_id": request.workflow_id, "request": asking.text},
        )
        asked_decisions = await transaction.ask(ASK, (proposal.intent_key,))
        asked_alias = await transaction.ask(ALIAS, (known.caller.tenant, known.caller.principal, known.idempotency_key))
        asked_killed = await transaction.ask(_SWITCHES, ())
        near = near_keys(known.caller, proposal.steps, known.business_reference)
        await lock_near(transaction, near)
        asked_alike = await ask_alike(transaction, proposal.steps, proposal.lineage_digest, near)
        objects = await read_objects(transaction, self.packs, proposal.steps)
        row, alias = await asked_row.one(), await asked_alias.one()
        if row is not None and row["is_own"]:
            same = row["intent_key"] == proposal.intent_key
            asked = await asked_decisions.all() if same else await transaction.all(ASK, (row["intent_key"],))
            return _answer(request, row, asked)
        check_alias(alias, proposal)
        if row is not None:
            await admit_repeat(
                transaction,
                row,
                proposal,
                idempotency_key=known.idempotency_key,
                replays=alias is not None or row["workflow_id"] == request.workflow_id,
            )
            return _answer(request, row, await asked_decisions.all())
        check_switches(await asked_killed.all(), known.caller, proposal)
        await check_lineage(transaction, known, proposal)
        try:
            plan = plan_for(proposal, objects, self.policy, await alike(asked_alike, near))
        except SagaError as error:
            if error.reason.retryable is not Retryable.NEVER:
                raise
            return await claim_rejected(transaction, asking, error.info, self.policy)
        return await claim(transaction, asking, plan, near, self.policy)

    async def plan(self, known: IntentRequest, proposal: Proposal) -> Plan:
        """Judge an intent as `admit` does and write nothing: a dry run. Raises SagaError as admission refuses."""

        async def work(transaction: Transaction) -> Plan:
            switches = await transaction.all(_SWITCHES)
            near = near_keys(known.caller, proposal.steps, known.business_reference)
            asked_alike = await ask_alike(transaction, proposal.steps, proposal.lineage_digest, near)
            objects = await read_objects(transaction, self.packs, proposal.steps)
            check_switches(switches, known.caller, proposal)
            await check_lineage(transaction, known, proposal)
            return plan_for(proposal, objects, self.policy, await alike(asked_alike, near))

        return await self.database.run(work)

    async def _settled(self, request: AdmitRequest, found: Standing | Interrupted) -> Standing:
        """Adopt a claim whose owner is over; asked with no transaction open, changed only if nobody else did."""
        if isinstance(found, Standing):
            return found
        if await self.is_open(found.row["workflow_id"], found.row["run_id"]):
            return found.standing.model_copy(update={"duplicate": True})
        return await self.database.run(lambda transaction: _adopt(transaction, request, found))

    async def _note(self, error: SagaError, known: IntentRequest | None, proposal: Proposal | None) -> None:
        """Note a refusal that claimed nothing; what the engine itself tries again was not decided."""
        if known is None or error.reason.is_transient:
            return
        result = {"rejected": error.reason.value, "message": str(error)}
        if proposal is not None:
            result["intent_id"] = proposal.intent_id
        arguments = None if proposal is None else json.dumps(masked_arguments(proposal), ensure_ascii=False)
        caller, digest = known.caller, self.policy.digest
        await self.database.run(
            lambda transaction: audit.admission_refused(transaction, caller, result, arguments, digest)
        )


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


def _answer(request: AdmitRequest, row: Row, asked: list[Row]) -> Standing | Interrupted:
    """Answer a claimed key: how it stands, who owns it, or that its owner has to be asked for."""
    standing = standing_of(row, asked)
    if row["workflow_id"] != request.workflow_id or request.run_id in row["former_run_ids"]:
        return standing.model_copy(update={"duplicate": True})
    if standing.phase.is_final:
        return standing.model_copy(update={"duplicate": row["run_id"] != request.run_id})
    return standing if row["run_id"] == request.run_id else Interrupted(row, standing)


async def _adopt(transaction: Transaction, request: AdmitRequest, found: Interrupted) -> Standing:
    row = found.row
    adopted = await transaction.one(
        _ADOPT,
        {
            "run_id": request.run_id,
            "intent_key": row["intent_key"],
            "former": row["run_id"],
            "epoch": row["epoch"],
            "detail": json.dumps({"former_run_id": row["run_id"], "parked_before": row["parked_reason"]}),
        },
    )
    if adopted is None:
        raise SagaError(Reason.IN_PROGRESS, f"Intent {row['intent_id']} changed while it was adopted.")
    await audit.append(
        transaction,
        "adopted",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        result={"epoch": adopted["epoch"], "run_id": request.run_id},
    )
    return found.standing.model_copy(update={"epoch": adopted["epoch"], "parked": ParkReason.INTERRUPTED})


def _is_unicode(text: str) -> bool:
    """False for text with lone surrogates, which no table holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_switches(rows: Sequence[Row], caller: Caller, proposal: Proposal) -> None:
    """Refuse while a kill switch is on for any of it. Raises SagaError(KILL_SWITCH_ON)."""
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
