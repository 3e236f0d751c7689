"""How an intent stands by the rules, without a database: what each call has to answer, and what it leaves.

For `tests/integration/test_engine_properties.py`, which makes the calls.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from contracts.base import JsonObject
from contracts.reasons import Reason
from contracts.saga import IntentPhase, ParkReason, StepResult
from tests.support.desk import Desked
from tests.support.ledger import invariants
from tests.support.sagas import freeze_and_debit
from tests.support.samples import note

HOLD_CENTS: Final = 500
KINDS: Final[dict[str, tuple[JsonObject, ...]]] = {
    "notes": (note("a"), note("b")),
    "money": (*freeze_and_debit(HOLD_CENTS), note("after")),
    "asked": (note("a"), note("g", "guard")),
    "pivot": (note("a"), note("p", "seal"), note("k", "keep")),
}
"""Plans, each a chain."""
ASKED: Final = "g"
PIVOT: Final = "p"
OPEN_PHASES: Final = (IntentPhase.ADMITTED, IntentPhase.CLOSING)


class Hold(StrEnum):
    """What became of a hold."""

    OPEN = "OPEN"
    OVERDUE = "OVERDUE"
    CAPTURED = "CAPTURED"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"


CALLS: Final = {
    "execute": 16,
    "post": 4,
    "post_again": 1,
    "post_elsewhere": 1,
    "decide": 3,
    "close": 3,
    "compensate": 8,
    "settle": 3,
    "park": 2,
    "get_stuck": 4,
    "resolve": 6,
    "adopt": 1,
    "race": 2,
    "let_a_hold_fall_due": 1,
    "sweep": 1,
    "let_the_deadline_pass": 1,
    "throw_or_lift_the_switch": 1,
    "act_as_an_ended_run": 3,
}
"""How often each is drawn. One rule for all: hypothesis leaves out some rules in most runs."""
_EACH = (
    f"select '{name}' as broken, subject, detail from ({query.rstrip(';')}) as found"  # noqa: S608 - a file of ours
    for name, query in invariants()
)
BROKEN: Final = " union all ".join(_EACH).encode()
"""All invariants in one statement: 31 round trips at each step would be most of the time."""


@dataclass
class Intent:
    """One intent; every method is a rule."""

    kind: str
    phase: IntentPhase = IntentPhase.ADMITTED
    parked: ParkReason | None = None
    stuck: str | None = None
    overdue: bool = False
    decided: str | None = None
    hold: Hold | None = None
    effects: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def steps(self) -> list[str]:
        """Step ids in their order."""
        return [str(step["step_id"]) for step in KINDS[self.kind]]

    @property
    def live(self) -> list[str]:
        """Steps that landed and were not undone."""
        return [step_id for step_id in self.steps if self.effects.get(step_id) == "LANDED"]

    @property
    def is_open(self) -> bool:
        """True until a final phase."""
        return self.phase in OPEN_PHASES

    def why_not_execute(self, step_id: str, *, killed: bool) -> Reason | None:
        """Say why a step does not answer a success; None when it does."""
        state = self.effects.get(step_id)
        if self.parked is not None:
            return Reason.INTENT_PARKED
        if self.phase is not IntentPhase.ADMITTED or state in ("COMPENSATED", "TOMBSTONE"):
            return Reason.SUPERSEDED
        if state == "LANDED":
            return None
        reasons = (
            (self.overdue, Reason.DEADLINE_EXCEEDED),
            (killed, Reason.KILL_SWITCH_ON),
            (step_id == ASKED and self.decided != "approve", Reason.APPROVAL_MISSING),
            (step_id == "debit" and self.hold in (Hold.OVERDUE, Hold.EXPIRED), Reason.WRONG_STATE),
        )
        return next((reason for applies, reason in reasons if applies), None)

    def execute(self, step_id: str) -> None:
        """It landed, or had landed before."""
        if step_id in self.effects:
            return
        self.effects[step_id] = "LANDED"
        if step_id == "freeze":
            self.hold = Hold.OPEN
        if step_id == "debit":
            self.hold = Hold.CAPTURED

    def why_not_compensate(self, step_id: str) -> Reason | None:
        """Say why a step is not undone; None when it is, was, or is fenced."""
        if self.parked is not None:
            return Reason.INTENT_PARKED
        if self.effects.get(step_id) in ("COMPENSATED", "TOMBSTONE"):
            return None
        return None if self.phase is IntentPhase.CLOSING else Reason.SUPERSEDED

    def compensate(self, step_id: str) -> bool:
        """Undo or fence a step, last one first; tell whether anything was undone now."""
        undone = self.effects.get(step_id) == "LANDED"
        self.effects[step_id] = "COMPENSATED" if undone else self.effects.get(step_id, "TOMBSTONE")
        if undone and step_id == "freeze" and self.hold in (Hold.OPEN, Hold.OVERDUE):
            self.hold = Hold.RELEASED if self.hold is Hold.OPEN else Hold.EXPIRED
        return undone

    def close(self) -> bool:
        """Shut the way forward; false where there is none to shut, or it is past the pivot."""
        if self.phase is not IntentPhase.ADMITTED or self.parked is not None or PIVOT in self.live:
            return False
        self.phase = IntentPhase.CLOSING
        return True

    def settle(self) -> None:
        """End as the rows say, or rest."""
        if not self.is_open or self.parked is not None:
            return
        if self.phase is IntentPhase.ADMITTED:
            fits, end = self.live == self.steps, IntentPhase.COMMITTED
        else:
            undone = "COMPENSATED" in self.effects.values()
            fits, end = not self.live, IntentPhase.COMPENSATED if undone else IntentPhase.NOT_APPLIED
        if fits:
            self.phase = end
        else:
            self.park(ParkReason.MISMATCH)

    def park(self, reason: ParkReason, stuck: str | None = None) -> None:
        """Rest, unless it does already or has ended."""
        if self.is_open and self.parked is None:
            self.parked, self.stuck = reason, stuck

    def may_decide(self, verdict: str) -> bool:
        """True when a decision counts: approved once, denied for good, and nothing about what has run."""
        if self.kind != "asked" or self.phase is not IntentPhase.ADMITTED or self.effects.get(ASKED):
            return False
        return self.decided is None or (self.decided, verdict) == ("approve", "deny")

    def may_resolve(self, verb: str, step_id: str | None) -> bool:
        """True when an operator's verb is one of those that fit."""
        if self.parked is None:
            return False
        if self.parked is ParkReason.COMPENSATION_REFUSED:
            return step_id == self.stuck and verb in ("done", "retry", "skip")
        if step_id is not None or verb not in ("close", "forward"):
            return False
        if verb == "forward":
            return self.phase is IntentPhase.ADMITTED
        return PIVOT not in self.live

    def resolve(self, verb: str, step_id: str | None) -> None:
        """Go on as the operator said."""
        self.parked = self.stuck = None
        if verb == "close":
            self.phase = IntentPhase.CLOSING
        if verb in ("forward", "retry"):
            self.overdue = False
        if verb in ("done", "skip") and step_id is not None:
            self.effects[step_id] = "COMPENSATED"

    def held_cents(self) -> int:
        """What its hold keeps."""
        return HOLD_CENTS if self.hold in (Hold.OPEN, Hold.OVERDUE) else 0

    def taken_cents(self) -> int:
        """What it has moved to the merchant."""
        return HOLD_CENTS if "debit" in self.live else 0


@dataclass
class Known:
    """An intent as the rules know it, and the runs that had it, the last one being its owner."""

    intent: Intent
    body: JsonObject
    runs: list[Desked]
    hold_id: str | None = None
    answers: dict[str, StepResult] = field(default_factory=dict[str, StepResult])
    undone: dict[str, bool] = field(default_factory=dict[str, bool])

    @property
    def run(self) -> Desked:
        """The run that owns it."""
        return self.runs[-1]
