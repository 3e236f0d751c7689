"""The proof of a plan: what holds before anything is written, and where every failure would leave it; pure.

A plan is proved before it is claimed. Its digest stands in the plan, so that whoever approves the plan's digest
approves this very proof, at no further cost.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from pydantic import Field

from contracts.base import Record
from contracts.checks import Check, Checks, Rule, Verdict
from contracts.confirmation import confirms
from contracts.ends import (
    NEVER_UNKNOWN,
    Fault,
    Row,
    Settling,
    Way,
    Ways,
    ends_of,
    of_fallback,
    settling_of,
    ways,
    with_fallback,
)
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.fallback import lines
from contracts.objects import Call
from contracts.plan import Plan
from contracts.prefixes import Mask, Order, bits, prefixes
from contracts.reasons import Reason
from contracts.tool import AnyContract, SideEffect

_CODES: Final = {
    Rule.COMPENSATABLE: "undo_missing",
    Rule.PIVOT: "order_unsound",
    Rule.STATES: "state_unsound",
    Rule.AMOUNTS: "amount_unsound",
    Rule.UNDO_KNOWN: "undo_missing",
    Rule.GRADED: "graded_late",
}


class ProvedStep(Record):
    """One step: what it waits for, how its outcome gets known and what undoes it.

    `faults` are the ways from each fault before the pivot has landed, `faults_past_pivot` those after.
    """

    step_id: str
    tool: str
    needs: tuple[str, ...]
    stands_for: str | None = None
    """The step whose fallback it is: it runs once that certainly did not land."""
    side_effect: SideEffect
    may_refuse: bool
    settling: Settling
    undone_by: str | None
    faults: dict[Fault, tuple[Way, ...]]
    faults_past_pivot: dict[Fault, tuple[Way, ...]] = Field(default_factory=dict[Fault, tuple[Way, ...]])

    @property
    def writes(self) -> bool:
        """True when a landed step leaves an effect."""
        return self.side_effect is not SideEffect.READ_ONLY

    @property
    def is_pivot(self) -> bool:
        """True when nothing before it may be compensated once it landed."""
        return self.side_effect is SideEffect.IRREVERSIBLE


class Proof(Record):
    """A proved plan. `prefixes` are sets of landed steps, bit i for the i-th step; `complete`: those are all.

    `ties` are independent steps on one object: the one that landed later is undone first.
    """

    version: int = 1
    intent_id: str
    sound: bool
    checks: tuple[Check, ...]
    steps: tuple[ProvedStep, ...]
    ties: tuple[tuple[str, str], ...] = ()
    complete: bool
    prefixes: tuple[Mask, ...]

    @cached_property
    def text(self) -> str:
        """The proof as it is stored; one without fallbacks is what it was before there were any."""
        older = {"steps": {"__all__": {"stands_for"}}} if not self.order.fallbacks else None
        return self.model_dump_json(exclude=older)

    @cached_property
    def digest(self) -> str:
        """Sha256 of the proof exactly as it is stored, so that SQL alone can check it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def order(self) -> Order:
        """Who waits for whom."""
        return Order.of(self.steps)

    @cached_property
    def _tied(self) -> tuple[Mask, ...]:
        """For each step the independent ones on an object of its own."""
        index = {step.step_id: number for number, step in enumerate(self.steps)}
        found = [0] * len(self.steps)
        for one, other in self.ties:
            found[index[one]] |= 1 << index[other]
            found[index[other]] |= 1 << index[one]
        return tuple(found)

    @property
    def broken(self) -> tuple[Check, ...]:
        """What makes the plan unsound."""
        return tuple(check for check in self.checks if check.verdict is Verdict.BROKEN)

    def rows(self) -> Iterator[Row]:
        """Go through the table of ends: every prefix, every step that may run after it, every fault."""
        for landed in self.prefixes:
            for number in self.order.startable(landed):
                yield from self.rows_at(landed, number)

    def rows_at(self, landed: Mask, number: int) -> Iterator[Row]:
        """Give the five rows of one step after one prefix."""
        step = self.steps[number]
        faults = step.faults_past_pivot if landed & self.order.irreversible else step.faults
        for fault, taken in faults.items():
            yield Row(
                landed=self.order.names(landed),
                step_id=step.step_id,
                fault=fault,
                ends=ends_of(self.order, self._tied, landed, number, fault, taken),
                says="" if taken else NEVER_UNKNOWN[step.settling],
            )


