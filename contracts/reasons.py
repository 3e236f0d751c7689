"""The closed set of reasons: one vocabulary for HTTP, retries, documentation and metrics.

A reason answers four questions once and for all: which HTTP status it has, whether the same call may
succeed later, who has to act, and what is left behind. Nothing else in the product decides about retries.
Source of the shape: Google AIP-193 (one cause per reason) and AIP-194 (retry by code, never by text).
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Retryable(StrEnum):
    """May the same call, unchanged, succeed later?"""

    ALWAYS = "always"
    ONCE = "once"
    NEVER = "never"


class UserAction(StrEnum):
    """What the caller does next."""

    FIX_ARGUMENTS = "fix_arguments"
    FIND_OBJECT = "find_object"
    ASK_USER = "ask_user"
    REQUEST_AUTHORIZATION = "request_authorization"
    WAIT = "wait"
    TRY_LATER = "try_later"
    CONTACT_SUPPORT = "contact_support"
    NONE = "none"


class EffectOutcome(StrEnum):
    """What the error leaves behind."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    PARTIALLY_APPLIED = "partially_applied"
    UNKNOWN = "unknown"
    COMPENSATED = "compensated"


class Reason(StrEnum):
    """Why something was refused, is unknown or failed."""

    # Arguments and shape
    BODY_MALFORMED = "BODY_MALFORMED"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    ARGUMENTS_INVALID = "ARGUMENTS_INVALID"
    TOOL_UNKNOWN = "TOOL_UNKNOWN"
    PLAN_UNSOUND = "PLAN_UNSOUND"
    # Identity
    KEY_REUSED = "KEY_REUSED"
    OCCURRENCE_REQUIRED = "OCCURRENCE_REQUIRED"
    OCCURRENCE_NOT_READY = "OCCURRENCE_NOT_READY"
    RETRY_NOT_ALLOWED = "RETRY_NOT_ALLOWED"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    POSSIBLE_DUPLICATE = "POSSIBLE_DUPLICATE"
    INTENT_NOT_FOUND = "INTENT_NOT_FOUND"
    # Authority
    UNAUTHENTICATED = "UNAUTHENTICATED"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_OWNER = "NOT_OWNER"
    DUTY_NOT_AVAILABLE = "DUTY_NOT_AVAILABLE"
    APPROVAL_MISSING = "APPROVAL_MISSING"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    APPROVAL_DENIED = "APPROVAL_DENIED"
    DECISION_INVALID = "DECISION_INVALID"
    DECISION_LATE = "DECISION_LATE"
    RESOLUTION_INVALID = "RESOLUTION_INVALID"
    # Business
    OBJECT_NOT_FOUND = "OBJECT_NOT_FOUND"
    WRONG_STATE = "WRONG_STATE"
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"
    FUNDS_INSUFFICIENT = "FUNDS_INSUFFICIENT"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    WINDOW_CLOSED = "WINDOW_CLOSED"
    POSTCONDITION_FAILED = "POSTCONDITION_FAILED"
    # Saga
    SUPERSEDED = "SUPERSEDED"
    RUN_STALE = "RUN_STALE"
    INTENT_PARKED = "INTENT_PARKED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERRUPTED = "INTERRUPTED"
    MISMATCH = "MISMATCH"
    TOO_LATE = "TOO_LATE"
    WORLD_MOVED = "WORLD_MOVED"
    # Conditions of the world
    IN_PROGRESS = "IN_PROGRESS"
    RESOURCE_LOCKED = "RESOURCE_LOCKED"
    KILL_SWITCH_ON = "KILL_SWITCH_ON"
    RATE_LIMITED = "RATE_LIMITED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    DEPENDENCY_DOWN = "DEPENDENCY_DOWN"
    INTERNAL = "INTERNAL"

    @property
    def status_code(self) -> int:
        """HTTP status of an answer whose first reason is this one."""
        return _RULES[self].status_code

    @property
    def retryable(self) -> Retryable:
        """Whether the same call may succeed later."""
        return _RULES[self].retryable

    @property
    def user_action(self) -> UserAction:
        """What the caller does next."""
        return _RULES[self].user_action

    @property
    def suggestion(self) -> str:
        """One sentence that names the next step."""
        return _RULES[self].suggestion

    @property
    def outcome(self) -> EffectOutcome:
        """What an error with this reason leaves behind, unless who raises it knows better.

        NOT_APPLIED is a promise: only for reasons that say themselves that nothing happened.
        """
        return _RULES[self].outcome

    @property
    def is_transient(self) -> bool:
        """True when the engine itself tries the same write again: nothing was decided about it.

        A business refusal (too little money, a limit) may succeed when the *caller* asks later, but inside a
        saga it is an answer, not a hiccup.
        """
        return self in _TRANSIENT

    @property
    def is_definite(self) -> bool:
        """True for a refusal that says for good that nothing was carried out."""
        return not self.is_transient and self not in _INDEFINITE


