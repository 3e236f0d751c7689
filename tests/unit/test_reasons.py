"""Reasons: what each leaves behind, said once and for all."""

import pytest

from contracts.envelope import Cause, Envelope, IntentReport, Meta, Outcome, Status, cause_error, intent_envelope
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import EffectOutcome, Reason

NOTHING_IS_PROMISED = frozenset(
    {
        Reason.ALREADY_SETTLED,
        Reason.INTENT_PARKED,
        Reason.RUN_STALE,
        Reason.INTERRUPTED,
        Reason.MISMATCH,
        Reason.IN_PROGRESS,
        Reason.OUTCOME_UNKNOWN,
        Reason.DEPENDENCY_DOWN,
        Reason.INTERNAL,
    }
)
IT_LANDED = frozenset({Reason.WORLD_MOVED})
NOTHING_HAPPENED = frozenset(
    {
        Reason.BODY_MALFORMED,
        Reason.BODY_TOO_LARGE,
        Reason.ARGUMENTS_INVALID,
        Reason.TOOL_UNKNOWN,
        Reason.PLAN_UNSOUND,
        Reason.KEY_REUSED,
        Reason.OCCURRENCE_REQUIRED,
        Reason.OCCURRENCE_NOT_READY,
        Reason.RETRY_NOT_ALLOWED,
        Reason.POSSIBLE_DUPLICATE,
        Reason.INTENT_NOT_FOUND,
        Reason.UNAUTHENTICATED,
        Reason.NOT_ALLOWED,
        Reason.NOT_OWNER,
        Reason.DUTY_NOT_AVAILABLE,
        Reason.APPROVAL_MISSING,
        Reason.APPROVAL_EXPIRED,
        Reason.APPROVAL_DENIED,
        Reason.DECISION_INVALID,
        Reason.DECISION_LATE,
        Reason.RESOLUTION_INVALID,
        Reason.OBJECT_NOT_FOUND,
        Reason.WRONG_STATE,
        Reason.CURRENCY_MISMATCH,
        Reason.FUNDS_INSUFFICIENT,
        Reason.LIMIT_EXCEEDED,
        Reason.WINDOW_CLOSED,
        Reason.POSTCONDITION_FAILED,
        Reason.SUPERSEDED,
        Reason.CANCELLED,
        Reason.DEADLINE_EXCEEDED,
        Reason.TOO_LATE,
        Reason.RESOURCE_LOCKED,
        Reason.KILL_SWITCH_ON,
        Reason.RATE_LIMITED,
    }
)


def test_every_reason_says_what_it_leaves_behind() -> None:
    assert set(Reason) == NOTHING_IS_PROMISED | NOTHING_HAPPENED | IT_LANDED
    assert not NOTHING_IS_PROMISED & NOTHING_HAPPENED


@pytest.mark.parametrize("reason", list(Reason))
def test_an_error_leaves_behind_what_its_reason_says(reason: Reason) -> None:
    unpromised = EffectOutcome.UNKNOWN if reason in NOTHING_IS_PROMISED else EffectOutcome.NOT_APPLIED
    expected = EffectOutcome.APPLIED if reason in IT_LANDED else unpromised

    assert SagaError(reason, "It went wrong.").info.outcome is expected
    assert ErrorInfo(code=reason, message="It went wrong.").outcome is expected


def test_who_raises_an_error_may_know_better() -> None:
    error = SagaError(Reason.RATE_LIMITED, "No answer.", outcome=EffectOutcome.UNKNOWN, suggestion="Look.")

    assert (error.info.outcome, error.info.suggestion) == (EffectOutcome.UNKNOWN, "Look.")


@pytest.mark.parametrize("outcome", [Outcome.PENDING, Outcome.PARKED])
def test_an_intent_on_its_way_promises_nothing_whatever_a_step_said(outcome: Outcome) -> None:
    refused = SagaError(Reason.FUNDS_INSUFFICIENT, "Too little.").info

    answer: Envelope = intent_envelope(IntentReport(outcome=outcome), refused, Meta())

    assert answer.error is not None
    assert (answer.status, answer.error.outcome) == (Status.PENDING, EffectOutcome.UNKNOWN)


@pytest.mark.parametrize(
    ("outcome", "left"),
    [(Outcome.NOT_APPLIED, EffectOutcome.NOT_APPLIED), (Outcome.COMPENSATED, EffectOutcome.COMPENSATED)],
)
def test_an_intent_that_ended_says_what_the_end_left(outcome: Outcome, left: EffectOutcome) -> None:
    answer = intent_envelope(IntentReport(outcome=outcome), cause_error(Cause.INTERRUPTED), Meta())

    assert answer.error is not None
    assert answer.error.outcome is left
