"""What a repeated post gets: the stored outcome, or a named refusal. One rule, for admission and for every door.

Keys and outcomes never expire, but a plain repeat counts as the same wish only within the duplicate window, which
starts with the final phase and is judged by the database's clock. An explicit idempotency key always replays.
"""

from typing import Final, LiteralString

from activities.database import Row, Transaction
from activities.standing import INTENT_COLUMNS
from contracts.errors import Phase, SagaError
from contracts.intent import OpenIntent
from contracts.proposal import Proposal
from contracts.reasons import Reason

ALIAS: Final[LiteralString] = (
    "select intent_key from backstay.intent_aliases where tenant = %s and principal = %s and idempotency_key = %s"
)
KNOWN: Final[LiteralString] = (
    f"select {INTENT_COLUMNS},"  # noqa: S608 - constants
    " (workflow_id = %(workflow_id)s and request = %(request)s) as is_own from backstay.intents"
    " where intent_key = %(intent_key)s or (workflow_id = %(workflow_id)s and request = %(request)s)"
    " order by is_own desc"
)
"""By key or by what this very workflow claimed with this very request, which may have got another key in its day."""
OWN: Final[LiteralString] = f"select {INTENT_COLUMNS} from backstay.intents where workflow_id = %s and request = %s"  # noqa: S608 - constants
_ADD_ALIAS: Final[LiteralString] = (
    "insert into backstay.intent_aliases (tenant, principal, idempotency_key, intent_key) values (%s, %s, %s, %s)"
    " on conflict do nothing"
)


def check_alias(alias: Row | None, proposal: Proposal) -> None:
    """Refuse an explicit key that names another intent. Raises SagaError(KEY_REUSED)."""
    if alias is not None and alias["intent_key"] != proposal.intent_key:
        raise SagaError(
            Reason.KEY_REUSED,
            "This idempotency key was used for another intent; use a new one, or none at all.",
            details={"intent_id": proposal.intent_id},
            phase=Phase.VALIDATION,
        )


async def admit_repeat(
    transaction: Transaction, row: Row, proposal: Proposal, *, idempotency_key: str | None, replays: bool
) -> None:
    """Let a repeat have what is stored, and let its explicit key name the intent from now on.

    `replays`: the same explicit key was given before, so no window ends it.
    Raises SagaError: KEY_REUSED (other arguments), OCCURRENCE_REQUIRED (after the window).
    """
    if row["body_digest"] != proposal.body_digest:
        raise SagaError(
            Reason.KEY_REUSED,
            f"Intent {proposal.intent_id} was admitted with other arguments; post it as another intent.",
            details={"intent_id": proposal.intent_id},
            phase=Phase.VALIDATION,
        )
    if row["window_over"] and not replays and isinstance(proposal.intent, OpenIntent):
        raise _name_taken(row, proposal)
    if row["window_over"] and not replays:
        following = row["occurrence"] + 1
        ended = row["final_at"].isoformat(timespec="seconds")
        raise SagaError(
            Reason.OCCURRENCE_REQUIRED,
            f"Intent {proposal.intent_id} asked for the same and ended {row['phase']} at {ended}; if the user really"
            f" wants it again, post it with occurrence {following}.",
            details={
                "intent_id": proposal.intent_id,
                "outcome": row["phase"],
                "final_at": ended,
                "occurrence": following,
            },
            phase=Phase.VALIDATION,
        )
    if idempotency_key is not None and not row["window_over"]:
        caller = proposal.caller
        await transaction.later(_ADD_ALIAS, (caller.tenant, caller.principal, idempotency_key, proposal.intent_key))


def _name_taken(row: Row, proposal: Proposal) -> SagaError:
    return SagaError(
        Reason.OCCURRENCE_REQUIRED,
        f"Open intent {proposal.intent_id} of this name ended {row['phase']}; give another one another name.",
        details={"intent_id": proposal.intent_id, "outcome": row["phase"]},
        phase=Phase.VALIDATION,
        suggestion="Open an intent under a name that this conversation has not used.",
    )
