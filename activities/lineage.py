"""Occurrences and attempts of one wish: each needs the one before it, and no two of them run beside each other.

All that is decided here is decided under one lock per wish, so that a second occurrence and a second attempt that
arrive together see each other.
"""

from typing import Final, LiteralString

from activities.database import Row, Transaction
from contracts.envelope import IntentReport
from contracts.errors import SagaError
from contracts.intent import IntentRequest
from contracts.proposal import Proposal
from contracts.reasons import Reason

_LOCK: Final[LiteralString] = "select pg_advisory_xact_lock(hashtextextended(%s, 22))"
_FAMILY: Final[LiteralString] = """
select count(*) filter (where occurrence = %(occurrence)s - 1 and final_at is not null) as earlier_count,
    min(intent_id) filter (where final_at is null) as open_intent_id
from backstay.intents where lineage_digest = %(lineage)s
"""
_ATTEMPT: Final[LiteralString] = """
select intent_id, phase, report from backstay.intents
where lineage_digest = %(lineage)s and occurrence = %(occurrence)s and attempt = %(attempt)s - 1
"""


async def check_lineage(transaction: Transaction, known: IntentRequest, proposal: Proposal) -> None:
    """Let a new intent follow what was asked for before; a first one costs nothing.

    Raises SagaError: OCCURRENCE_NOT_READY (the occurrence before it has no final outcome, or one of its kin still
    runs), RETRY_NOT_ALLOWED (what `retry_of` names is not the attempt before, or left something behind).
    """
    intent = proposal.intent
    if (known.attempt > 1) != (intent.retry_of is not None):
        raise SagaError(Reason.RETRY_NOT_ALLOWED, "`retry_of` names the attempt that is retried, and only that.")
    if intent.occurrence == 1 and known.attempt == 1:
        return
    values = {"lineage": proposal.lineage_digest, "occurrence": intent.occurrence, "attempt": known.attempt}
    await transaction.later(_LOCK, (proposal.lineage_digest,))
    asked_family = await transaction.ask(_FAMILY, values)
    before = await (await transaction.ask(_ATTEMPT, values)).one()
    family = await asked_family.one() or {}
    if family["open_intent_id"] is not None:
        raise SagaError(
            Reason.OCCURRENCE_NOT_READY,
            f"Intent {family['open_intent_id']} asks for the same and has no final outcome yet; wait for it.",
            details={"occurrence": intent.occurrence, "open_intent_id": family["open_intent_id"]},
        )
    if intent.occurrence > 1 and not family["earlier_count"]:
        raise SagaError(
            Reason.OCCURRENCE_NOT_READY,
            f"Occurrence {intent.occurrence} needs occurrence {intent.occurrence - 1} to have a final outcome.",
            details={"occurrence": intent.occurrence},
        )
    if known.attempt > 1 and (before is None or before["intent_id"] != intent.retry_of or not left_nothing(before)):
        raise SagaError(
            Reason.RETRY_NOT_ALLOWED,
            f"Intent {intent.retry_of} is not an attempt at this that left nothing behind.",
            details={"retry_of": intent.retry_of},
        )


def left_nothing(row: Row) -> bool:
    """True when an intent ended and left no effect and no residue."""
    if row["phase"] not in ("NOT_APPLIED", "COMPENSATED"):
        return False
    report = IntentReport.model_validate_json(row["report"])
    return all(step.residue is None for step in report.steps)
