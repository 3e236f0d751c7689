"""What an exploration goes through: worlds, the case they belong to, and what was found."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from contracts.plan import Plan
from tests.model.rows import Flight, Weather

if TYPE_CHECKING:
    from array import array

Flights = tuple[Flight, ...]


class World(NamedTuple):
    """Everything that can make a difference to what happens next; memories and databases by their numbers."""

    memory: int
    flights: Flights
    durable: int
    durable_flights: Flights
    late: Flights
    """Activities of ended runs and of workers thought dead, still able to act."""
    database: int


Step = tuple[str, World]


@dataclass(frozen=True, slots=True)
class Case:
    """What is explored: a plan, what may happen to its activities, and what else may happen."""

    name: str
    plan: Plan
    weather: Weather = field(default_factory=Weather)
    cancels: bool = True
    crashes: bool = True
    ends: bool = False
    """The run may be terminated or reset from outside, again and again."""
    late: int = 0
    """How many activities may be on their way at once that nobody waits for any more."""
    overlap: bool = False
    """Something else may happen between an activity's act and its answer, also while others are under way."""
    foreign: bool = False
    """Another workflow may have claimed the intent before."""

    @property
    def bounds(self) -> str:
        """What is in it, for people."""
        weather = self.weather
        remote = self.plan.is_remote
        told = {
            "refused": weather.refusals,
            "compensation refused": weather.refused_compensations,
            "verify mismatch": weather.mismatches,
            "unknown landed / not landed / late": weather.unsure and remote,
            "keys unknown downstream": remote and not weather.knows_keys,
            "switched off / overdue": weather.switched_off,
            "cancel": self.cancels,
            "approve / deny / expire": bool(self.plan.gated_steps),
            "crash": self.crashes,
            f"{self.late} late": self.late > 0,
            "ended / reset / adopted": self.ends,
            "answers overlap": self.overlap,
            "duplicate": self.foreign,
        }
        return ", ".join(word for word, is_in in told.items() if is_in)


@dataclass
class Found:
    """The outcome of an exploration."""

    name: str
    states: int = 0
    edges: int = 0
    finals: int = 0
    complete: bool = True
    violations: list[str] = field(default_factory=list[str])


def told(what: str, parents: list[tuple[int, str]], here: int) -> str:
    """A violation with the shortest way to it, one step a line."""
    labels: list[str] = []
    while here > 0:
        here, label = parents[here]
        labels.append(label)
    return "\n".join([what, *(f"    {number}. {label}" for number, label in enumerate(reversed(labels), 1))])


def dead_ends(states: int, befores: "array[int]", afters: "array[int]", finals: list[int]) -> list[int]:
    """List the worlds from which no end can be reached, though nothing more goes wrong and nobody cancels."""
    before: list[list[int]] = [[] for _ in range(states)]
    for here, there in zip(befores, afters, strict=True):
        before[there].append(here)
    reaches = bytearray(states)
    queue = deque(finals)
    for world in finals:
        reaches[world] = 1
    while queue:
        for earlier in before[queue.popleft()]:
            if not reaches[earlier]:
                reaches[earlier] = 1
                queue.append(earlier)
    return [world for world in range(states) if not reaches[world]]
