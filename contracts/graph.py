"""The steps of an intent as a graph: who comes after whom, decided by needs and bindings."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from contracts.base import JsonObject
from contracts.binding import Binding
from contracts.tool import AnyContract


class Waiting(Protocol):
    """Anything with an id that waits for others."""

    @property
    def step_id(self) -> str:
        """Its own id."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of what it waits for."""
        ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True)
class Node:
    """A step with everything it waits for: `needs` holds the ids of bound steps too."""

    step_id: str
    contract: AnyContract
    arguments: JsonObject
    needs: tuple[str, ...]
    bindings: tuple[Binding, ...]
    fallback: "Node | None" = None
    """What may stand for it; it has the same needs."""


def ordered(nodes: Sequence[W], rank: Mapping[str, int] | None = None) -> list[W]:
    """Sort topologically; of those that may come next the lowest `rank` comes first (default: the order posted).

    Nodes on a cycle, and all that wait for them, are left out. Every need has to be the id of a node.
    """
    place = rank or {node.step_id: index for index, node in enumerate(nodes)}
    known = {node.step_id: node for node in nodes}
    missing = {node.step_id: len(set(node.needs)) for node in nodes}
    dependants: dict[str, list[str]] = {node.step_id: [] for node in nodes}
    for node in nodes:
        for need in set(node.needs):
            dependants[need].append(node.step_id)
    ready = [(place[step_id], step_id) for step_id, count in missing.items() if count == 0]
    heapq.heapify(ready)
    result: list[W] = []
    while ready:
        _, step_id = heapq.heappop(ready)
        result.append(known[step_id])
        for dependant in dependants[step_id]:
            missing[dependant] -= 1
            if missing[dependant] == 0:
                heapq.heappush(ready, (place[dependant], dependant))
    return result


def cycle_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Name the steps of one cycle, each waiting for the next and the last for the first; empty when there is none."""
    free = {node.step_id for node in ordered(nodes)}
    stuck = {node.step_id: node for node in nodes if node.step_id not in free}
    if not stuck:
        return ()
    trail: list[str] = []
    current = next(iter(stuck))
    while current not in trail:
        trail.append(current)
        current = next(need for need in stuck[current].needs if need in stuck)
    return tuple(trail[trail.index(current) :])


def ancestors_of(nodes: Sequence[Waiting]) -> dict[str, frozenset[str]]:
    """Tell for each step everything that is over before it starts; `nodes` is in topological order."""
    result: dict[str, frozenset[str]] = {}
    for node in nodes:
        result[node.step_id] = frozenset(node.needs).union(*(result[need] for need in node.needs))
    return result


def direct_needs(nodes: Sequence[Node]) -> dict[str, frozenset[str]]:
    """Drop every need that another need implies; `nodes` is in topological order."""
    before = ancestors_of(nodes)
    return {node.step_id: frozenset(node.needs).difference(*(before[need] for need in node.needs)) for node in nodes}
