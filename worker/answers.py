"""Reading how intents stand, from the tables alone: the same answer whoever asks, and also while Temporal is away."""

import json
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, LiteralString

from activities.database import Database, Row, Transaction
from activities.questions import QUESTIONS, question_of
from activities.standing import ASK, EFFECTS, INTENT_COLUMNS, standing_of, step_reports
from contracts.envelope import (
    Cause,
    Envelope,
    IntentReport,
    Meta,
    Outcome,
    Status,
    StepReport,
    StepState,
    intent_envelope,
)
from contracts.errors import ErrorInfo, Phase, SagaError
from contracts.proposal import Proposal
from contracts.question import Question
from contracts.reasons import Reason, Retryable
from contracts.saga import IntentPhase, ParkReason, Standing

POLL_RUNNING_MS: Final = 1_000
POLL_RESTING_MS: Final = 15_000
PREFIX_LENGTH_MIN: Final = 8
_ID_OR_PREFIX: Final = re.compile(r"int_[a-z2-7]{1,26}")
_ID_LENGTH: Final = 30

_KNOWN: Final[LiteralString] = (
    f"select {INTENT_COLUMNS}, request, risk_level, tools, admitted_at, deadline_at"  # noqa: S608 - constants
    " from backstay.intents where intent_key = %s"
)
_ENDED: Final[LiteralString] = (
    f"select {INTENT_COLUMNS} from backstay.intents"  # noqa: S608 - constants
    " where intent_key = %s and final_at is not null and report is not null and cause <> %s"
)
_REFUSALS: Final[LiteralString] = """
select distinct on (step_id) step_id, tool, result from backstay.audit_log
where intent_key = %s and kind = 'refusal' order by step_id, audit_id desc
"""
_DENIAL: Final[LiteralString] = """
select approver, step_id, reason from backstay.decisions
where intent_key = %s and verdict = 'deny' order by decided_at limit 1
"""
_NO_WORD_OF_THE_TOOL: Final = frozenset({Reason.RUN_STALE, Reason.INTENT_PARKED, Reason.SUPERSEDED})


