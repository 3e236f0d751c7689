"""What a saga wants done. The driver turns each into an activity or a timer, and its result into an event."""

from dataclasses import dataclass

from contracts.base import JsonObject
from contracts.envelope import Cause, IntentReport
from contracts.errors import ErrorInfo
from contracts.saga import ParkReason


@dataclass(frozen=True, slots=True)
class Admit:
    """Claim the intent, or learn how it stands."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Wait for people until the decision expires."""

    step_ids: tuple[str, ...]
    expires_in_seconds: float


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a step with its bindings resolved, after a while."""

    step_id: str
    arguments: JsonObject
    after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Grade:
    """Have a step graded whose late arguments are known now."""

    step_id: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """Look up, after a while, what became of a step whose outcome is not known."""

    step_id: str
    after_seconds: float = 0.0
    closing: bool = False


@dataclass(frozen=True, slots=True)
class CloseIntent:
    """Fence every step and learn what really landed."""

    cause: Cause
    error: ErrorInfo | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class Compensate:
    """Undo a step that landed."""

    step_id: str
    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class Settle:
    """Set the final phase, if the tables agree."""


@dataclass(frozen=True, slots=True)
class Park:
    """Put the intent to rest in the database, and call a person."""

    reason: ParkReason
    detail: JsonObject


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run with its report; `failed` lets the same id start again."""

    report: IntentReport
    error: ErrorInfo | None = None
    failed: bool = False
    duplicate: bool = False


Command = Admit | Ask | Execute | Grade | Lookup | CloseIntent | Compensate | Settle | Park | Finish
