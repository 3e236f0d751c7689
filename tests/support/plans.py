"""Plans made by hand, for tests of the reducer: no admission, no database."""

from collections.abc import Iterable

from contracts.base import JsonObject
from contracts.fallback import fallback_id
from contracts.intent import Caller
from contracts.keys import execute_key, intent_id
from contracts.plan import Plan, PlannedStep
from contracts.saga import Ask, Standing, StepResult
from contracts.tool import Duty, SideEffect

KEY = "0" * 64
CALLER = Caller(tenant="bank", principal="customer", agent="agent")


def step(
    step_id: str,
    *,
    needs: Iterable[str] = (),
    effect: SideEffect = SideEffect.REVERSIBLE,
    duty: Duty = Duty.NONE,
    resources: Iterable[str] = (),
    arguments: JsonObject | None = None,
) -> PlannedStep:
    """A step of the tool `work_<step_id>@1`."""
    return PlannedStep(
        step_id=step_id,
        tool=f"work_{step_id}@1",
        arguments={} if arguments is None else arguments,
        needs=tuple(needs),
        side_effect=effect,
        duty=duty,
        resources=tuple(resources),
        because=("asked by the test",) if duty is not Duty.NONE else (),
    )


def chain(*step_ids: str, gated: Iterable[str] = (), reads: Iterable[str] = (), pivots: Iterable[str] = ()) -> Plan:
    """Each step needs the one before it."""
    effects = dict.fromkeys(reads, SideEffect.READ_ONLY) | dict.fromkeys(pivots, SideEffect.IRREVERSIBLE)
    gated = set(gated)
    return plan(
        *(
            step(
                step_id,
                needs=step_ids[max(0, number - 1) : number],
                effect=effects.get(step_id, SideEffect.REVERSIBLE),
                duty=Duty.ONE if step_id in gated else Duty.NONE,
            )
            for number, step_id in enumerate(step_ids)
        )
    )


def falling_back(made: Plan, *step_ids: str, **changes: object) -> Plan:
    """The same plan with a fallback for each of these steps: its like, but for `changes`."""
    steps: list[PlannedStep] = []
    for one in made.steps:
        steps.append(one)
        if one.step_id in step_ids:
            other = {"step_id": fallback_id(one.step_id), "stands_for": one.step_id, "tool": f"else_{one.tool}"}
            steps.append(one.model_copy(update={**other, **changes}))
    return made.changed(steps=tuple(steps))


def plan(*steps: PlannedStep) -> Plan:
    """A plan of the given steps, in topological order."""
    return Plan(
        intent_key=KEY,
        intent_id=intent_id(KEY),
        caller=CALLER,
        session_id="test",
        steps=steps,
        policy_digest="policy",
        approval_valid_seconds=3_600,
        deadline_seconds=86_400,
        compensation_attempts_max=10,
        compensation_backoff_max_seconds=60,
    )


def ask_of(made: Plan) -> Ask:
    """What admission asks people about a plan."""
    gated = tuple(sorted(step.step_id for step in made.gated_steps))
    return Ask(undecided=gated, expires_in_seconds=600.0, expires_at="2030-01-01T00:00:00+00:00") if gated else Ask()


def admitted(made: Plan) -> Standing:
    """The standing that admission answers for a new intent."""
    return Standing(intent_id=made.intent_id, plan=made, plan_digest=made.digest, ask=ask_of(made))


def landed(step_id: str, number: int | None = None, output: JsonObject | None = None) -> StepResult:
    """The answer of a step that landed as the `number`-th effect; without a number, of one that only read."""
    return StepResult(
        step_id=step_id,
        step_key=execute_key(KEY, step_id),
        transaction_id=number,
        applied_args={},
        output={} if output is None else output,
    )
