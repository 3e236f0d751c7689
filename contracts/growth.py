"""Growing a plan by one step: read, checked and proved together with all steps before it; pure."""

from dataclasses import dataclass

from contracts.base import JsonObject
from contracts.errors import Phase, SagaError
from contracts.intent import FALLBACK, STEPS_MAX
from contracts.keys import digest
from contracts.plan import Plan
from contracts.problems import problem_at
from contracts.proof import Proof, prove_steps, require_sound
from contracts.proposal import ProposedStep, confirming_steps, proposed_steps
from contracts.reader import read_intent
from contracts.reasons import Reason, Retryable
from contracts.registry import Registry
from contracts.wire import refusal


@dataclass(frozen=True)
class Growth:
    """A plan's steps with one more at the end, what confirms them if nothing follows, and the proof of them all."""

    steps: tuple[ProposedStep, ...]
    proof: Proof
    confirming: tuple[ProposedStep, ...] = ()

    @property
    def added(self) -> ProposedStep:
        """The new one."""
        return self.steps[-1]


def grow(plan: Plan, step: JsonObject, registry: Registry, *, final: bool) -> Growth:
    """Check a step that is to come after all of a plan; its bindings name steps of the plan.

    Raises SagaError as `propose`, with paths inside the step; PLAN_UNSOUND for an irreversible step that is not
    `final`, RATE_LIMITED for one too many.
    """
    if len(plan.steps) >= STEPS_MAX:
        raise _too_many(plan)
    if "needs" in step:
        message = "Steps of an open intent come one after another; leave `needs` out."
        raise refusal(Reason.ARGUMENTS_INVALID, [problem_at(("needs",), "unknown_field", message, "nothing", None)])
    if FALLBACK in step:
        message = "A step of an open intent has no fallback: whether it landed is known before the next one is added."
        raise refusal(Reason.ARGUMENTS_INVALID, [problem_at((FALLBACK,), "unknown_field", message, "nothing", None)])
    try:
        growth = _read(plan, [step], registry, final=final)
        if growth.added.is_pivot and not final:
            raise _irreversible(growth.added)
        require_sound(growth.proof)
    except SagaError as error:
        raise _inside(error, f"steps[{len(plan.steps)}]") from None
    return growth


def seal(plan: Plan, registry: Registry) -> Growth | None:
    """Append what confirms a plan's steps, now that no step follows; None when nothing has to be confirmed."""
    if not plan.steps:
        return None
    growth = _read(plan, [], registry, final=True)
    return growth if growth.confirming else None


def _read(plan: Plan, more: list[JsonObject], registry: Registry, *, final: bool) -> Growth:
    before = [
        {"step_id": one.step_id, "tool": one.tool, "arguments": one.arguments, "needs": list(one.needs)}
        for one in plan.steps
    ]
    _, nodes = read_intent({"protocol": 1, "session_id": plan.session_id, "steps": [*before, *more]}, registry)
    steps = proposed_steps(nodes, {node.step_id: number for number, node in enumerate(nodes)})
    confirming = confirming_steps(nodes) if final else ()
    return Growth(steps, prove_steps(plan.intent_id, (*steps, *confirming), registry), confirming)


def request_digest(step: JsonObject) -> str:
    """Identify what was asked for under a step id."""
    return digest([step.get("tool"), step.get("arguments")])


def _irreversible(step: ProposedStep) -> SagaError:
    advice = f"Send it as the last step of all: commit with {step.step_id!r} as final_step."
    return SagaError(
        Reason.PLAN_UNSOUND,
        f"{step.tool} cannot be undone, and a step that is added later may still be refused. {advice}",
        details={"step_id": step.step_id, "tool": step.tool},
        phase=Phase.VALIDATION,
        suggestion=advice,
    )


def _too_many(plan: Plan) -> SagaError:
    error = SagaError(
        Reason.RATE_LIMITED,
        f"Intent {plan.intent_id} has {STEPS_MAX} steps, and takes no more.",
        details={"steps_max": STEPS_MAX},
        phase=Phase.VALIDATION,
        suggestion="Commit or abort this intent, and open another one for the rest.",
    )
    error.info = error.info.model_copy(update={"retryable": Retryable.NEVER})
    return error


def _inside(error: SagaError, prefix: str) -> SagaError:
    """Name fields by their place in the step that was sent."""
    fields = [
        problem.model_copy(update={"path": problem.path.removeprefix(prefix).removeprefix(".") or "step"})
        for problem in error.info.fields
    ]
    message = str(error).replace(f"{prefix}.", "")
    told = SagaError(error.reason, message)
    changes = {"message": message, "user_message": message, "fields": tuple(fields)}
    told.info = error.info.model_copy(update=changes)
    return told
