"""From a proposal to a plan: every literal object checked, every amount simulated, every step graded; pure.

The world comes in as `ObjectState`s that admission read in its transaction; a dry run passes the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contracts.errors import Phase, SagaError
from contracts.intent import binding_of
from contracts.plan import Plan, PlannedStep
from contracts.proposal import Proposal, ProposedStep
from contracts.reasons import Reason
from contracts.risk import Policy, RiskInputs, grade
from contracts.tool import Access, Duty, ResourceUse

OWN_ONLY: Final = frozenset({Access.TAKE, Access.HOLD, Access.LOCK, Access.READ})
LEVEL_ASKED_WHEN_REPEATED: Final = 3


@dataclass(frozen=True, kw_only=True)
class ObjectState:
    """An object that a literal names, as the database saw it. Amounts in cents; None: does not apply."""

    object_id: str
    tenant: str
    principal: str | None
    state: str
    currency: str | None
    available_cents: int | None
    limit_cents: int | None


Objects = Mapping[str, ObjectState]
"""By `kind:id`."""


def plan_for(proposal: Proposal, objects: Objects, policy: Policy) -> Plan:
    """Check every literal object and grade every step; pure. Raises SagaError with the reason of the first refusal."""
    world = _World(proposal, objects, policy)
    plan = Plan(
        intent_key=proposal.intent_key,
        intent_id=proposal.intent_id,
        caller=proposal.caller,
        session_id=proposal.intent.session_id,
        steps=tuple(world.planned(step) for step in proposal.steps),
        policy_digest=policy.digest,
        approval_valid_seconds=policy.approval_valid_seconds,
        deadline_seconds=policy.intent_deadline_seconds,
        compensation_attempts_max=policy.compensation_attempts_max,
        compensation_backoff_max_seconds=policy.compensation_backoff_max_seconds,
    )
    for step in plan.gated_steps:
        if step.duty is Duty.TWO:
            raise SagaError(
                Reason.DUTY_NOT_AVAILABLE,
                f"Step {step.step_id!r} needs two approvers ({'; '.join(step.because)}), which cannot be asked yet.",
                details={"step_id": step.step_id, "because": list(step.because)},
                phase=Phase.APPROVAL,
            )
    return plan


class _World:
    """The objects of a plan, as each of its steps would leave them for the next."""

    def __init__(self, proposal: Proposal, objects: Objects, policy: Policy) -> None:
        self._caller = proposal.caller
        self._occurrence = proposal.intent.occurrence
        self._objects = objects
        self._policy = policy
        self._spendable = {name: known.available_cents for name, known in objects.items()}
        self._states = {name: known.state for name, known in objects.items()}

    def planned(self, step: ProposedStep) -> PlannedStep:
        """Plan one step; the steps before it have been planned."""
        contract = step.contract
        check_literal(step)
        crosses = [self._use(step, use) for use in contract.resources]
        graded = grade(
            contract,
            RiskInputs(
                amount_cents=self._spend(step),
                currency=step.arguments.get(contract.amount.currency) if contract.amount else None,
                rows=_count(step),
                crosses_principal=any(crosses),
            ),
            self._policy,
        )
        duty, because = graded.duty, graded.because
        repeated = contract.writes and self._occurrence > 1 and graded.level >= LEVEL_ASKED_WHEN_REPEATED
        if repeated and duty is Duty.NONE:
            duty, because = Duty.ONE, (*because, f"occurrence {self._occurrence} of the same intent")
        return PlannedStep(
            step_id=step.step_id,
            tool=contract.wire_name,
            arguments=step.arguments,
            needs=step.needs,
            dispatch=contract.dispatch,
            side_effect=contract.side_effect,
            may_refuse=contract.may_refuse,
            duty=duty,
            level=graded.level,
            because=because,
            timeout_seconds=contract.timeout_seconds,
            attempts_max=contract.attempts_max,
            resources=tuple(f"{kind}:{object_id}" for kind, object_id in literals(step)),
        )

    def _use(self, step: ProposedStep, use: ResourceUse) -> bool:
        """Check one object and leave it in its next state; True when it is another principal's."""
        object_id = step.arguments.get(use.argument)
        if not isinstance(object_id, str):
            return False
        name = f"{use.kind}:{object_id}"
        details = {"kind": use.kind, "object_id": object_id, "step_id": step.step_id}
        known = self._objects.get(name)
        if known is None or known.tenant != self._caller.tenant:
            raise SagaError(
                Reason.OBJECT_NOT_FOUND,
                f"There is no {use.kind} {object_id}; look it up before posting.",
                details=details,
            )
        crosses = known.principal not in (None, self._caller.principal)
        if crosses and use.access in OWN_ONLY:
            raise SagaError(
                Reason.NOT_OWNER,
                f"The {use.kind} {object_id} does not belong to {self._caller.principal}; use one that does.",
                details=details,
                phase=Phase.AUTHORIZATION,
            )
        if self._states[name] not in use.states:
            raise SagaError(
                Reason.WRONG_STATE,
                f"The {use.kind} {object_id} is {self._states[name]}; step {step.step_id!r} needs"
                f" {' or '.join(sorted(use.states))}.",
                details=details | {"state": self._states[name]},
            )
        if use.state_after is not None:
            self._states[name] = use.state_after
        currency = step.arguments.get(step.contract.amount.currency) if step.contract.amount else None
        if currency is not None and known.currency not in (None, currency):
            raise SagaError(
                Reason.CURRENCY_MISMATCH,
                f"The {use.kind} {object_id} is kept in {known.currency}, step {step.step_id!r} says {currency}.",
                details=details | {"currency": known.currency},
            )
        return crosses

    def _spend(self, step: ProposedStep) -> int:
        """Move the step's amount between the funds that earlier steps left; return it."""
        use = step.contract.amount
        amount = step.arguments.get(use.argument) if use else None
        if use is None or not isinstance(amount, int):
            return 0
        source = f"account:{step.arguments.get(use.taken_from)}" if use.taken_from else ""
        target = f"account:{step.arguments.get(use.paid_into)}" if use.paid_into else ""
        limit = self._objects[source].limit_cents if source in self._objects else None
        if limit is not None and amount > limit:
            raise SagaError(
                Reason.LIMIT_EXCEEDED,
                f"Step {step.step_id!r} wants {amount} cents; the limit of {source} is {limit}.",
                details={"amount_cents": amount, "limit_cents": limit, "step_id": step.step_id},
            )
        available = self._spendable.get(source)
        if available is not None:
            if available < amount:
                raise SagaError(
                    Reason.FUNDS_INSUFFICIENT,
                    f"Step {step.step_id!r} needs {amount} cents; {source} has {available}.",
                    details={"amount_cents": amount, "available_cents": available, "step_id": step.step_id},
                )
            self._spendable[source] = available - amount
        received = self._spendable.get(target)
        if received is not None:
            self._spendable[target] = received + amount
        return amount