def prove(plan: Plan, contracts: Mapping[str, AnyContract]) -> Proof:
    """Prove a plan, sound or not; the same plan and contracts always give the same proof."""
    return prove_steps(plan.intent_id, plan.steps, contracts)


def prove_steps(intent_id: str, steps: Sequence[Call], contracts: Mapping[str, AnyContract]) -> Proof:
    """Do `prove` for steps of which there is no plan yet; they are in topological order."""
    order = Order.of(steps)
    checks = tuple(_checks(steps, contracts))
    found, complete = prefixes(order)
    with_one = {step.stands_for for step in steps}
    return Proof(
        intent_id=intent_id,
        sound=all(check.verdict is not Verdict.BROKEN for check in checks),
        checks=checks,
        steps=tuple(
            _proved(
                step,
                contracts.get(step.tool),
                has_pivot=order.irreversible != 0,
                has_fallback=step.step_id in with_one,
            )
            for step in steps
        ),
        ties=tuple(_ties(steps, order)),
        complete=complete,
        prefixes=found,
    )


def require_sound(proof: Proof, posted: Sequence[str] = ()) -> None:
    """Refuse a plan that could get stuck half-way; `posted` are the step ids as they were sent, for the paths.

    Raises: SagaError(PLAN_UNSOUND) with every broken rule and, where there is one, the legal alternative.
    """
    broken = proof.broken
    if not broken:
        return
    index = {step_id: number for number, step_id in enumerate(posted or [step.step_id for step in proof.steps])}
    raise SagaError(
        Reason.PLAN_UNSOUND,
        f"{broken[0].says} {broken[0].advice}".strip(),
        details={"broken": [check.model_dump(mode="json") for check in broken]},
        fields=[
            FieldProblem(
                path=f"steps[{index[_posted(check.path[-1])]}]",
                code=_CODES[check.rule],
                message=check.says,
                allowed=check.advice,
                example=list(check.legal_order) or None,
            )
            for check in broken
        ],
        phase=Phase.VALIDATION,
    )


def _checks(steps: Sequence[Call], contracts: Mapping[str, AnyContract]) -> Iterator[Check]:
    """Check every line of the plan; what is so in an earlier one is not said again."""
    told: set[tuple[Rule, Verdict, tuple[str, ...], str]] = set()
    for fallen, line in lines(steps):
        when = f"If {' and '.join(fallen)} {'falls' if len(fallen) == 1 else 'fall'} back: " if fallen else ""
        for check in Checks(line, contracts, Order.of(line)).all:
            said = (check.rule, check.verdict, check.path, check.says)
            if said not in told:
                told.add(said)
                yield check.model_copy(update={"says": when + check.says}) if when else check


def _posted(step_id: str) -> str:
    """The step that was posted, of one that the engine appended."""
    return confirms(step_id) or step_id


def _proved(step: Call, contract: AnyContract | None, *, has_pivot: bool, has_fallback: bool) -> ProvedStep:
    settling = Settling.NOBODY_KNOWS if contract is None else settling_of(contract)
    drops = contract is not None and contract.cancel_by_key
    early: Ways = ways(settling, step.side_effect, can_drop=drops, past_pivot=False)
    past: Ways = ways(settling, step.side_effect, can_drop=drops, past_pivot=True) if has_pivot else {}
    if has_fallback:
        early, past = with_fallback(early), with_fallback(past)
    if step.stands_for is not None:
        early, past = of_fallback(early), of_fallback(past)
    return ProvedStep(
        step_id=step.step_id,
        tool=step.tool,
        needs=step.needs,
        stands_for=step.stands_for,
        side_effect=step.side_effect,
        may_refuse=step.may_refuse,
        settling=settling,
        undone_by=None if contract is None else contract.compensates_by,
        faults=dict(early),
        faults_past_pivot=dict(past),
    )


def _ties(steps: Sequence[Call], order: Order) -> Iterator[tuple[str, str]]:
    """Find independent steps on one object, which are undone in the reverse of how they landed.

    Of a late step it is not known yet what it touches: it may be anything.
    """
    by_object: dict[str, int] = {}
    late = writers = 0
    for number, step in enumerate(steps):
        mine = late if not step.late else writers
        if step.writes:
            writers |= 1 << number
            late |= 1 << number if step.late else 0
        for name in step.resources if step.writes else ():
            mine |= by_object.get(name, 0)
            by_object[name] = by_object.get(name, 0) | 1 << number
        for other in bits(mine & ~order.before[number] & ~order.places[number]):
            yield order.step_ids[other], step.step_id
