"""The real reducer on the model database, driven to one prefix and through one fault: where does it come to rest?"""

from collections.abc import Iterable

from contracts.ends import Fault, Way
from contracts.envelope import Outcome
from contracts.plan import Plan
from contracts.reasons import Reason
from tests.model.database import FakeDatabase
from tests.model.rows import Answer, Flight
from tests.model.saga import CANCEL, Saga
from workflows import commands as do
from workflows.state import Stage, State


class Drive:
    """One saga with one database; what is under way is answered when the test says so."""

    def __init__(self, plan: Plan) -> None:
        """Admit the plan."""
        self.fake = FakeDatabase(plan)
        self.saga = Saga(plan)
        self.database = self.fake.empty()
        self.flights: list[do.Command] = []
        self.undone: list[tuple[str, ...]] = []
        self.finished: Outcome = Outcome.PENDING
        self._memory, (command,) = self.saga.begin()
        self._answer(command)
        self._admitted: tuple[int, list[do.Command]] = self._memory, list(self.flights)

    @property
    def state(self) -> State:
        """What the saga remembers."""
        return self.saga.states[self._memory]

    def live(self) -> tuple[str, ...]:
        """Steps whose effect stands."""
        return self.fake.live(self.database)

    def number(self, step_id: str) -> int:
        """The transaction id of a step, in landing order where steps share an object."""
        return self.fake.number(self.database, step_id)

    def running(self) -> list[str]:
        """Steps that have been started and not answered."""
        return [flight.step_id for flight in self.flights if isinstance(flight, do.Execute)]

    def land(self, step_id: str) -> None:
        """Let a running step land, and its answer arrive."""
        command = next(flight for flight in self.flights if _step_of(flight) == step_id)
        self.flights.remove(command)
        self._answer(command)

    def refuse(self, step_id: str, reason: Reason = Reason.WRONG_STATE) -> None:
        """Let a running step say no; of its own accord, or for a reason that no other call helps against."""
        self.flights = [flight for flight in self.flights if _step_of(flight) != step_id]
        self._take(("refused", step_id, reason))

    def act(self, step_id: str) -> None:
        """Let a running step land, and its answer be lost."""
        command = next(flight for flight in self.flights if _step_of(flight) == step_id)
        flight = self.saga.flight(command, self._memory)
        self.database = next(self.fake.acts[flight.name](self.database, flight)).database

    def reach(self, landed: Iterable[str]) -> None:
        """Let exactly these steps land, in the order in which they are started."""
        wanted = set(landed)
        others = self.fake.plan.fallbacks
        while wanted:
            step_id = next(one for one in self.running() if one in wanted or others.get(one) in wanted)
            if step_id in wanted:
                wanted.remove(step_id)
                self.land(step_id)
            else:
                self.refuse(step_id)

    def lose_memory(self) -> None:
        """Kill the worker: memory and commands are those of the last completed task, the rows stay."""
        self._memory, self.flights = self._admitted[0], list(self._admitted[1])

    def cancel(self) -> None:
        """Ask for the way back."""
        self._take(CANCEL)

    def rest(self, *, others_land: bool) -> None:
        """Answer everything until the saga rests; what still runs lands, or else refuses."""
        for _ in range(1_000):
            if not self.flights or self.state.stage is Stage.PARKED:
                return
            compensations = [flight for flight in self.flights if isinstance(flight, do.Compensate)]
            if compensations:
                self._compensate(compensations)
            elif running := self.running():
                self.land(running[0]) if others_land else self.refuse(running[0])
            else:
                self._answer(self.flights.pop())
        raise AssertionError("the saga never rests")

    def _compensate(self, compensations: list[do.Compensate]) -> None:
        self.undone.append(tuple(flight.step_id for flight in compensations))
        self.flights = [flight for flight in self.flights if not isinstance(flight, do.Compensate)]
        for flight in compensations:
            self._answer(flight)

    def _answer(self, command: do.Command) -> None:
        if isinstance(command, do.Finish):
            self.finished = command.report.outcome
            return
        flight: Flight = self.saga.flight(command, self._memory)
        outcome = next(self.fake.acts[flight.name](self.database, flight))
        self.database = outcome.database
        self._take(outcome.answer)

    def _take(self, answer: Answer) -> None:
        self._memory, commands = self.saga.advance(self._memory, answer)
        self.flights += commands


def drive(plan: Plan, landed: Iterable[str], step_id: str, fault: Fault, way: Way) -> Drive:
    """Bring a saga to a prefix with a step running, let the fault happen and go the given way to its end."""
    saga = Drive(plan)
    saga.reach(landed)
    if (first := plan.by_id[step_id].stands_for) is not None:
        saga.refuse(first)
    assert step_id in saga.running()
    if fault is Fault.CANCEL:
        saga.cancel()
    if fault is Fault.CRASH:
        if first is not None and way is Way.FORWARD:
            saga.act(step_id)
        saga.lose_memory()
    elif way in (Way.BACK, Way.STUCK):
        saga.refuse(step_id, Reason.DEADLINE_EXCEEDED)
    elif way is Way.INSTEAD:
        saga.refuse(step_id)
    else:
        saga.land(step_id)
    saga.rest(others_land=way in (Way.FORWARD, Way.STUCK, Way.INSTEAD, Way.FIRST))
    return saga


def _step_of(command: do.Command) -> str | None:
    return command.step_id if isinstance(command, do.Execute) else None