class _Rule(NamedTuple):
    status_code: int
    retryable: Retryable
    user_action: UserAction
    suggestion: str
    outcome: EffectOutcome = EffectOutcome.NOT_APPLIED


_NEVER, _ONCE, _ALWAYS = Retryable.NEVER, Retryable.ONCE, Retryable.ALWAYS
_DO = UserAction
_UNKNOWN = EffectOutcome.UNKNOWN
_APPLIED = EffectOutcome.APPLIED

_RULES: Final[dict[Reason, _Rule]] = {
    Reason.BODY_MALFORMED: _Rule(
        400, _NEVER, _DO.FIX_ARGUMENTS, "Send one JSON object (RFC 8259), UTF-8, without duplicate keys."
    ),
    Reason.BODY_TOO_LARGE: _Rule(413, _NEVER, _DO.FIX_ARGUMENTS, "Send a body of at most 256 KiB."),
    Reason.ARGUMENTS_INVALID: _Rule(422, _NEVER, _DO.FIX_ARGUMENTS, "Correct the named fields and post again."),
    Reason.TOOL_UNKNOWN: _Rule(400, _NEVER, _DO.FIX_ARGUMENTS, "Choose a tool that `backstay tools` lists."),
    Reason.PLAN_UNSOUND: _Rule(
        422, _NEVER, _DO.FIX_ARGUMENTS, "Reorder or remove the named steps; `backstay plan` shows why."
    ),
    Reason.KEY_REUSED: _Rule(
        422, _NEVER, _DO.FIX_ARGUMENTS, "Use a new idempotency key for another intent, or none at all."
    ),
    Reason.OCCURRENCE_REQUIRED: _Rule(
        409, _NEVER, _DO.ASK_USER, "Say `occurrence` one higher if the user really wants it again."
    ),
    Reason.OCCURRENCE_NOT_READY: _Rule(
        409, _ALWAYS, _DO.WAIT, "Wait until the earlier occurrence has a final outcome."
    ),
    Reason.RETRY_NOT_ALLOWED: _Rule(
        409, _NEVER, _DO.ASK_USER, "Only an intent that left nothing behind may be retried."
    ),
    Reason.ALREADY_SETTLED: _Rule(409, _NEVER, _DO.NONE, "The intent has its outcome; its body was pruned.", _UNKNOWN),
    Reason.POSSIBLE_DUPLICATE: _Rule(
        409, _NEVER, _DO.ASK_USER, "Confirm with the user that this is meant a second time."
    ),
    Reason.INTENT_NOT_FOUND: _Rule(404, _NEVER, _DO.FIND_OBJECT, "List the intents and use an id from there."),
    Reason.UNAUTHENTICATED: _Rule(401, _NEVER, _DO.REQUEST_AUTHORIZATION, "Sign in and post again."),
    Reason.NOT_ALLOWED: _Rule(403, _NEVER, _DO.REQUEST_AUTHORIZATION, "Ask somebody who may do this."),
    Reason.NOT_OWNER: _Rule(
        403, _NEVER, _DO.REQUEST_AUTHORIZATION, "Use an object of the principal, or ask for a grant."
    ),
    Reason.DUTY_NOT_AVAILABLE: _Rule(
        403, _NEVER, _DO.CONTACT_SUPPORT, "This needs two approvers, which this deployment cannot ask yet."
    ),
    Reason.APPROVAL_MISSING: _Rule(403, _NEVER, _DO.REQUEST_AUTHORIZATION, "Have the step approved first."),
    Reason.APPROVAL_EXPIRED: _Rule(403, _NEVER, _DO.ASK_USER, "Post the intent again and have it decided in time."),
    Reason.APPROVAL_DENIED: _Rule(403, _NEVER, _DO.ASK_USER, "Do not repeat it; ask the user how to go on."),
    Reason.DECISION_INVALID: _Rule(
        422, _NEVER, _DO.FIX_ARGUMENTS, "Copy plan digest and step from the card that is shown now."
    ),
    Reason.DECISION_LATE: _Rule(409, _NEVER, _DO.NONE, "The decision came too late and changed nothing."),
    Reason.RESOLUTION_INVALID: _Rule(422, _NEVER, _DO.FIX_ARGUMENTS, "Choose a verb that `backstay why` offers."),
    Reason.OBJECT_NOT_FOUND: _Rule(404, _NEVER, _DO.FIND_OBJECT, "Look the object up; never invent an id."),
    Reason.WRONG_STATE: _Rule(409, _NEVER, _DO.FIND_OBJECT, "Look up the object's state; it does not allow this."),
    Reason.CURRENCY_MISMATCH: _Rule(422, _NEVER, _DO.FIX_ARGUMENTS, "Use the currency of the account."),
    Reason.FUNDS_INSUFFICIENT: _Rule(409, _ALWAYS, _DO.ASK_USER, "Lower the amount or wait for funds."),
    Reason.LIMIT_EXCEEDED: _Rule(409, _ALWAYS, _DO.ASK_USER, "Lower the amount or have the limit raised."),
    Reason.WINDOW_CLOSED: _Rule(409, _NEVER, _DO.CONTACT_SUPPORT, "The time for this has passed."),
    Reason.POSTCONDITION_FAILED: _Rule(
        409, _NEVER, _DO.CONTACT_SUPPORT, "The write did not do what it promises and was rolled back."
    ),
    Reason.SUPERSEDED: _Rule(409, _NEVER, _DO.NONE, "The step was fenced; it can never land."),
    Reason.RUN_STALE: _Rule(409, _NEVER, _DO.NONE, "Another run owns this intent now.", _UNKNOWN),
    Reason.INTENT_PARKED: _Rule(
        409, _NEVER, _DO.CONTACT_SUPPORT, "An operator has to resolve the intent first.", _UNKNOWN
    ),
    Reason.CANCELLED: _Rule(409, _NEVER, _DO.NONE, "It was cancelled; post it again only if the user wants it."),
    Reason.DEADLINE_EXCEEDED: _Rule(409, _NEVER, _DO.ASK_USER, "Post it again if it is still wanted."),
    Reason.INTERRUPTED: _Rule(
        409, _NEVER, _DO.CONTACT_SUPPORT, "Its run was ended from outside; an operator closes or forwards it.", _UNKNOWN
    ),
    Reason.MISMATCH: _Rule(
        409, _NEVER, _DO.CONTACT_SUPPORT, "Tables and plan differ; an operator has to look.", _UNKNOWN
    ),
    Reason.TOO_LATE: _Rule(409, _NEVER, _DO.NONE, "The intent is past the point where this is possible."),
    Reason.WORLD_MOVED: _Rule(
        409, _NEVER, _DO.CONTACT_SUPPORT, "It landed, and somebody else has changed it since; look first.", _APPLIED
    ),
    Reason.IN_PROGRESS: _Rule(409, _ALWAYS, _DO.WAIT, "The same key is being worked on; wait.", _UNKNOWN),
    Reason.RESOURCE_LOCKED: _Rule(423, _ALWAYS, _DO.WAIT, "Another intent holds the object; wait."),
    Reason.KILL_SWITCH_ON: _Rule(503, _ALWAYS, _DO.TRY_LATER, "New effects are switched off; try later."),
    Reason.RATE_LIMITED: _Rule(429, _ALWAYS, _DO.TRY_LATER, "Post more slowly."),
    Reason.OUTCOME_UNKNOWN: _Rule(
        202, _ALWAYS, _DO.WAIT, "The outcome is not known yet; look again before anything else.", _UNKNOWN
    ),
    Reason.DEPENDENCY_DOWN: _Rule(
        503, _ALWAYS, _DO.TRY_LATER, "Something it needs does not answer; do the same again when it does.", _UNKNOWN
    ),
    Reason.INTERNAL: _Rule(500, _ONCE, _DO.CONTACT_SUPPORT, "Report it with the request id.", _UNKNOWN),
}

_TRANSIENT: Final = frozenset({Reason.IN_PROGRESS, Reason.DEPENDENCY_DOWN, Reason.RATE_LIMITED, Reason.INTERNAL})
_INDEFINITE: Final = frozenset({Reason.OUTCOME_UNKNOWN, Reason.MISMATCH, Reason.KEY_REUSED, Reason.WORLD_MOVED})
"""Of a write that was sent somewhere: it, or something else under its key, may have landed."""

if missing := set(Reason) - set(_RULES):  # pragma: no cover - a reason without a rule must not import
    raise AssertionError(f"reasons without a rule: {sorted(missing)}")
