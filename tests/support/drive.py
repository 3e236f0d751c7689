"""The real reducer on the model database, driven to one prefix and through one fault: where does it come to rest?"""

from collections.abc import Iterable

from contracts.ends import Fault, Way
from contracts.envelope import Outcome
from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import Cancellation
from tests.model.database import Claim, Database, FakeDatabase
from workflows import commands as do
from workflows import events as on
from workflows.reducer import advance, begin
from workflows.state import Stage, State

NO = SagaError(Reason.WRONG_STATE, "no").info
CLAIM = Claim(run=0, epoch=1)


class Drive:
    """One saga with one database; what is under way is answered when the test says so."""

    def __init__(self, plan: Plan) -> None:
        """Admit the plan."""
        self.fake = FakeDatabase(plan)
        self.database = Database()
        self.flights: list[do.Command] = []
        self.undone: list[tuple[str, ...]] = []
        self.finished: Outcome = Outcome.PENDING
        self.state, _ = begin()
        self.database, standing = self.fake.admit(self.database, 0, open_run=0)
        self._take(on.Admitted(standing))
        self._admitted: tuple[State, list[do.Command]] = self.state, list(self.flights)

    def running(self) -> list[str]:
        """Steps that have been started and not answered."""
        return [flight.step_id for flight in self.flights if isinstance(flight, do.Execute)]

    def land(self, step_id: str) -> None:
        """Let a running step land, and its answer arrive."""
        self.flights = [flight for flight in self.flights if _step_of(flight) != step_id]
        self.database, result = self.fake.execute(self.database, CLAIM, step_id)
        self._take(on.StepLanded(result))

    def refuse(self, step_id: str) -> None:
        """Let a running step say no."""
        self.flights = [flight for flight in self.flights if _step_of(flight) != step_id]
        self._take(on.StepRefused(step_id, NO))

    def reach(self, landed: Iterable[str]) -> None:
        """Let exactly these steps land, in the order in which they are started."""
        wanted = set(landed)
        while wanted:
            step_id = next(step_id for step_id in self.running() if step_id in wanted)
            wanted.remove(step_id)
            self.land(step_id)

    def lose_memory(self) -> None:
        """Kill the worker: memory and commands are those of the last completed task, the rows stay."""
        self.state, self.flights = self._admitted[0], list(self._admitted[1])

    def cancel(self) -> None:
        """Ask for the way back."""
        self._take(on.CancelRequested(Cancellation(requested_by="tester")))

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
            self.database, done = self.fake.compensate(self.database, CLAIM, flight.step_id)
            self._take(on.StepCompensated(done))

    def _answer(self, command: do.Command) -> None:
        match command:
            case do.CloseIntent(cause):
                self.database, closed = self.fake.close(self.database, CLAIM, cause)
                self._take(on.IntentClosed(closed))
            case do.Settle():
                self.database, standing = self.fake.settle(self.database, CLAIM)
                self._take(on.Admitted(standing))
            case do.Park(reason, detail):
                stuck = tuple(step["step_id"] for step in detail.get("steps", []))
                self.database, standing = self.fake.park(self.database, CLAIM, reason, stuck)
                self._take(on.Admitted(standing))
            case do.Finish(report):
                self.finished = report.outcome
            case _:
                raise AssertionError(command)

    def _take(self, event: on.Event) -> None:
        self.state, commands = advance(self.state, event)
        self.flights += commands


def drive(plan: Plan, landed: Iterable[str], step_id: str, fault: Fault, way: Way) -> Drive:
    """Bring a saga to a prefix with a step running, let the fault happen and go the given way to its end."""
    saga = Drive(plan)
    saga.reach(landed)
    assert step_id in saga.running()
    if fault is Fault.CANCEL:
        saga.cancel()
    if fault is Fault.CRASH:
        saga.lose_memory()
    elif way in (Way.BACK, Way.STUCK):
        saga.refuse(step_id)
    else:
        saga.land(step_id)
    saga.rest(others_land=way in (Way.FORWARD, Way.STUCK))
    return saga


def _step_of(command: do.Command) -> str | None:
    return command.step_id if isinstance(command, do.Execute) else None
