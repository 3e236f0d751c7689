"""A dry run in words: what an intent would do, who would be asked, and where each failure would leave it."""

from contracts.base import JsonObject, Record
from contracts.envelope import Outcome
from contracts.plan import Plan, PlannedStep
from contracts.registry import Registry
from contracts.risk import LEVELS
from contracts.tool import Duty, SideEffect


class PreviewStep(Record):
    """One step as it would run; `undo` says in words what its compensation does."""

    step_id: str
    tool: str
    arguments: JsonObject
    needs: tuple[str, ...]
    side_effect: SideEffect
    level: str
    duty: Duty
    because: tuple[str, ...]
    undo: str | None


class FailurePath(Record):
    """What happens when `failed_step` is refused: the steps that are compensated, in order, and the end."""

    failed_step: str
    compensates: tuple[str, ...]
    outcome: Outcome


class Preview(Record):
    """The `data` of a dry run; nothing was written."""

    intent_id: str
    intent_key: str
    plan_digest: str
    risk_level: str
    steps: tuple[PreviewStep, ...]
    asks: tuple[str, ...]
    failures: tuple[FailurePath, ...]
    posted_before: Outcome | None = None
    """How the same intent stands that was posted before; None when it was not."""


def preview_of(plan: Plan, registry: Registry, posted_before: Outcome | None = None) -> Preview:
    """Show a plan that admission would store."""
    return Preview(
        intent_id=plan.intent_id,
        intent_key=plan.intent_key,
        plan_digest=plan.digest,
        risk_level=plan.risk_level,
        steps=tuple(
            PreviewStep(
                step_id=step.step_id,
                tool=step.tool,
                arguments=step.arguments,
                needs=step.needs,
                side_effect=step.side_effect,
                level=LEVELS[step.level],
                duty=step.duty,
                because=step.because,
                undo=registry[step.tool].compensates_by,
            )
            for step in plan.steps
        ),
        asks=tuple(step.step_id for step in plan.gated_steps),
        failures=tuple(_failure(plan, step) for step in plan.steps if step.may_refuse),
        posted_before=posted_before,
    )


def _failure(plan: Plan, failed: PlannedStep) -> FailurePath:
    """Every step before it in the plan's order may have landed; a landed pivot shuts the way back."""
    before = plan.steps[: plan.steps.index(failed)]
    if any(step.is_pivot for step in before):
        return FailurePath(failed_step=failed.step_id, compensates=(), outcome=Outcome.PARKED)
    landed = tuple(step.step_id for step in reversed(before) if step.writes)
    outcome = Outcome.COMPENSATED if landed else Outcome.NOT_APPLIED
    return FailurePath(failed_step=failed.step_id, compensates=landed, outcome=outcome)
