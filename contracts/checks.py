"""What is proved about a plan before anything is written: five rules, each with what it found, where and why.

Only what contracts declare is used. What they leave open is not guessed: it is said when, and in which transaction, it
will be looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pydantic import Field

from contracts import amounts, states
from contracts.base import Record
from contracts.binding import bindings_of
from contracts.confirmation import confirms
from contracts.ends import Settling, settling_of
from contracts.late import late_sources
from contracts.objects import Call, Objects
from contracts.prefixes import Order
from contracts.soundness import Move, advice, clash_text, clashes, legal_order
from contracts.tool import AnyContract


class Rule(StrEnum):
    """What has to be so."""

    COMPENSATABLE = "COMPENSATABLE"
    """Every step that writes before the pivot can be undone."""
    PIVOT = "PIVOT"
    """At most one step that cannot be undone may refuse, and nothing may refuse once one has landed."""
    STATES = "STATES"
    """Every object is in a state that its step takes, whatever order independent steps run in."""
    AMOUNTS = "AMOUNTS"
    """What is taken from an object that the plan makes is at most what it holds."""
    UNDO_KNOWN = "UNDO_KNOWN"
    """What a compensation needs is known by the time it runs."""
    GRADED = "GRADED"
    """What decides whether a person is asked is known before anything is written; told only where it is not."""


class Verdict(StrEnum):
    """What is known about a rule before anything runs."""

    HOLDS = "holds"
    BROKEN = "broken"
    AT_RUN_TIME = "at_run_time"


class Check(Record):
    """One finding: `path` are the steps it is about, in the order that matters.

    What would be right: `legal_order` of all steps, one after another; or just these `legal_needs`.
    """

    rule: Rule
    verdict: Verdict
    path: tuple[str, ...]
    says: str
    legal_order: tuple[str, ...] = ()
    legal_needs: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    advice: str = ""


_SETTLES = {
    Settling.SENT_AGAIN: "what {steps} answered is asked for again under the same key before it is undone",
    Settling.LOOKED_UP: "what {steps} did is looked up by its key before it is undone",
    Settling.NOBODY_KNOWS: "should the answer of {steps} be lost, it is not undone but parked for a person",
}


@dataclass(frozen=True)
class Checks:
    """All five rules over one plan; `steps` are in topological order."""

    steps: Sequence[Call]
    contracts: Mapping[str, AnyContract]
    order: Order

    @property
    def all(self) -> tuple[Check, ...]:
        """Check everything, in the order of the rules; at least one finding for each but the last."""
        found = (*self._compensatable(), *self._pivot(), *self._states(), *self._amounts(), *self._undo_known())
        return (*found, *self._graded())

    @cached_property
    def _objects(self) -> Objects:
        return Objects.of(self.steps, self.contracts)

    @cached_property
    def _moves(self) -> list[Move]:
        return [
            Move(
                step_id=step.step_id,
                needs=step.needs,
                bound=tuple(dict.fromkeys(binding.step_id for binding in bindings_of(step.arguments)[0])),
                may_refuse=step.may_refuse,
                is_irreversible=step.is_pivot,
                touches=self._objects.touches[step.step_id],
                makes=self._objects.made_by[step.step_id],
            )
            for step in self.steps
        ]

    @cached_property
    def _legal(self) -> tuple[str, ...]:
        return legal_order([move for move in self._moves if confirms(move.step_id) is None])

    def _compensatable(self) -> Iterator[Check]:
        wrong = list(self._not_undone())
        yield from wrong
        if not wrong:
            undone = tuple(step.step_id for step in self.steps if step.writes and not step.is_pivot)
            says = "each of these can be undone" if undone else "no step has to be undone"
            yield Check(rule=Rule.COMPENSATABLE, verdict=Verdict.HOLDS, path=undone, says=says)

    def _not_undone(self) -> Iterator[Check]:
        for step in self.steps:
            contract = self.contracts.get(step.tool)
            if contract is None:
                why = f"there is no contract for {step.tool}"
            elif (contract.side_effect, contract.may_refuse or bool(step.late)) != (step.side_effect, step.may_refuse):
                why = f"the contract of {step.tool} says {contract.side_effect}, the plan {step.side_effect}"
            elif step.writes and not step.is_pivot and not contract.compensates_by:
                why = f"{step.tool} does not say how it is undone"
            else:
                continue
            says = f"Step {step.step_id} cannot be undone: {why}."
            yield Check(rule=Rule.COMPENSATABLE, verdict=Verdict.BROKEN, path=(step.step_id,), says=says)

    def _pivot(self) -> Iterator[Check]:
        found = clashes(self._moves)
        for pivot, late in found:
            yield self._broken(Rule.PIVOT, (pivot, late), clash_text(pivot, late), advice(self._legal))
        if not found:
            final = tuple(step.step_id for step in self.steps if step.is_pivot)
            says = "all that may refuse is over before these start" if final else "every step can be undone"
            yield Check(rule=Rule.PIVOT, verdict=Verdict.HOLDS, path=final, says=says)

    def _states(self) -> Iterator[Check]:
        wrong = list(states.conflicts(self.order, self._objects))
        for path, says, orders in wrong:
            if orders is None:
                yield self._broken(Rule.STATES, path, says, advice(self._legal, "leave one of them out"))
                continue
            first, second = orders
            needs = self.steps[self.order.step_ids.index(second)].needs
            yield Check(
                rule=Rule.STATES,
                verdict=Verdict.BROKEN,
                path=path,
                says=says,
                legal_needs={second: (*needs, first)},
                advice=f"Let step {second} need step {first}.",
            )
        if not wrong:
            yield from self._seen(Rule.STATES, states.findings(self._objects), "no step asks for a state")

    def _amounts(self) -> Iterator[Check]:
        accounts = amounts.accounts_of(self.steps, self.contracts, self._objects)
        wrong = list(amounts.conflicts(accounts))
        for path, says, right in wrong:
            yield self._broken(Rule.AMOUNTS, path, says, right, reorder=False)
        if not wrong:
            found = amounts.findings(accounts, self.steps, self.contracts, self._objects)
            yield from self._seen(Rule.AMOUNTS, found, "no amount is taken")

    def _undo_known(self) -> Iterator[Check]:
        by_way: dict[Settling, list[str]] = {}
        for step in self._undoable():
            by_way.setdefault(settling_of(self.contracts[step.tool]), []).append(step.step_id)
        local = tuple(by_way.pop(Settling.TRANSACTION, ()))
        if local or not by_way:
            says = "arguments and output are stored with the effect" if local else "nothing is ever undone"
            yield Check(rule=Rule.UNDO_KNOWN, verdict=Verdict.HOLDS, path=local, says=says)
        for way, steps in by_way.items():
            says = _SETTLES[way].format(steps=" and ".join(steps))
            yield Check(rule=Rule.UNDO_KNOWN, verdict=Verdict.AT_RUN_TIME, path=tuple(steps), says=says)

    def _graded(self) -> Iterator[Check]:
        for step in self.steps:
            if step.late:
                sources = sorted(late_sources(step.arguments, step.late))
                says = (
                    f"{', '.join(step.late)} of step {step.step_id} is known after {', '.join(sources)}: it is graded"
                    " then, and waits for a person if its duty is not NONE"
                )
                path = (*sources, step.step_id)
                yield Check(rule=Rule.GRADED, verdict=Verdict.AT_RUN_TIME, path=path, says=says)

    def _undoable(self) -> Iterator[Call]:
        return (s for s in self.steps if s.writes and not s.is_pivot and s.tool in self.contracts)

    def _broken(self, rule: Rule, path: tuple[str, ...], says: str, right: str, *, reorder: bool = True) -> Check:
        legal = self._legal if reorder else ()
        return Check(rule=rule, verdict=Verdict.BROKEN, path=path, says=says, legal_order=legal, advice=right)

    @staticmethod
    def _seen(rule: Rule, found: Sequence["tuple[bool, tuple[str, ...], str]"], nothing: str) -> Iterator[Check]:
        for certain, path, says in found:
            verdict = Verdict.HOLDS if certain else Verdict.AT_RUN_TIME
            yield Check(rule=rule, verdict=verdict, path=path, says=says)
        if not found:
            yield Check(rule=rule, verdict=Verdict.HOLDS, path=(), says=nothing)
