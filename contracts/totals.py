"""What a plan moves in all, in each currency and in rows: splitting a large step into small ones changes nothing.

What a step takes from an object that an earlier step made is that step's: a hold and its capture, a deletion and its
purge count once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from contracts.base import as_array
from contracts.intent import binding_of
from contracts.late import makes
from contracts.objects import argument
from contracts.proposal import ProposedStep
from contracts.tool import AnyContract

ROWS: Final = "rows"
"""The unit of what is counted; currencies are written in capitals."""


class Totals:
    """The sums of the steps that were added."""

    def __init__(self, steps: Sequence[ProposedStep]) -> None:
        """Know the steps that may make what others take from."""
        self._steps = {step.step_id: step for step in steps}
        self._sums: dict[str | None, int] = {}
        self._covered: dict[tuple[str, str | None], int] = {}

    def add(self, step: ProposedStep) -> None:
        """Add what a step moves and touches."""
        if not step.contract.writes:
            return
        use = step.contract.amount
        taken_from = (use.taken_from,) if use is not None and use.taken_from is not None else ()
        self._add(step, currency_of(step), cents_of(step), taken_from)
        self._add(step, ROWS, rows_of(step), (each.argument for each in step.contract.resources))

    def with_others(self, step: ProposedStep, unit: str | None, size: int) -> int:
        """What the plan comes to with a step, if the step has part in it at all; what only reads is on its own."""
        return max(size, self._sums.get(unit, 0)) if size and step.contract.writes else size

    def maker(self, step: ProposedStep, name: str) -> ProposedStep | None:
        """Find the step that makes the object which an argument binds to."""
        bound = binding_of(argument(step, name))
        source = self._steps.get(bound[0]) if bound is not None else None
        return source if source is not None and makes(source.contract, kind_of(step.contract, name)) else None

    def _add(self, step: ProposedStep, unit: str | None, size: int, sources: Iterable[str]) -> None:
        if size == 0:
            return
        counted = 0
        for maker in {found.step_id for name in sources if (found := self.maker(step, name)) is not None}:
            part = min(size - counted, self._covered.get((maker, unit), 0))
            self._covered[maker, unit] = self._covered.get((maker, unit), 0) - part
            counted += part
        self._covered[step.step_id, unit] = size
        self._sums[unit] = self._sums.get(unit, 0) + size - counted


def kind_of(contract: AnyContract, name: str | None) -> str | None:
    """The kind of object that an argument names; None when it names none."""
    return next((use.kind for use in contract.resources if use.argument == name), None)


def cents_of(step: ProposedStep) -> int:
    """How much a step moves; 0 when it moves nothing, or when it is not known yet."""
    use = step.contract.amount
    amount = argument(step, use.argument) if use else None
    return amount if isinstance(amount, int) else 0


def currency_of(step: ProposedStep) -> str | None:
    """In what a step moves its amount; None when it moves nothing, or when it is not known yet."""
    use = step.contract.amount
    currency = argument(step, use.currency) if use else None
    return currency if isinstance(currency, str) else None


def rows_of(step: ProposedStep) -> int:
    """How many rows a step touches at most; 0 when it does not say, or when it is not known yet."""
    value = argument(step, step.contract.rows_argument)
    if (items := as_array(value)) is not None:
        return len(items)
    return value if isinstance(value, int) else 0
