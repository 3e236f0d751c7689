"""The one error class, and the shape in which an error travels and is shown."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.base import JsonObject, Record
from contracts.reasons import EffectOutcome, Reason, Retryable, UserAction


class Phase(StrEnum):
    """Where on its way an intent was refused."""

    VALIDATION = "validation"
    AUTHORIZATION = "authorization"
    APPROVAL = "approval"
    EXECUTION = "execution"
    VERIFICATION = "verification"
    COMPENSATION = "compensation"


class FieldProblem(Record):
    """One wrong field: where, why, and what would be right."""

    path: str
    code: str
    message: str
    allowed: str = ""
    example: Any = None


def _outcome_by_code(validated: dict[str, Any]) -> EffectOutcome:
    code: Reason = validated["code"]
    return code.outcome


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
    outcome: EffectOutcome = Field(default_factory=_outcome_by_code)
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
        outcome: EffectOutcome | None = None,
        suggestion: str | None = None,
    ) -> None:
        """Carry `reason`; `message` says what happened, then what to do. Outcome and suggestion: else the reason's."""
        super().__init__(message)
        self.reason = reason
        self.info = ErrorInfo(
            code=reason,
            message=message,
            user_message=message,
            suggestion=reason.suggestion if suggestion is None else suggestion,
            fields=tuple(fields),
            phase=phase,
            retryable=reason.retryable,
            user_action=reason.user_action,
            outcome=reason.outcome if outcome is None else outcome,
            details=dict(details or {}),
        )
