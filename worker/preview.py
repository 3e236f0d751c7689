"""A dry run in words: what an intent would do, who would be asked, and where each failure would leave it."""

from itertools import islice
from typing import Final

from contracts.base import JsonObject, Record
from contracts.ends import Row
from contracts.envelope import Outcome
from contracts.plan import Plan
from contracts.proof import Proof
from contracts.registry import Registry
from contracts.risk import LEVELS
from contracts.tool import Duty, SideEffect

ENDS_MAX: Final = 1_000


class PreviewStep(Record):
    """One step as it would run; `undo` says in words what its compensation does."""

    step_id: str
    tool: str
    arguments: JsonObject
    needs: tuple[str, ...]
    stands_for: str | None = None
    """The step whose fallback it is."""
    side_effect: SideEffect
    level: str
    duty: Duty
    because: tuple[str, ...]
    late: tuple[str, ...] = ()
    """Arguments that are bound and graded when they are known: level and duty are the least that they can be."""
    undo: str | None


class Preview(Record):
    """The `data` of a dry run; nothing was written.

    `proof` is what would be stored with the intent, `ends` its table written out, of which the first are shown.
    """

    intent_id: str
    intent_key: str
    plan_digest: str
    risk_level: str
    steps: tuple[PreviewStep, ...]
    asks: tuple[str, ...]
    proof_digest: str
    proof: Proof
    ends: tuple[Row, ...]
    posted_before: Outcome | None = None
    """How the same intent stands that was posted before; None when it was not."""


def preview_of(plan: Plan, proof: Proof, registry: Registry, posted_before: Outcome | None = None) -> Preview:
    """Show a plan that admission would store, with its proof."""
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
                stands_for=step.stands_for,
                side_effect=step.side_effect,
                level=LEVELS[step.level],
                duty=step.duty,
                because=step.because,
                late=step.late,
                undo=registry[step.tool].compensates_by,
            )
            for step in plan.steps
        ),
        asks=tuple(step.step_id for step in plan.gated_steps),
        proof_digest=proof.digest,
        proof=proof,
        ends=tuple(islice(proof.rows(), ENDS_MAX)),
        posted_before=posted_before,
    )
