"""Failure prefixes: which steps may have landed when something goes wrong, as sets closed under what steps wait for.

Independent steps run in parallel, so a plan has more prefixes than steps: a chain of n has n, n independent steps have
2^n - 1. A set of steps is one integer here, bit i for the i-th step of the plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from contracts.graph import Waiting

PREFIXES_MAX: Final = 300
Mask = int
"""A set of steps: bit i is set for the i-th step of the plan."""


class Ordered(Waiting, Protocol):
    """A step as far as prefixes are concerned."""

    @property
    def writes(self) -> bool:
        """True when a landed step leaves an effect."""
        ...

    @property
    def is_pivot(self) -> bool:
        """True when nothing before it may be compensated once it landed."""
        ...

    @property
    def stands_for(self) -> str | None:
        """The step whose fallback it is."""
        ...


@dataclass(frozen=True)
class Order:
    """Who waits for whom, through any number of steps; all sets are masks, in the plan's order.

    `needs` names steps and never their fallbacks, which land in their place; `before` and `after` name both.
    """

    step_ids: tuple[str, ...]
    needs: tuple[Mask, ...]
    before: tuple[Mask, ...]
    after: tuple[Mask, ...]
    writes: Mask
    irreversible: Mask
    places: tuple[Mask, ...]
    """For each step itself and whatever else may land in its place."""
    fallbacks: Mask

    @classmethod
    def of(cls, steps: Sequence[Ordered]) -> "Order":
        """Read the order off the steps, which are in topological order."""
        index = {step.step_id: number for number, step in enumerate(steps)}
        needs = tuple(mask_of(index[need] for need in step.needs) for step in steps)
        before = list(needs)
        after = [0] * len(steps)
        places = [1 << number for number in range(len(steps))]
        for number, step in enumerate(steps):
            if step.stands_for is not None:
                places[number] = places[index[step.stands_for]] = 1 << number | 1 << index[step.stands_for]
        for number, direct in enumerate(needs):
            for need in bits(direct):
                before[number] |= before[need] | places[need]
            for earlier in bits(before[number]):
                after[earlier] |= 1 << number
        return cls(
            step_ids=tuple(index),
            needs=needs,
            before=tuple(before),
            after=tuple(after),
            writes=mask_of(number for number, step in enumerate(steps) if step.writes),
            irreversible=mask_of(number for number, step in enumerate(steps) if step.is_pivot),
            places=tuple(places),
            fallbacks=mask_of(number for number, step in enumerate(steps) if step.stands_for is not None),
        )

    @property
    def whole(self) -> Mask:
        """All steps."""
        return (1 << len(self.step_ids)) - 1

    def met(self, landed: Mask) -> Mask:
        """These, and all in whose place one of them landed."""
        return landed if not self.fallbacks else mask_of(bit for n in bits(landed) for bit in bits(self.places[n]))

    def completed(self, landed: Mask) -> Mask:
        """All that has landed in the end: these, and of all other places the step itself."""
        return landed | self.whole & ~self.fallbacks & ~self.met(landed)

    def startable(self, landed: Mask) -> Iterator[int]:
        """Number the steps that may run when exactly these have landed; of a fallback its step did not."""
        met = self.met(landed)
        for number, needs in enumerate(self.needs):
            if not met >> number & 1 and not needs & ~met:
                yield number

    def is_past(self, number: int) -> bool:
        """True when a step runs only after something that cannot be undone, whichever way the plan goes."""
        final = self.before[number] & self.irreversible
        return any(not self.places[other] & ~self.irreversible for other in bits(final))

    def names(self, steps: Mask) -> tuple[str, ...]:
        """Name the steps, in the plan's order."""
        return tuple(self.step_ids[number] for number in bits(steps))

    def undo(self, landed: Mask) -> tuple[tuple[str, ...], ...]:
        """Group what is compensated: each group after the one before it, the steps of a group beside each other."""
        groups: list[tuple[str, ...]] = []
        live = landed & self.writes
        while live:
            free = [number for number in bits(live) if not self.after[number] & live]
            groups.append(tuple(self.step_ids[number] for number in reversed(free)))
            live &= ~mask_of(free)
        return tuple(groups)


def prefixes(order: Order, at_most: int = PREFIXES_MAX) -> tuple[tuple[Mask, ...], bool]:
    """List the sets that may have landed when not all have, the smallest first; False when there are more.

    Of more than `at_most` the smallest and the largest are listed, half of each.
    """
    rising = list(islice(_unfinished(order, _sets(order, (0,), _grown)), at_most + 1))
    if len(rising) <= at_most:
        return tuple(rising), True
    half = at_most // 2
    ends = dict.fromkeys(order.completed(some) for some in _some_of(order.fallbacks))
    falling = list(islice(_unfinished(order, _sets(order, ends, _shrunk)), half))
    return tuple(dict.fromkeys((*rising[: at_most - half], *reversed(falling)))), False


def _unfinished(order: Order, sets: Iterator[Mask]) -> Iterator[Mask]:
    """Leave out those in which nothing is left to fail."""
    return (landed for landed in sets if order.met(landed) != order.whole)


def _some_of(steps: Mask) -> Iterator[Mask]:
    """Go through all subsets; the empty one first."""
    some = 0
    while True:
        yield some
        some = (some - steps) & steps
        if not some:
            return


def _sets(order: Order, start: Iterable[Mask], steps_of: Callable[[Order, Mask], Iterator[Mask]]) -> Iterator[Mask]:
    """Go through all sets that can be reached from these, those nearest to them first."""
    layer: dict[Mask, None] = dict.fromkeys(start)
    while layer:
        yield from layer
        layer = dict.fromkeys(following for mask in layer for following in steps_of(order, mask))


def _grown(order: Order, landed: Mask) -> Iterator[Mask]:
    for number in order.startable(landed):
        yield landed | 1 << number


def _shrunk(order: Order, landed: Mask) -> Iterator[Mask]:
    for number in bits(landed):
        if not order.after[number] & landed:
            yield landed & ~(1 << number)


def mask_of(numbers: Iterable[int]) -> Mask:
    """Put steps into a set."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def bits(mask: Mask) -> Iterator[int]:
    """Number the steps of a set, in the plan's order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
