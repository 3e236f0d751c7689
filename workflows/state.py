"""What a saga remembers. Never the truth about money (that is in the database), only where it is on its way."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from contracts.base import JsonObject
from contracts.envelope import Cause, IntentReport, Outcome, StepReport, StepState
from contracts.errors import ErrorInfo
from contracts.plan import Plan
from contracts.saga import Ask, Cancellation, ParkReason, Standing


class Stage(StrEnum):
    """Where the saga is on its way."""

    ADMITTING = "ADMITTING"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    FORWARD = "FORWARD"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    COMPENSATING = "COMPENSATING"
    SETTLING = "SETTLING"
    PARKING = "PARKING"
    PARKED = "PARKED"
    FINISHED = "FINISHED"


RUNNING = frozenset({StepState.EXECUTING, StepState.COMPENSATING})


@dataclass(frozen=True, slots=True)
class Step:
    """One step as the saga remembers it."""

    step_id: str
    tool: str
    state: StepState = StepState.PLANNED
    step_key: str | None = None
    transaction_id: int | None = None
    applied_args: JsonObject | None = None
    output: JsonObject | None = None
    residue: str | None = None
    error: ErrorInfo | None = None
    warnings: tuple[str, ...] = ()
    is_grading: bool = False
    is_graded: bool = False
    """True when its late arguments are graded; only asked of steps that have some."""
    falls_back: bool = False
    """True when it certainly did not land and its fallback stands for it."""
    is_looking: bool = False
    """True while what became of it is being looked up."""
    is_over: bool = False
    """True when it has been looked up for as long as it may be."""
    looked_closing: bool = False
    wait_seconds: float = 0.0
    known: JsonObject | None = None
    """All that is known of a write whose outcome is not."""

    def report(self) -> StepReport:
        """Show it to people."""
        return StepReport(
            step_id=self.step_id,
            tool=self.tool,
            state=self.state,
            step_key=self.step_key,
            transaction_id=self.transaction_id,
            applied_args=self.applied_args,
            output=self.output,
            residue=self.residue,
            error=self.error,
            warnings=self.warnings,
        )


@dataclass(frozen=True, slots=True)
class State:
    """The whole memory of a saga; replaced, never edited."""

    stage: Stage = Stage.ADMITTING
    plan: Plan | None = None
    plan_digest: str | None = None
    intent_id: str | None = None
    epoch: int = 0
    steps: Mapping[str, Step] = field(default_factory=lambda: MappingProxyType[str, Step]({}))
    ask: Ask = field(default_factory=Ask)
    cause: Cause = Cause.NONE
    error: ErrorInfo | None = None
    cancellation: Cancellation | None = None
    past_pivot: bool = False
    waits: int = 0
    """How often an open intent has waited for its next step."""
    parked: ParkReason | None = None
    parked_steps: tuple[str, ...] = ()
    stale: bool = False
    """True when another run may own the intent: nothing new starts, and once nothing runs the database is asked."""
    report: IntentReport | None = None

    @property
    def known_plan(self) -> Plan:
        """The plan; only asked for after admission brought one."""
        if self.plan is None:
            raise AssertionError("no plan before admission")
        return self.plan

    def with_step(self, step_id: str, **changes: object) -> "State":
        """Replace what is remembered of one step."""
        steps = dict(self.steps)
        steps[step_id] = replace(steps[step_id], **changes)  # type: ignore[arg-type]
        return replace(self, steps=MappingProxyType(steps))

    def with_plan(self, standing: Standing) -> "State":
        """Take over the plan that the tables have, if they say one; a step that is new is PLANNED."""
        plan = standing.plan or self.plan
        if plan is None:
            return self
        steps = {
            step.step_id: self.steps.get(step.step_id) or Step(step_id=step.step_id, tool=step.tool)
            for step in plan.steps
        }
        digest = standing.plan_digest or self.plan_digest
        return replace(self, plan=plan, plan_digest=digest, steps=MappingProxyType(steps))

    def landed(self, step_id: str) -> Step | None:
        """Find what is done of a step: itself, or its fallback in its place."""
        for known in (step_id, self.known_plan.fallbacks.get(step_id)):
            if known is not None and self.steps[known].state is StepState.DONE:
                return self.steps[known]
        return None

    def running(self) -> tuple[str, ...]:
        """Steps whose activity has not answered yet, in plan order."""
        return tuple(
            step.step_id for step in self.steps.values() if step.state in RUNNING or step.is_looking or step.is_grading
        )

    def outcome(self) -> Outcome:
        """The outcome as it can be told now."""
        if self.report is not None:
            return self.report.outcome
        return Outcome.PARKED if self.stage is Stage.PARKED else Outcome.PENDING

    def snapshot(self) -> IntentReport:
        """Tell people how it stands: the final report, or what is remembered."""
        if self.report is not None:
            return self.report
        return IntentReport(
            outcome=self.outcome(),
            cause=self.cause,
            steps=tuple(step.report() for step in self.steps.values()),
            waiting_for=self.waiting_for(),
            plan_digest=self.plan_digest,
        )

    def waiting_for(self) -> str | None:
        """In words, what must happen next."""
        match self.stage:
            case Stage.AWAITING_APPROVAL:
                return f"a decision about {', '.join(self.ask.undecided)} until {self.ask.expires_at}"
            case Stage.OPEN:
                return "the next step, commit or abort"
            case Stage.PARKED:
                return f"an operator ({self.parked})"
            case Stage.FINISHED:
                return None
            case _:
                return f"{self.stage.lower()}: {', '.join(self.running()) or 'the database'}"
