"""What can happen to a saga. Facts only: each came from a recorded result, a message or a timer."""

from dataclasses import dataclass

from contracts.errors import ErrorInfo
from contracts.saga import (
    Cancellation,
    Closed,
    CompensateResult,
    DecisionAnswer,
    GradeAnswer,
    Resolution,
    ResolutionAnswer,
    Sighting,
    Standing,
    StepResult,
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Admission answered; also the answer to a repeat, an adoption and after settling or parking."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Rejected:
    """Admission refused and claimed nothing: the same id may start again."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class DecisionAdmitted:
    """The database has judged a decision."""

    answer: DecisionAnswer


@dataclass(frozen=True, slots=True)
class ApprovalDue:
    """The time to decide is over by this process's clock; the database judges."""


@dataclass(frozen=True, slots=True)
class StepGraded:
    """A late step was graded, or refused: exactly one of answer and error is there."""

    step_id: str
    answer: GradeAnswer | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class StepLanded:
    """A step's activity answered."""

    result: StepResult


@dataclass(frozen=True, slots=True)
class StepRefused:
    """A step's activity said no, or could not be brought to an answer."""

    step_id: str
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class StepSighted:
    """A step whose outcome was not known has been looked up."""

    sighting: Sighting


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants it stopped, by update, by signal or by Temporal's own cancel."""

    cancellation: Cancellation


@dataclass(frozen=True, slots=True)
class RunStale:
    """Another run owns the intent now: what this one wanted was refused."""


@dataclass(frozen=True, slots=True)
class RunDoubted:
    """A person's message was refused because another run owns the intent: this one may be a reset one that rests."""


@dataclass(frozen=True, slots=True)
class IntentClosed:
    """`close_intent` answered."""

    closed: Closed


@dataclass(frozen=True, slots=True)
class StepCompensated:
    """A compensation is done."""

    result: CompensateResult


@dataclass(frozen=True, slots=True)
class CompensationRefused:
    """A compensation was refused, or its attempts ran out."""

    step_id: str
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Resolved:
    """The database has taken an operator's resolution."""

    resolution: Resolution
    answer: ResolutionAnswer


Event = (
    Admitted
    | Rejected
    | DecisionAdmitted
    | ApprovalDue
    | StepGraded
    | StepLanded
    | StepRefused
    | StepSighted
    | CancelRequested
    | RunStale
    | RunDoubted
    | IntentClosed
    | StepCompensated
    | CompensationRefused
    | Resolved
)