@dataclass(frozen=True)
class Known:
    """An intent as one transaction saw it."""

    row: Row
    standing: Standing
    effects: list[Row]
    refusals: list[Row]
    denial: Row | None = None
    questions: tuple[Question, ...] = ()

    @property
    def unknown(self) -> tuple[Question, ...]:
        """What is known of the steps that may have landed; of one that is on its way for the first time nothing yet."""
        return () if self.standing.phase.is_final else tuple(one for one in self.questions if one.is_unknown)

    @property
    def intent_key(self) -> str:
        """The key that everything about it hangs on."""
        key: str = self.row["intent_key"]
        return key

    @property
    def is_at_rest(self) -> bool:
        """True when only people can move it on, or the agent that adds its steps."""
        standing = self.standing
        is_waiting = standing.phase is IntentPhase.ADMITTED and (standing.ask.undecided or self.is_open)
        return bool(standing.parked or (is_waiting and not self.unknown))

    @property
    def is_open(self) -> bool:
        """True when it takes steps, unless it is parked."""
        plan = self.standing.plan
        return self.standing.phase is IntentPhase.ADMITTED and plan is not None and plan.is_open

    def report(self) -> IntentReport:
        """The stored report of a final phase, else what the tables tell of each step."""
        standing = self.standing
        if standing.report is not None:
            return standing.report
        if standing.plan is None:
            return IntentReport(outcome=standing.phase.outcome, cause=standing.cause)
        return IntentReport(
            outcome=Outcome.PARKED if standing.parked else standing.phase.outcome,
            cause=standing.cause,
            steps=tuple(self._told(step) for step in step_reports(standing.plan, self.effects, self._refused())),
            waiting_for=self.waiting_for(),
            plan_digest=standing.plan_digest,
        )

    def waiting_for(self) -> str | None:
        """In words, what must happen next."""
        standing = self.standing
        if standing.phase.is_final:
            return None
        if standing.parked is not None:
            return f"an operator ({standing.parked})"
        if self.unknown:
            return f"the outcome of {', '.join(one.step_id for one in self.unknown)}: whether it landed is not known"
        if standing.phase is IntentPhase.CLOSING:
            return "its compensation"
        if standing.ask.undecided:
            return f"a decision about {', '.join(standing.ask.undecided)} until {standing.ask.expires_at}"
        return "the next step, commit or abort" if self.is_open else "its steps"

    def envelope(self, *, duplicate: bool = False) -> Envelope:
        """The answer of this moment."""
        final = self.standing.phase.is_final
        intent_id = self.standing.intent_id
        return intent_envelope(
            self.report(),
            self.standing.error or self._denied(),
            Meta(
                intent_id=intent_id,
                timestamp=now_text(),
                duplicate=duplicate,
                duplicate_of=intent_id if duplicate else None,
                poll_after_ms=None if final else POLL_RESTING_MS if self.is_at_rest else POLL_RUNNING_MS,
                settles_at=self._settles_at(),
                warnings=() if final else self.warnings(),
            ),
        )

    def _settles_at(self) -> str | None:
        """From when on a lookup is certain about all that may have landed."""
        closing = self.standing.phase is IntentPhase.CLOSING
        return max((one.may_land_until for one in (self.questions if closing else self.unknown)), default=None)

    def warnings(self) -> tuple[str, ...]:
        """What whoever asked should know about its steps: which of them were done before under another key."""
        planned = self.standing.plan.steps if self.standing.plan else ()
        said = [(step.step_id, step.because) for step in planned]
        said += [(graded.step_id, graded.because) for graded in self.standing.ask.late]
        found = (
            f"{step_id}: {why}"
            for step_id, because in said
            for why in because
            if why.startswith(Reason.POSSIBLE_DUPLICATE)
        )
        return tuple(dict.fromkeys(found))

    def _denied(self) -> ErrorInfo | None:
        """Who said no, and why: the saga ends with the bare cause."""
        if self.denial is None or self.standing.cause is not Cause.DENIED:
            return None
        told = dict(self.denial)
        why = f": {told['reason']}" if told["reason"] else "."
        message = f"{told['approver']} denied {told['step_id']}{why}"
        return SagaError(Reason.APPROVAL_DENIED, message, details=told, phase=Phase.APPROVAL).info

    def _refused(self) -> tuple[StepReport, ...]:
        """What steps said no to, from the audit log: the saga remembers it too, but the tables answer here."""
        told = [(row, json.loads(row["result"])) for row in self.refusals]
        return tuple(
            StepReport(
                step_id=row["step_id"],
                tool=row["tool"],
                state=StepState.REFUSED,
                error=SagaError(Reason(said["reason"]), said["message"]).info,
            )
            for row, said in told
            if Reason(said["reason"]) not in _NO_WORD_OF_THE_TOOL
        )

    def _told(self, step: StepReport) -> StepReport:
        standing = self.standing
        if standing.phase is IntentPhase.ADMITTED and step.step_id in standing.ask.undecided:
            return step.model_copy(update={"state": StepState.AWAITING_APPROVAL})
        asked = next((one for one in self.questions if one.step_id == step.step_id), None)
        if asked is not None:
            state = StepState.UNKNOWN if asked.is_unknown else StepState.EXECUTING
            return step.model_copy(update={"state": state, "error": asked.error() if asked.is_unknown else None})
        if standing.parked is ParkReason.OUTCOME_UNKNOWN and step.state is StepState.DONE:  # found meanwhile
            return step
        if standing.parked is not None and step.step_id in (stuck := self.stuck()):
            return step.model_copy(update={"state": StepState.PARKED, "error": stuck[step.step_id]})
        return step

    def stuck(self) -> dict[str, ErrorInfo | None]:
        """Steps that keep a parked intent from going on, and what they said."""
        steps = (self.standing.parked_detail or {}).get("steps", [])
        return {
            step["step_id"]: ErrorInfo.model_validate(step["error"]) if step.get("error") else None for step in steps
        }


async def read_known(transaction: Transaction, intent_key: str) -> Known | None:
    """Read an intent, its decisions, refusals and effects, in one round trip; None when it was never claimed."""
    asked_row = await transaction.ask(_KNOWN, (intent_key,))
    asked_decisions = await transaction.ask(ASK, (intent_key,))
    asked_refusals = await transaction.ask(_REFUSALS, (intent_key,))
    asked_denial = await transaction.ask(_DENIAL, (intent_key,))
    asked_questions = await transaction.ask(QUESTIONS, ([intent_key],))
    effects = await (await transaction.ask(EFFECTS, (intent_key,))).all()
    row = await asked_row.one()
    if row is None:
        return None
    standing = standing_of(row, await asked_decisions.all())
    refusals, denial = await asked_refusals.all(), await asked_denial.one()
    questions = tuple(question_of(attempt) for attempt in await asked_questions.all())
    return Known(row=row, standing=standing, effects=effects, refusals=refusals, denial=denial, questions=questions)


async def read_ended(database: Database, intent_key: str) -> Known | None:
    """Read an intent whose report says all of it, by one statement; None when there is more to be read."""
    row = await database.one(_ENDED, (intent_key, Cause.DENIED))
    if row is None:
        return None
    return Known(row=row, standing=standing_of(row | {"plan": None}, []), effects=[], refusals=[])


