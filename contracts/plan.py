"""The plan: an admitted intent with all that its saga will need, so that the workflow reads nothing else."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

from contracts.base import JsonObject, Record
from contracts.confirmation import confirms
from contracts.intent import Caller
from contracts.keys import digest, execute_key
from contracts.late import late_sources
from contracts.locks import Lock, PlannedLock, locks_of
from contracts.risk import LEVELS
from contracts.tool import Dispatch, Duty, SideEffect


class PlannedStep(Record):
    """One step as the saga runs it; times in seconds. `resources` are the objects that its literals name."""

    step_id: str
    tool: str
    arguments: JsonObject
    needs: tuple[str, ...] = ()
    dispatch: Dispatch = Dispatch.DATABASE
    side_effect: SideEffect
    may_refuse: bool = True
    duty: Duty = Duty.NONE
    level: int = 0
    because: tuple[str, ...] = ()
    timeout_seconds: float = 5.0
    attempts_max: int = 10
    resources: tuple[str, ...] = ()
    patience_seconds: int = 0
    cancel_by_key: bool = False
    locks: tuple[PlannedLock, ...] = ()
    stands_for: str | None = None
    """The step whose fallback it is."""
    late: tuple[str, ...] = ()
    """Arguments that are graded when they are known: until then level and duty are the least that they can be."""

    @cached_property
    def late_sources(self) -> frozenset[str]:
        """Steps that have to be done before this one is graded late; none when it was graded at admission."""
        return late_sources(self.arguments, self.late) if self.late else frozenset()

    def in_place(self) -> Self:
        """Give the same call under the id of the step that it stands for."""
        return self.model_copy(update={"step_id": self.stands_for or self.step_id, "stands_for": None})

    @property
    def confirms(self) -> str | None:
        """The step whose reservation it makes final; None for one that was posted."""
        return confirms(self.step_id)

    @property
    def is_remote(self) -> bool:
        """True when its outcome may be unknown."""
        return self.writes and self.dispatch is Dispatch.REMOTE

    @property
    def writes(self) -> bool:
        """True when a landed step leaves an effect."""
        return self.side_effect is not SideEffect.READ_ONLY

    @property
    def is_pivot(self) -> bool:
        """True when nothing before it may be compensated once it landed."""
        return self.side_effect is SideEffect.IRREVERSIBLE


class Plan(Record):
    """What admission stores with the claim and every later run replays from; topological order."""

    protocol: int = 1
    intent_key: str
    intent_id: str
    caller: Caller
    session_id: str
    steps: tuple[PlannedStep, ...]
    policy_digest: str
    approval_valid_seconds: int
    deadline_seconds: int
    compensation_attempts_max: int
    compensation_backoff_max_seconds: int
    proof_digest: str | None = None
    """Which proof was found for it: whoever approves the plan's digest approves that proof. None: older than proofs."""
    lock_wait_seconds: int = 30
    opened: bool = False
    """True when its steps were not known at admission: it grows until it is sealed."""
    sealed: bool = False
    inactivity_seconds: int = 0
    """How long an open intent waits for its next step."""

    @property
    def is_open(self) -> bool:
        """True when steps may still be added."""
        return self.opened and not self.sealed

    @cached_property
    def by_id(self) -> dict[str, PlannedStep]:
        """Steps by their id."""
        return {step.step_id: step for step in self.steps}

    @cached_property
    def digest(self) -> str:
        """What an approval binds to: every step with its arguments, order, duty and compensation, and the proof."""
        older = {"proof_digest"} if self.proof_digest is None else set[str]()
        if not self.opened:  # a plan that was whole at once is the plan that it was before there were others
            older |= {"opened", "sealed", "inactivity_seconds"}
        said = self.model_dump(mode="json", exclude=older)
        for step in said["steps"]:
            if not step["late"]:  # a plan without late steps is the plan that it was before there were any
                del step["late"]
            if step["stands_for"] is None:  # so is one without fallbacks
                del step["stands_for"]
        return digest(said)

    def changed(self, **changes: Any) -> "Plan":  # noqa: ANN401 - fields
        """Replace fields; unlike `model_copy` nothing that was worked out from the old ones is kept."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Plan(**fields | changes)

    @cached_property
    def fallbacks(self) -> dict[str, str]:
        """Ids of fallbacks, by the step that each may stand for."""
        return {step.stands_for: step.step_id for step in self.steps if step.stands_for is not None}

    def stood_for(self, landed: Iterable[str]) -> list[str]:
        """Name the steps that are done when these landed, sorted: a fallback stands for its step."""
        steps = {other: step_id for step_id, other in self.fallbacks.items()}
        return sorted(steps.get(step_id, step_id) for step_id in landed)

    @property
    def level(self) -> int:
        """The highest level of its steps."""
        return max((step.level for step in self.steps), default=0)

    @property
    def risk_level(self) -> str:
        """The highest level as it is shown: L0..L4."""
        return LEVELS[self.level]

    @property
    def gated_steps(self) -> tuple[PlannedStep, ...]:
        """Steps that a person must decide before anything is written; whether about late ones, is told later."""
        return tuple(step for step in self.steps if step.duty is not Duty.NONE and not step.late)

    @cached_property
    def has_late(self) -> bool:
        """True when a step is graded only once its bindings are known."""
        return any(step.late for step in self.steps)

    @cached_property
    def graded_first(self) -> frozenset[str]:
        """Late steps whose grade nothing but reading is needed for: they are graded before the first write."""
        reads: set[str] = set()
        for step in self.steps:
            if not step.writes and reads.issuperset(step.needs):
                reads.add(step.step_id)
        return frozenset(step.step_id for step in self.steps if step.late and reads >= step.late_sources)

    @property
    def tools(self) -> tuple[str, ...]:
        """Wire names of its tools, sorted, once each."""
        return tuple(sorted({step.tool for step in self.steps}))

    def execute_key(self, step_id: str) -> str:
        """Key of a step's one execution."""
        return execute_key(self.intent_key, step_id)

    @property
    def is_remote(self) -> bool:
        """True when the outcome of a step may be unknown."""
        return any(step.is_remote for step in self.steps)

    @cached_property
    def needs_locks(self) -> bool:
        """True when a step locks something."""
        return any(step.locks for step in self.steps)

    def locks_for(self, step_id: str, arguments: JsonObject) -> tuple[Lock, ...]:
        """All that must be held when a step writes: what the plan names outright, and what its bindings came to."""
        return locks_of({step.step_id: step.locks for step in self.steps}, step_id, arguments)

    @cached_property
    def dependents(self) -> dict[str, frozenset[str]]:
        """For each step all steps that build on it, directly or through others."""
        found: dict[str, frozenset[str]] = {}
        for step in reversed(self.steps):
            known_as = step.stands_for or step.step_id
            direct = [other.step_id for other in self.steps if known_as in other.needs]
            found[step.step_id] = frozenset(direct).union(*(found[other] for other in direct))
        return found

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored plan."""
        return cls.model_validate_json(text)
