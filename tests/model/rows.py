"""What the tables of one intent hold, as plain tuples: compared by content, canonical, cheap to keep by the million.

A claim is a flag: it names the run and the epoch that own the intent, or it is stale.
"""

from typing import NamedTuple

from contracts.envelope import Cause
from contracts.saga import IntentPhase, ParkReason

Answer = tuple[object, ...]
"""What an activity said: a word and its facts, from which `answers.event_of` makes the event."""


class Row(NamedTuple):
    """One step: its execute row, its attempt row, and what the downstream knows of it.

    `effect`: "", LANDED, COMPENSATED, RESIDUE (compensated as an operator said, and not restored), TOMBSTONE.
    `attempt`: "", SENT, UNKNOWN, MISMATCH (unknown, something else was carried out), NOT_LANDED, REFUSED, LANDED,
    FENCED; READ for a step that only reads. `truth`: "", FLYING (may still land), LANDED, WRONG, BACK, SHUT.
    """

    effect: str = ""
    attempt: str = ""
    truth: str = ""
    undone: bool = False
    value: str = ""


class Database(NamedTuple):
    """All rows of one intent, and the downstream's truth. `owner`: "", "current" (the open run), "old"."""

    rows: tuple[Row, ...]
    order: tuple[int, ...] = ()
    """Steps by transaction id; kept only where steps share an object, since nothing else depends on it."""
    phase: IntentPhase | None = None
    cause: Cause = Cause.NONE
    owner: str = ""
    parked: ParkReason | None = None
    stuck: tuple[str, ...] = ()
    approved: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    expired: bool = False


class Flight(NamedTuple):
    """A command under way; `answer` once the database has acted and the answer has not arrived yet."""

    name: str
    step_id: str = ""
    argument: str = ""
    valid: bool = True
    """True while its claim names the run and the epoch that own the intent."""
    answer: Answer | None = None

    @property
    def label(self) -> str:
        """What it is called in a trace."""
        return " ".join(filter(None, (self.name, self.argument, self.step_id)))


class Outcome(NamedTuple):
    """One way in which an act can end; `adopted`: the claim moved, so that every other one is stale."""

    label: str
    database: Database
    answer: Answer
    adopted: bool = False


class Weather(NamedTuple):
    """What may happen to activities from outside; calm by default, so that each act ends in one way."""

    refusals: bool = False
    refused_compensations: bool = False
    mismatches: bool = False
    """What a tool reads back is not what it wrote: a refusal in our database, unknown elsewhere."""
    unsure: bool = False
    """Requests and answers are lost, land late, and lookups fail."""
    switched_off: bool = False
    """A kill switch is on, or the deadline has passed."""
    reads: tuple[str, ...] = ("",)
    """What a step that only reads may find."""
    knows_keys: bool = True
    """The downstream lands a key that it has seen only once."""


CALM = Weather()
UNDECIDED = ("SENT", "UNKNOWN", "MISMATCH")
COMPENSATED = ("COMPENSATED", "RESIDUE")