async def find(database: Database, tenant: str, intent_id: str) -> Known:
    """Find an intent of a tenant by its id or by a unique beginning of it.

    Raises SagaError: ARGUMENTS_INVALID (no id, or the beginning of several), INTENT_NOT_FOUND; transient ones.
    """
    if not _ID_OR_PREFIX.fullmatch(intent_id):
        raise SagaError(
            Reason.ARGUMENTS_INVALID,
            "An intent id begins with int_ and goes on with letters a-z and digits 2-7.",
            phase=Phase.VALIDATION,
        )
    if len(intent_id) < PREFIX_LENGTH_MIN:
        raise SagaError(
            Reason.ARGUMENTS_INVALID,
            f"Give at least {PREFIX_LENGTH_MIN} characters of the intent id.",
            details={"length_min": PREFIX_LENGTH_MIN},
            phase=Phase.VALIDATION,
        )

    async def work(transaction: Transaction) -> Known:
        statement: LiteralString = "select intent_key, intent_id from backstay.intents where tenant = %s and intent_id"
        whole = len(intent_id) == _ID_LENGTH
        rows = await transaction.all(
            f"{statement} = %s" if whole else f"{statement} like %s order by admitted_at desc limit 6",
            (tenant, intent_id if whole else f"{intent_id}%".replace("_", "\\_", 1)),
        )
        if len(rows) > 1:
            matches = [row["intent_id"] for row in rows]
            raise SagaError(
                Reason.ARGUMENTS_INVALID,
                f"{intent_id} is the beginning of {len(matches)} ids or more: {', '.join(matches)}; give more of it.",
                details={"matches": matches},
                phase=Phase.VALIDATION,
            )
        known = await read_known(transaction, rows[0]["intent_key"]) if rows else None
        if known is None:
            raise not_found(intent_id)
        return known

    return await database.run(work)


def not_found(intent_id: str) -> SagaError:
    """Make the error for an id that this tenant has not; another tenant's is not there either."""
    return SagaError(
        Reason.INTENT_NOT_FOUND,
        f"There is no intent {intent_id}; `backstay intent list` shows what there is.",
        details={"intent_id": intent_id},
        phase=Phase.VALIDATION,
    )


def pending(proposal: Proposal) -> Envelope:
    """Answer for an intent that is accepted and not admitted yet."""
    steps = tuple(
        StepReport(step_id=step.step_id, tool=step.contract.wire_name, state=StepState.PLANNED)
        for step in proposal.steps
    )
    report = IntentReport(outcome=Outcome.PENDING, steps=steps, waiting_for="admission")
    return intent_envelope(report, None, Meta(intent_id=proposal.intent_id, poll_after_ms=POLL_RUNNING_MS))


def unanswered(error: ErrorInfo, intent_id: str) -> Envelope:
    """Answer for an intent of which nothing is known just now: it may be on its way, so this is never a failure."""
    look = f"`backstay intent show {intent_id}` tells how it stands; posting the same again is safe."
    again = error.retryable is not Retryable.NEVER
    told = error.model_copy(update={"suggestion": look if again else error.suggestion})
    meta = Meta(intent_id=intent_id, poll_after_ms=POLL_RUNNING_MS)
    return Envelope(status_code=error.code.status_code, status=Status.PENDING, error=told, meta=meta)


def not_known(proposal: Proposal, told: Envelope) -> SagaError:
    """Make the error for a run that ended with a claim which these tables do not hold."""
    outcome = (told.data or {}).get("outcome")
    return SagaError(
        Reason.MISMATCH,
        f"The run of intent {proposal.intent_id} ended {outcome}, and this database knows nothing of it: its worker"
        " writes to another database, or this one was restored from an older copy. Do not post it elsewhere.",
        details={"intent_id": proposal.intent_id, "outcome": outcome},
        suggestion="Let DATABASE_URL name one database for this door and for the workers, then look:"
        f" `backstay intent show {proposal.intent_id}`.",
    )


def named(envelope: Envelope, intent_id: str) -> Envelope:
    """Say which intent an answer is about; a run that admission refused does not know it."""
    if envelope.meta.intent_id is not None:
        return envelope
    return envelope.model_copy(update={"meta": envelope.meta.model_copy(update={"intent_id": intent_id})})


def repeated(envelope: Envelope, proposal: Proposal) -> Envelope:
    """Mark an answer as that of a repeat."""
    known = named(envelope, proposal.intent_id)
    meta = known.meta.model_copy(update={"duplicate": True, "duplicate_of": proposal.intent_id})
    return envelope.model_copy(update={"meta": meta})


def completed(envelope: Envelope, *, request_id: str, call_id: str | None, started: float) -> Envelope:
    """Say about an answer what only the door knows; `started` is of the monotonic clock."""
    poll = envelope.meta.poll_after_ms
    if envelope.status is Status.PENDING and poll is None:
        poll = POLL_RUNNING_MS
    meta = envelope.meta.model_copy(
        update={
            "request_id": request_id,
            "call_id": call_id,
            "timestamp": now_text(),
            "duration_ms": int((time.monotonic() - started) * 1000),
            "poll_after_ms": poll,
        }
    )
    return envelope.model_copy(update={"meta": meta})


def now_text() -> str:
    """The time of an answer."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
