"""The one shape of every answer, at every door."""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from contracts.base import JsonObject, Record
from contracts.errors import ErrorInfo
from contracts.intent import FALLBACK_SUFFIX
from contracts.reasons import EffectOutcome, Reason


class Outcome(StrEnum):
    """How an intent ended; PARKED rests until an operator acts, PENDING is still on its way."""

    COMMITTED = "COMMITTED"
    NOT_APPLIED = "NOT_APPLIED"
    COMPENSATED = "COMPENSATED"
    PARKED = "PARKED"
    PENDING = "PENDING"

    @property
    def is_final(self) -> bool:
        """True when nothing can change it any more."""
        return self in (Outcome.COMMITTED, Outcome.NOT_APPLIED, Outcome.COMPENSATED)


class Cause(StrEnum):
    """Why an intent did not commit; a second fact beside the outcome."""

    NONE = "none"
    REJECTED = "rejected"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"

    @property
    def reason(self) -> Reason:
        """The reason an answer names when the cause carries no error of its own."""
        return _CAUSE_REASONS[self]


_CAUSE_REASONS = {
    Cause.NONE: Reason.INTERNAL,
    Cause.REJECTED: Reason.ARGUMENTS_INVALID,
    Cause.DENIED: Reason.APPROVAL_DENIED,
    Cause.EXPIRED: Reason.APPROVAL_EXPIRED,
    Cause.CANCELLED: Reason.CANCELLED,
    Cause.REFUSED: Reason.INTERNAL,
    Cause.DEADLINE: Reason.DEADLINE_EXCEEDED,
    Cause.INTERRUPTED: Reason.INTERRUPTED,
}


class StepState(StrEnum):
    """Where one step stands (DESIGN.md section 2)."""

    PLANNED = "PLANNED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    EXECUTING = "EXECUTING"
    DONE = "DONE"
    REFUSED = "REFUSED"
    UNKNOWN = "UNKNOWN"
    COMPENSATING = "COMPENSATING"
    COMPENSATED = "COMPENSATED"
    SUPERSEDED = "SUPERSEDED"
    PARKED = "PARKED"


_NOT_BEGUN = (StepState.PLANNED, StepState.AWAITING_APPROVAL, StepState.SUPERSEDED)


class StepReport(Record):
    """What became of one step; `residue` is what its compensation could not restore."""

    step_id: str
    tool: str
    state: StepState
    step_key: str | None = None
    transaction_id: int | None = None
    applied_args: JsonObject | None = None
    output: JsonObject | None = None
    residue: str | None = None
    error: ErrorInfo | None = None
    warnings: tuple[str, ...] = ()
    """What reading it back found, where others may have been there since."""


class IntentReport(Record):
    """The `data` of an intent's envelope."""

    outcome: Outcome
    cause: Cause = Cause.NONE
    steps: tuple[StepReport, ...] = ()
    waiting_for: str | None = None
    plan_digest: str | None = None


class Status(StrEnum):
    """The three kinds of answers."""

    SUCCESS = "success"
    ERROR = "error"
    PENDING = "pending"


class Meta(Record):
    """Everything about the answer that is not the answer."""

    request_id: str | None = None
    call_id: str | None = None
    intent_id: str | None = None
    step_id: str | None = None
    tool: str | None = None
    transaction_id: int | None = None
    timestamp: str | None = None
    duration_ms: int | None = None
    estimated_response_time_ms: int | None = None
    poll_after_ms: int | None = None
    settles_at: str | None = None
    duplicate: bool = False
    duplicate_of: str | None = None
    applied_args: JsonObject | None = None
    normalizations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    truncated: bool = False
    returned_count: int | None = None
    total_count: int | None = None
    next_cursor: str | None = None
    cache_ttl_seconds: int | None = None


class Envelope(Record):
    """Five top keys, always present."""

    status_code: int
    status: Status
    data: JsonObject | None = None
    error: ErrorInfo | None = None
    meta: Meta = Field(default_factory=Meta)

    @property
    def exit_code(self) -> int:
        """Exit code of a command that ends with this answer: 0 done, 1 refused, 3 pending, 4 parked."""
        if self.status is Status.SUCCESS:
            return 0
        if self.status is Status.ERROR:
            return 1
        return 4 if (self.data or {}).get("outcome") == Outcome.PARKED else 3


def intent_envelope(report: IntentReport, error: ErrorInfo | None, meta: Meta) -> Envelope:
    """Answer for an intent: COMMITTED 200, waiting or parked 202, else the status of its first reason."""
    data: JsonObject = report.model_dump(mode="json")
    found = [f"{step.step_id}: {said}" for step in report.steps for said in step.warnings]
    if warnings := (*meta.warnings, *_fell_back(report), *found):
        meta = meta.model_copy(update={"warnings": warnings})
    if report.outcome is Outcome.COMMITTED:
        return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=meta)
    if not report.outcome.is_final:
        told = error.model_copy(update={"outcome": EffectOutcome.UNKNOWN}) if error else None
        return Envelope(status_code=202, status=Status.PENDING, data=data, error=told, meta=meta)
    known = error or cause_error(report.cause)
    left = known.model_copy(
        update={
            "outcome": EffectOutcome.COMPENSATED if report.outcome is Outcome.COMPENSATED else EffectOutcome.NOT_APPLIED
        }
    )
    return Envelope(status_code=left.code.status_code, status=Status.ERROR, data=data, error=left, meta=meta)


def _fell_back(report: IntentReport) -> Iterator[str]:
    """Tell of each fallback that was used why, and how it stands."""
    by_id = {step.step_id: step for step in report.steps}
    for step_id, step in by_id.items():
        first = by_id.get(step_id.removesuffix(FALLBACK_SUFFIX))
        if step is first or first is None or step.state in _NOT_BEGUN:
            continue
        if step.state is StepState.REFUSED and first.state is not StepState.REFUSED:
            continue  # its late grade was refused, and nobody needed it
        why = f" ({first.error.code})" if first.error is not None else ""
        yield f"{first.step_id}: {first.tool} did not land{why}; its fallback {step.tool} is {step.state}"


def error_envelope(error: ErrorInfo, meta: Meta | None = None) -> Envelope:
    """Answer for a call that came to no intent; what is not known yet is pending, never failed."""
    status_code = error.code.status_code
    status = Status.PENDING if status_code == 202 else Status.ERROR  # noqa: PLR2004 - accepted, by HTTP
    return Envelope(status_code=status_code, status=status, error=error, meta=meta or Meta())


def cause_error(cause: Cause) -> ErrorInfo:
    """State a cause as an error, for answers that have no error of their own."""
    reason = cause.reason
    return ErrorInfo(
        code=reason,
        message=f"The intent ended: {cause.value}.",
        user_message=f"The intent ended: {cause.value}.",
        suggestion=reason.suggestion,
        retryable=reason.retryable,
        user_action=reason.user_action,
        details={"cause": cause.value},
    )
