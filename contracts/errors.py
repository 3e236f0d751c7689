"""The one error class, and the shape in which an error travels and is shown."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.base import JsonObject, Record
from contracts.reasons import Reason, Retryable, UserAction


class Phase(StrEnum):
    """Where on its way an intent was refused."""

    VALIDATION = "validation"
    AUTHORIZATION = "authorization"
    APPROVAL = "approval"
    EXECUTION = "execution"
    VERIFICATION = "verification"
    COMPENSATION = "compensation"


class EffectOutcome(StrEnum):
    """What the error leaves behind."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    PARTIALLY_APPLIED = "partially_applied"
    UNKNOWN = "unknown"
    COMPENSATED = "compensated"


class FieldProblem(Record):
    """One wrong field: where, why, and what would be right."""

    path: str
    code: str
    message: str
    allowed: str = ""
    example: Any = None


class ErrorInfo(Record):
    """An error as data; every variable of `message` is also in `details`."""

    code: Reason
    message: str
    user_message: str = ""
    suggestion: str = ""
    fields: tuple[FieldProblem, ...] = ()
    phase: Phase = Phase.EXECUTION
    retryable: Retryable = Retryable.NEVER
    user_action: UserAction = UserAction.NONE
    outcome: EffectOutcome = EffectOutcome.NOT_APPLIED
    details: JsonObject = Field(default_factory=dict[str, Any])


class SagaError(Exception):
    """The error that everything of ours raises: a closed reason, text for people, details for machines."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        fields: Sequence[FieldProblem] = (),
        phase: Phase = Phase.EXECUTION,
        outcome: EffectOutcome = EffectOutcome.NOT_APPLIED,
    ) -> None:
        """Carry `reason`; `message` says what happened, then what to do."""
        super().__init__(message)
        self.reason = reason
        self.info = ErrorInfo(
            code=reason,
            message=message,
            user_message=message,
            suggestion=reason.suggestion,
            fields=tuple(fields),
            phase=phase,
            retryable=reason.retryable,
            user_action=reason.user_action,
            outcome=outcome,
            details=dict(details or {}),
        )
