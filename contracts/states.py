"""Declared states, simulated: every object goes through its steps, in each order in which they may run."""

from collections.abc import Iterator
from itertools import combinations

from contracts.objects import Objects
from contracts.prefixes import Order
from contracts.soundness import Touch

Path = tuple[str, ...]
Finding = tuple[bool, Path, str]
"""True when it is certain before anything runs, the steps, and what is so."""
_Uses = list[tuple[int, Touch]]


Conflict = tuple[Path, str, tuple[str, str] | None]
"""The steps, what is wrong, and which of two that nothing puts into an order could legally come first."""


def conflicts(order: Order, objects: Objects) -> Iterator[Conflict]:
    """List where a step would meet an object in a state that it does not take, by what the plan itself does."""
    for name, uses in _by_object(order, objects).items():
        races = list(_races(order, name, uses))
        yield from races or _clashes(order, objects, name, uses)


def findings(objects: Objects) -> list[Finding]:
    """Say of each object what its steps ask for and when that is looked at; there are no conflicts."""
    found: list[Finding] = []
    asked: dict[str, list[tuple[str, Touch]]] = {}
    for step_id, touches in objects.touches.items():
        for touch in touches:
            if touch.states:
                asked.setdefault(touch.name, []).append((step_id, touch))
    for name, uses in asked.items():
        path = tuple(step_id for step_id, _ in uses)
        words = ", ".join(f"{step_id} needs {_words(touch.states)}{_left(touch)}" for step_id, touch in uses)
        made = objects.made.get(name)
        if made is not None:
            found.append((True, path, f"{name}: {made.maker} makes it {made.declared.state}, {words}"))
        else:
            when = "when admitted, and again " if ":" in name else ""
            found.append((False, path, f"{name}: {words}; looked at {when}in the transaction of each"))
    return found


def _by_object(order: Order, objects: Objects) -> dict[str, _Uses]:
    found: dict[str, _Uses] = {}
    for number, step_id in enumerate(order.step_ids):
        for touch in objects.touches[step_id]:
            found.setdefault(touch.name, []).append((number, touch))
    return found


def _races(order: Order, name: str, uses: _Uses) -> Iterator[Conflict]:
    """Find two independent steps on the object of which one changes its state: nothing says what the other meets."""
    for (one, mine), (other, theirs) in combinations(uses, 2):
        if order.before[other] >> one & 1 or not _disturbs(mine, theirs):
            continue
        first, second = order.step_ids[one], order.step_ids[other]
        legal = (first, second) if _follows(mine, theirs) else (second, first) if _follows(theirs, mine) else None
        says = (
            f"Steps {first} and {second} use {name}, one of them changes its state, and nothing says which comes first."
        )
        yield (first, second), says, legal


def _disturbs(one: Touch, other: Touch) -> bool:
    """True when it matters which comes first; one that only reads minds nothing but what it does not take."""
    if one.reads or other.reads:
        return not (_follows(one, other) and _follows(other, one))
    return one.leaves is not None or other.leaves is not None


def _follows(first: Touch, second: Touch) -> bool:
    left = first.after(frozenset())
    return left is not None and second.after(left) is not None


def _clashes(order: Order, objects: Objects, name: str, uses: _Uses) -> Iterator[Conflict]:
    """Follow the object through its steps in the plan's order."""
    made = objects.made.get(name)
    known = frozenset({made.declared.state}) if made is not None else frozenset[str]()
    by = made.maker if made is not None else None
    for number, touch in uses:
        step_id = order.step_ids[number]
        after = touch.after(known)
        if after is None:
            path = (step_id,) if by is None else (by, step_id)
            left = f"step {by} leaves it {_words(known)}" if by else f"it is {_words(known)} by then"
            yield path, f"Step {step_id} needs {name} {_words(touch.states)}, but {left}.", None
            after = touch.states if touch.leaves is None else frozenset({touch.leaves})
        if touch.leaves is not None:
            by = step_id
        known = after


def _left(touch: Touch) -> str:
    return f" and leaves {touch.leaves}" if touch.leaves is not None else ""


def _words(states: frozenset[str]) -> str:
    return " or ".join(sorted(states))
