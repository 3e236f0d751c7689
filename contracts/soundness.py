"""The order of a plan: compensatable steps, then at most one pivot, then only steps that cannot refuse.

A write that cannot be undone may run only when nothing that could still say no is left. Over a graph this is one rule:
every step that may refuse is over before any irreversible step starts, except the irreversible step itself. Two
irreversible steps that may refuse break it in both directions: two pivots.
Source of the rule: the pivot of Garcia-Molina & Salem, Sagas (1987), as refined by Mehrotra et al. (1992).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.graph import ancestors_of

SEARCH_MAX: Final = 2_000
"""How many orders are begun before the search for a legal one gives up."""


@dataclass(frozen=True)
class Touch:
    """An object that a step needs in one of `states` (none named: in any) and leaves in `leaves` (None: as it is)."""

    name: str
    states: frozenset[str]
    leaves: str | None = None
    reads: bool = False

    def after(self, known: frozenset[str]) -> frozenset[str] | None:
        """Give the states it may be in afterwards, `known` being those before (none: unknown); None: it refuses."""
        met = known & self.states if known and self.states else known or self.states
        if known and not met:
            return None
        return met if self.leaves is None else frozenset({self.leaves})


@dataclass(frozen=True)
class Move:
    """A step as far as its place in the order is concerned; `bound` are the needs that no reordering can drop."""

    step_id: str
    needs: tuple[str, ...]
    bound: tuple[str, ...]
    may_refuse: bool
    is_irreversible: bool
    touches: tuple[Touch, ...] = ()
    makes: tuple[tuple[str, str], ...] = ()
    """Names of the objects that it brings into the world, each with its first state."""


def clashes(moves: Sequence[Move]) -> list[tuple[str, str]]:
    """List each irreversible step with each that may still refuse when it starts; `moves` in topological order."""
    before = ancestors_of(moves)
    return [
        (pivot.step_id, late.step_id)
        for pivot in moves
        if pivot.is_irreversible
        for late in moves
        if late.may_refuse and late is not pivot and late.step_id not in before[pivot.step_id]
    ]


def clash_text(pivot: str, late: str) -> str:
    """Say what is wrong with such a pair."""
    return f"Step {late} may refuse after step {pivot}, which cannot be undone, has landed."


def advice(legal: Sequence[str], otherwise: str = "post them as several intents") -> str:
    """Say what to do about an unsound order."""
    return f"Legal order: {', '.join(legal)}." if legal else f"No order of these steps is safe; {otherwise}."


def legal_order(posted: Sequence[Move]) -> tuple[str, ...]:
    """Find an order, one step after another, that keeps bindings, the rule and the declared states; drops other needs.

    Steps stay as posted where they can, irreversible ones come as late as they can. Empty: there is none, or none was
    found among the first `SEARCH_MAX`.
    """
    return _Search(posted).order()


class _Search:
    """Depth first, the next step of lowest rank first; a step is placed only where it may stand."""

    def __init__(self, posted: Sequence[Move]) -> None:
        self._moves = sorted(posted, key=_lateness)
        self._begun = 0

    def order(self) -> tuple[str, ...]:
        """Give the first order that is legal."""
        return self._placed((), {}) or ()

    def _placed(self, line: tuple[str, ...], states: Mapping[str, frozenset[str]]) -> tuple[str, ...] | None:
        if len(line) == len(self._moves):
            return line
        for move in self._moves:
            if move.step_id in line or not set(move.bound) <= set(line) or not self._is_safe(move, line):
                continue
            after = _touched(move, states)
            if after is None:
                continue
            self._begun += 1
            if self._begun > SEARCH_MAX:
                return None
            found = self._placed((*line, move.step_id), after)
            if found is not None:
                return found
        return None

    def _is_safe(self, move: Move, line: tuple[str, ...]) -> bool:
        """True unless the step cannot be undone and something else could still refuse after it."""
        return not move.is_irreversible or all(
            other.step_id in line or not other.may_refuse for other in self._moves if other is not move
        )


def _touched(move: Move, states: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]] | None:
    """Give the states of all objects after the step; None when one of them is in no state that it takes."""
    after = dict(states)
    for touch in move.touches:
        left = touch.after(after.get(touch.name, frozenset()))
        if left is None:
            return None
        after[touch.name] = left
    after.update({name: frozenset({state}) for name, state in move.makes})
    return after


def _lateness(move: Move) -> int:
    if not move.is_irreversible:
        return 0
    return 1 if move.may_refuse else 2
