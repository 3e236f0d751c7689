"""What a simulated saga stands on: a clock that is a number, chance, the tables, and the downstream's own book."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from tests.model import rules
from tests.model.cases import DIAMOND, PIVOT, SHARED, sent, sure
from tests.model.database import FakeDatabase
from tests.model.rows import Answer, Database, Flight, Outcome, Row, Weather
from tests.model.saga import Saga
from tests.support.plans import chain, plan, step

WINDOW_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 4.0
PATIENCE_SECONDS: Final = 30.0
CALM_AFTER_SECONDS: Final = 300.0
SECONDS_MAX: Final = 3_000.0
PLANS: Final = (
    chain("a", "b", "c"),
    chain("a", "b", gated=["b"]),
    sent(chain("a", "b")),
    sent(chain("a", "b"), cancel_by_key=True),
    sure(sent(chain("a", "b", "c", pivots=["b"]), "b"), "c"),
    sent(plan(step("a"), step("b", effect=PIVOT))),
    sent(SHARED),
    sent(DIAMOND, "b", "c"),
    sent(chain("a", gated=["a"], pivots=["a"])),
)
Act = Generator[float, None, Answer | None]


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each thing goes wrong in one run."""

    drop: float
    double: float
    refuse: float
    crash: float
    linger: float
    end: float
    cancel: float
    silent: float

    @classmethod
    def drawn(cls, chance: random.Random) -> "Rates":
        """Draw them: each is absent in a third of all runs."""
        names = (0.5, 0.3, 0.3, 0.15, 0.5, 0.05, 0.05, 0.5)
        return cls(*(0.0 if chance.random() < 1 / 3 else chance.random() * most for most in names))


@dataclass(slots=True)
class Attempt:
    """What the tables hold of an attempt beside its state."""

    sends: int = 0
    in_flight_until: float = 0.0
    patience_until: float = 0.0
    closing: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """An activity under way; `heard` while somebody waits for its answer, `dead` when its worker is."""

    flight: Flight
    act: Act
    heard: bool = True
    dead: bool = False


@dataclass(slots=True)
class Book:
    """The downstream's own: what was carried out, given back, and shut for good."""

    knows_keys: bool
    landed: Counter[str] = field(default_factory=Counter[str])
    back: Counter[str] = field(default_factory=Counter[str])
    shut: set[str] = field(default_factory=set[str])
    refused: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    travelling: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Requests on their way, by step and sending."""

    def carry_out(self, step_id: str, sending: int, *, refuses: bool) -> str:
        """Answer a request; a copy of one that was refused is refused."""
        if step_id in self.shut or (step_id, sending) in self.refused:
            return "refused"
        if not (self.landed[step_id] and self.knows_keys):
            if refuses:
                self.refused.add((step_id, sending))
                return "refused"
            self.landed[step_id] += 1
        return "landed"

    def truth(self, step_id: str) -> str:
        """What is true of a step."""
        if self.landed[step_id]:
            return "BACK" if self.back[step_id] else "LANDED"
        if step_id in self.shut:
            return "SHUT"
        flies = any(count and one[0] == step_id and one not in self.refused for one, count in self.travelling.items())
        return "FLYING" if flies else ""


class Ground:
    """Clock, chance, tables and book of one run."""

    def __init__(self, seed: int) -> None:
        """Draw a plan and the weather."""
        self.chance = random.Random(seed)  # noqa: S311 - a seed is wanted
        self.plan = self.chance.choice(PLANS)
        knows_keys = self.chance.random() < 2 / 3
        self.fake = FakeDatabase(self.plan, Weather(refusals=True, refused_compensations=True, knows_keys=knows_keys))
        self.saga = Saga(self.plan)
        self.rates = Rates.drawn(self.chance)
        self.book = Book(knows_keys)
        self.now = 0.0
        self.trace: list[str] = []
        self.database = self.fake.empty()
        self.attempts = {step.step_id: Attempt() for step in self.plan.steps}
        self.running: list[Running] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.memory = self.durable = 0
        self.durable_flights: tuple[Flight, ...] = ()

    # --- time -------------------------------------------------------------------------------------------------------

    def at(self, after: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + after, self._number, happens))

    def happens(self, rate: float) -> bool:
        return self.now < CALM_AFTER_SECONDS and self.chance.random() < rate

    def wait(self) -> float:
        return self.chance.random() * self.chance.choice((0.1, 1.0, 3.0))

    def say(self, what: str) -> None:
        self.trace.append(f"{self.now:8.2f} {what}")

    # --- the tables -------------------------------------------------------------------------------------------------

    def know(self) -> None:
        """Note the book's truth beside the rows, where the rules look for it."""
        for one in self.plan.steps:
            if one.is_remote and self.fake.row(self.database, one.step_id).truth != self.book.truth(one.step_id):
                self.database = self.fake.put(self.database, one.step_id, truth=self.book.truth(one.step_id))

    def write(self, flight: Flight, after: Database, label: str) -> None:
        rules.check_act(self.fake, self.database, flight, Outcome(label, after, ()))
        self.say(f"{flight.label}: {label}")
        self.database = after

    def row(self, step_id: str) -> Row:
        return self.fake.row(self.database, step_id)

    def put(self, flight: Flight, label: str, **changes: object) -> None:
        self.know()
        self.write(flight, self.fake.put(self.database, flight.step_id, **changes), label)

    def valid(self, flight: Flight) -> Flight:
        """The flight as it stands: its claim may have become stale on the way."""
        for one in self.running:
            if one.flight == flight:
                return one.flight
        return flight._replace(valid=False) if flight.name != "admit" else flight
