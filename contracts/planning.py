"""From a proposal to a plan: every literal object checked, every amount simulated, every step graded; pure.

The world comes in as `ObjectState`s that admission read in its transaction; a dry run passes the same.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from contracts.confirmation import check_lasts, confirms
from contracts.errors import Phase, SagaError
from contracts.fallback import fallback_id, line, lines
from contracts.graph import ancestors_of
from contracts.intent import Caller, OpenIntent
from contracts.late import DRAWING
from contracts.locks import PlannedLock, planned_locks
from contracts.objects import argument
from contracts.plan import Plan, PlannedStep
from contracts.proposal import Proposal, ProposedStep
from contracts.reasons import Reason
from contracts.risk import Grade, Policy, RiskInputs, grade
from contracts.tool import Access, Duty, ResourceUse
from contracts.totals import ROWS, Totals, cents_of, currency_of, kind_of, rows_of

OWN_ONLY: Final = DRAWING | {Access.READ}
LEVEL_ASKED_WHEN_REPEATED: Final = 3


@dataclass(frozen=True, kw_only=True)
class ObjectState:
    """An object that a literal names, as the database saw it. Amounts in cents; None: does not apply.

    `principal` is None for what belongs to the tenant itself. `draws_on_tenant`: what is taken through the object is
    the tenant's, whoever may ask for it (a debit that a merchant got).
    """

    object_id: str
    tenant: str
    principal: str | None
    state: str
    currency: str | None
    available_cents: int | None
    limit_cents: int | None
    draws_on_tenant: bool = False
    within: str | None = None
    """`kind:id` of the object that it is part of: whoever locks the part locks the whole."""


Objects = Mapping[str, ObjectState]
"""By `kind:id`."""


def plan_for(
    proposal: Proposal, objects: Objects, policy: Policy, alike: Mapping[str, str] = MappingProxyType({})
) -> Plan:
    """Check every literal object and grade every step; pure. Raises SagaError with the reason of the first refusal.

    `alike`: for each step that was done before under another key, the intent that did it; a person has to say that it
    is meant a second time.
    """
    plan = Plan(
        intent_key=proposal.intent_key,
        intent_id=proposal.intent_id,
        caller=proposal.caller,
        session_id=proposal.intent.session_id,
        steps=_planned(proposal, objects, policy, alike),
        policy_digest=policy.digest,
        approval_valid_seconds=policy.approval_valid_seconds,
        deadline_seconds=policy.intent_deadline_seconds,
        compensation_attempts_max=policy.compensation_attempts_max,
        compensation_backoff_max_seconds=policy.compensation_backoff_max_seconds,
        proof_digest=proposal.proof.digest,
        opened=(opened := isinstance(proposal.intent, OpenIntent)),
        inactivity_seconds=policy.open_inactivity_seconds if opened else 0,
        lock_wait_seconds=policy.lock_wait_seconds,
    )
    for step in plan.steps:
        check_askable(step.step_id, step.duty, step.because)
    return plan


def _planned(proposal: Proposal, objects: Objects, policy: Policy, alike: Mapping[str, str]) -> tuple[PlannedStep, ...]:
    """Plan every line; a step has the highest level and duty that it has in any."""
    found: dict[str, PlannedStep] = {}
    for fallen, steps in lines(proposal.steps):
        world = _World(steps, proposal.caller, objects, policy)
        for step in steps:
            is_other = step.step_id in fallen
            step_id = fallback_id(step.step_id) if is_other else step.step_id
            planned = world.planned(step, proposal.intent.occurrence, alike.get(step_id))
            if is_other:
                planned = planned.model_copy(update={"step_id": step_id, "stands_for": step.step_id})
            found[step_id] = _stricter(found.get(step_id), planned)
    return tuple(found[step.step_id] for step in proposal.steps)


def _stricter(one: PlannedStep | None, other: PlannedStep) -> PlannedStep:
    if one is None:
        return other
    changes = {
        "level": max(one.level, other.level),
        "duty": max(one.duty, other.duty, key=_rank),
        "because": tuple(dict.fromkeys((*one.because, *other.because))),
    }
    return one.model_copy(update=changes)


def plan_added(
    steps: Sequence[ProposedStep], *, caller: Caller, objects: Objects, policy: Policy, alike: Mapping[str, str]
) -> PlannedStep:
    """Plan the last of these steps; the objects show the work of all before it. Pure; raises SagaError as `plan_for`.

    Amount and rows are all that the plan moves and touches with it.
    """
    world = _World(steps, caller, objects, policy)
    for step in steps[:-1]:
        world.totals.add(step)
    return world.planned(steps[-1], 1, alike.get(steps[-1].step_id))


def check_askable(step_id: str, duty: Duty, because: tuple[str, ...]) -> None:
    """Refuse what no number of people that can be asked allows. Raises SagaError(DUTY_NOT_AVAILABLE)."""
    if duty is Duty.TWO:
        raise SagaError(
            Reason.DUTY_NOT_AVAILABLE,
            f"Step {step_id!r} needs two approvers ({'; '.join(because)}), which cannot be asked yet.",
            details={"step_id": step_id, "because": list(because)},
            phase=Phase.APPROVAL,
        )


def grade_late(
    step: PlannedStep,
    steps: Sequence[ProposedStep],
    over: Collection[str],
    *,
    caller: Caller,
    objects: Objects,
    policy: Policy,
    earlier: str | None = None,
) -> Grade:
    """Grade a step of a plan whose late arguments are known now; pure. Raises SagaError as `plan_for` does.

    `steps` are all steps of the plan, with every late argument that is known; `over` are those whose work the objects
    show already; `earlier` is the intent that did the same before. Amount and rows are all that the plan moves and
    touches as far as it is known, whatever runs first: of two steps that together are large at least the one that is
    graded later asks.
    """
    fallen = {
        each.stands_for for each in steps if each.stands_for and (each.step_id in over or each.step_id == step.step_id)
    }
    done = {each.stands_for or each.step_id for each in steps if each.step_id in over}
    itself = step.stands_for or step.step_id
    steps = line(steps, fallen)
    whole = _World(steps, caller, objects, policy)
    for each in steps:
        whole.totals.add(each)
    left = _World(steps, caller, objects, policy)
    crossings = [found for each in steps if each.step_id not in done for found in left.crossed(each, itself)]
    known = next(each for each in steps if each.step_id == itself)
    graded = grade(known.contract, whole.inputs(known, crossings, together="the other steps of the plan"), policy)
    least = Duty.NONE if earlier is None else Duty.ONE
    duty = max(step.duty, graded.duty, least, key=_rank)
    repeats = () if earlier is None else (_repeats(earlier),)
    because = tuple(dict.fromkeys((*step.because, *graded.because, *repeats)))
    check_askable(step.step_id, duty, because)
    return Grade(level=max(step.level, graded.level), duty=duty, because=because)


class _World:
    """The objects of a plan, as each of its steps would leave them for the next."""

    def __init__(self, steps: Sequence[ProposedStep], caller: Caller, objects: Objects, policy: Policy) -> None:
        self._caller = caller
        self._objects = objects
        self._policy = policy
        self._received: dict[str, list[tuple[str, int]]] = {}
        self._taken: Counter[str] = Counter()
        self._before = ancestors_of(steps)
        self._states = {name: known.state for name, known in objects.items()}
        self.totals = Totals(steps)

    def planned(self, step: ProposedStep, occurrence: int, earlier: str | None) -> PlannedStep:
        """Plan one step, which intent `earlier` did before; the steps before it have been planned."""
        contract = step.contract
        crossings = self.crossed(step, step.step_id)
        self.totals.add(step)
        graded = grade(contract, self.inputs(step, crossings), self._policy)
        duty, because = graded.duty, graded.because
        check_lasts(step.step_id, contract, step.arguments, self._policy.intent_deadline_seconds)
        posted = confirms(step.step_id) is None
        repeated = posted and contract.writes and occurrence > 1 and graded.level >= LEVEL_ASKED_WHEN_REPEATED
        if repeated and duty is Duty.NONE:
            duty, because = Duty.ONE, (*because, f"occurrence {occurrence} of the same intent")
        if earlier is not None:
            duty, because = max(duty, Duty.ONE, key=_rank), (*because, _repeats(earlier))
        return PlannedStep(
            step_id=step.step_id,
            tool=contract.wire_name,
            arguments=step.arguments,
            needs=step.needs,
            dispatch=contract.dispatch,
            side_effect=contract.side_effect,
            may_refuse=step.may_refuse,
            duty=duty,
            level=graded.level,
            because=because,
            timeout_seconds=contract.timeout_seconds,
            attempts_max=contract.attempts_max,
            patience_seconds=contract.patience_seconds,
            cancel_by_key=contract.cancel_by_key,
            resources=step.resources,
            late=step.late,
            locks=self._locks(step),
        )

    def inputs(
        self, step: ProposedStep, crossings: Sequence["_Crossing"], together: str = "the steps before it"
    ) -> RiskInputs:
        """What is known of a step's size and reach. An amount in a currency that is not known yet is not known."""
        amount, currency, rows = cents_of(step), currency_of(step), rows_of(step)
        total = self.totals.with_others(step, currency, amount)
        touched = self.totals.with_others(step, ROWS, rows)
        is_known = step.contract.amount is None or currency is not None
        return RiskInputs(
            amount_cents=total if is_known else 0,
            together=together if total > amount else "",
            currency=currency,
            rows=touched,
            rows_together=together if touched > rows else "",
            crosses_principal=any(crossing.principal for crossing in crossings),
            draws_on_tenant=any(crossing.tenant for crossing in crossings),
        )

    def crossed(self, step: ProposedStep, of: str) -> list["_Crossing"]:
        """Check a step's objects and funds, and leave them as it leaves them; tell whose they are for step `of`."""
        crossings = [self._use(step, use) for use in step.contract.resources]
        self._spend(step)
        return crossings if step.step_id == of else []

    def _locks(self, step: ProposedStep) -> tuple[PlannedLock, ...]:
        """What a step locks: its objects, and what they are part of."""
        whole = {name: known.within for name, known in self._objects.items() if known.within is not None}
        named = {use.argument: argument(step, use.argument) for use in step.contract.resources}
        locks = planned_locks(step.contract.resources, named, whole)
        bound = [lock.argument for lock in locks if lock.argument is not None]
        late = [name for name in bound if self.totals.maker(step, name) is None]
        if late and not step.contract.may_refuse:
            raise SagaError(
                Reason.PLAN_UNSOUND,
                f"Step {step.step_id!r} cannot refuse, and binds {', '.join(late)}, which it locks: somebody else may"
                " have it by then; say it outright, so that it is locked before the first write.",
                details={"step_id": step.step_id, "bound": late},
                phase=Phase.VALIDATION,
            )
        return locks

    def _use(self, step: ProposedStep, use: ResourceUse) -> "_Crossing":
        """Check one object and leave it in its next state; tell whose it is besides the principal's."""
        object_id = argument(step, use.argument)
        if not isinstance(object_id, str):
            return _Crossing()
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
        currency = currency_of(step)
        if currency is not None and known.currency not in (None, currency):
            raise SagaError(
                Reason.CURRENCY_MISMATCH,
                f"The {use.kind} {object_id} is kept in {known.currency}, step {step.step_id!r} says {currency}.",
                details=details | {"currency": known.currency},
            )
        drawn = use.access in DRAWING and (known.principal is None or known.draws_on_tenant)
        return _Crossing(principal=crosses, tenant=drawn)

    def _spend(self, step: ProposedStep) -> None:
        """Move the step's amount between the funds that earlier steps left."""
        use, amount = step.contract.amount, cents_of(step)
        if use is None:
            return
        source, target = _name_of(step, use.taken_from), _name_of(step, use.paid_into)
        limit = self._objects[source].limit_cents if source in self._objects else None
        if limit is not None and amount > limit:
            raise SagaError(
                Reason.LIMIT_EXCEEDED,
                f"Step {step.step_id!r} wants {amount} cents; the limit of {source} is {limit}.",
                details={"amount_cents": amount, "limit_cents": limit, "step_id": step.step_id},
            )
        available = self._available(step, source)
        if available is not None and available < amount:
            raise SagaError(
                Reason.FUNDS_INSUFFICIENT,
                f"Step {step.step_id!r} needs {amount} cents; {source} has {available}.",
                details={"amount_cents": amount, "available_cents": available, "step_id": step.step_id},
            )
        self._taken[source] += amount
        self._received.setdefault(target, []).append((step.step_id, amount))

    def _available(self, step: ProposedStep, source: str) -> int | None:
        """What is left for a step whatever runs first: all takings count, of the receipts those that it waits for."""
        known = self._objects.get(source)
        if known is None or known.available_cents is None:
            return None
        came = sum(amount for giver, amount in self._received.get(source, ()) if giver in self._before[step.step_id])
        return known.available_cents - self._taken[source] + came


@dataclass(frozen=True, kw_only=True)
class _Crossing:
    """Whose an object is: another principal's, or the tenant's and drawn on."""

    principal: bool = False
    tenant: bool = False


def _name_of(step: ProposedStep, name: str | None) -> str:
    """`kind:id` of the object that an argument names; a binding names none."""
    return f"{kind_of(step.contract, name)}:{argument(step, name)}"


def _rank(duty: Duty) -> int:
    return duty.rank


def _repeats(earlier: str) -> str:
    return f"{Reason.POSSIBLE_DUPLICATE}: {earlier} did the same"