def check_literal(step: ProposedStep) -> None:
    """Refuse a binding where risk is read: amount, currency, count and payee must be seen before anything runs.

    A binding to an id that the engine makes (a hold, a capture) is fine. Raises SagaError(PLAN_UNSOUND).
    """
    contract = step.contract
    seen = {contract.rows_argument} if contract.rows_argument else set[str]()
    if contract.amount is not None:
        seen |= {contract.amount.argument, contract.amount.currency}
    seen |= {use.argument for use in contract.resources if use.access is Access.PAY_INTO}
    if bound := sorted(name for name in seen if binding_of(step.arguments.get(name)) is not None):
        raise SagaError(
            Reason.PLAN_UNSOUND,
            f"Step {step.step_id!r} binds {', '.join(bound)}; say it outright, so that it can be graded and approved.",
            details={"step_id": step.step_id, "bound": bound},
            phase=Phase.VALIDATION,
        )


def _count(step: ProposedStep) -> int:
    value = step.arguments.get(step.contract.rows_argument or "")
    return value if isinstance(value, int) else 0


def literals(step: ProposedStep) -> list[tuple[str, str]]:
    """Objects that the arguments name outright: (kind, id)."""
    return [
        (use.kind, step.arguments[use.argument])
        for use in step.contract.resources
        if isinstance(step.arguments.get(use.argument), str)
    ]
