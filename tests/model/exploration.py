"""Every way that a small saga can go, with two stores: the rows survive, the saga's memory may be lost.

A world is the reducer's state, the commands that are under way, the state at the last completed workflow task, and
the database. From each world every next thing is tried: an activity acts on the database, its answer arrives, a
workflow task completes, a worker dies (memory and commands fall back to the last completed task, the rows stay),
somebody cancels, decides or resolves, time runs out, an operator terminates or resets the run while old activities
are still on their way. Worlds are compared by content, so that loops close and no counter bounds a run's length.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from contracts.envelope import Cause, IntentReport, StepState
from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import Cancellation, IntentPhase, ParkReason
from tests.model.database import Claim, Database, FakeDatabase, resolution
from workflows import commands as do
from workflows import events as on
from workflows import reducer
from workflows.state import Stage, State

CANCEL = Cancellation(reason="enough", requested_by="tester")
Key = tuple[object, ...]


def state_key(state: State) -> Key:
    """All that can make a difference to what the reducer does next."""
    return (
        state.stage,
        state.cause,
        state.cancellation is not None,
        state.past_pivot,
        state.parked,
        state.stale,
        state.epoch,
        state.plan is not None,
        state.ask.undecided,
        state.ask.denied,
        tuple(
            (step.state, step.transaction_id, (step.output or {}).get("value"), step.error is not None)
            for step in state.steps.values()
        ),
        state.report.outcome if state.report else None,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """A reducer state, compared by content."""

    key: Key
    state: State = field(compare=False)

    @classmethod
    def of(cls, state: State) -> "Memory":
        """Wrap a state."""
        return cls(state_key(state), state)


@dataclass(frozen=True, slots=True)
class Flight:
    """A command under way; `answered` once the database has acted and the answer has not arrived yet."""

    name: str
    step_id: str = ""
    argument: str = ""
    claim: Claim | None = None
    answered: Key | None = None
    event: on.Event | None = field(default=None, compare=False)

    def answer(self, event: on.Event, key: Key) -> "Flight":
        """Note what the database said."""
        return replace(self, event=event, answered=key)


Flights = frozenset[Flight]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that can make a difference to what happens next."""

    memory: Memory
    flights: Flights
    durable: Memory
    durable_flights: Flights
    run: int
    zombies: Flights
    """Activities of ended runs and of workers thought dead, still able to act."""
    database: Database
    ends_left: int
    late_left: int


@dataclass(frozen=True, slots=True)
class Case:
    """What is explored: a plan and how much of the outside world."""

    name: str
    plan: Plan
    cancels: bool = True
    crashes: bool = True
    refusals: bool = True
    ends: int = 0
    """How often the run may be terminated or reset from outside."""
    late: int = 0
    """How often a worker that was thought dead goes on with what it had begun."""
    undo_refusals: bool = True
    reads: tuple[str, ...] = ("",)
    """What a step that only reads may find."""


@dataclass
class Found:
    """The outcome of an exploration."""

    name: str
    states: int = 0
    edges: int = 0
    finals: int = 0
    complete: bool = True
    violations: list[str] = field(default_factory=list[str])


class Violation(Exception):  # noqa: N818 - what a broken promise is called here
    """A promise of the design is broken."""


class Exploration:
    """Breadth first through all worlds of a case."""

    def __init__(self, case: Case, database: Callable[[Plan], FakeDatabase] = FakeDatabase) -> None:
        """Prepare a case; another `database` makes another build."""
        self.case = case
        self.plan = case.plan
        self.fake = database(case.plan)
        self._numbers: dict[object, int] = {}

    def run(self, states_max: int, violations_max: int = 3) -> Found:
        """Explore; stop at the bounds. A path that leads to a violation is told with it."""
        found = Found(self.case.name)
        first = self._first()
        start = self._key(first)
        parents: dict[Key, tuple[Key, str] | None] = {start: None}
        edges: list[tuple[Key, Key]] = []
        finals: list[Key] = []
        queue = deque([(start, first)])
        while queue and len(found.violations) < violations_max:
            here, world = queue.popleft()
            if self._is_final(world):
                finals.append(here)
            try:
                for label, after in self._next(world):
                    there = self._key(after)
                    edges.append((here, there))
                    if there not in parents:
                        parents[there] = (here, label)
                        queue.append((there, after))
                        self._check(after)
            except Violation as violation:
                found.violations.append(f"{violation} after {' / '.join(_path(parents, here))}")
            if len(parents) > states_max:
                found.complete = False
                break
        found.states, found.edges, found.finals = len(parents), len(edges), len(finals)
        if found.complete and not found.violations:
            found.violations += _dead_ends(parents, edges, finals)
        return found

    def _key(self, world: World) -> Key:
        """Name a world by small numbers: comparing whole worlds is slow."""
        number = self._number
        return (
            number(world.memory.key),
            number(world.flights),
            number(world.durable.key),
            number(world.durable_flights),
            number(world.zombies),
            number(world.database),
            world.run,
            world.ends_left,
            world.late_left,
        )

    def _number(self, part: object) -> int:
        return self._numbers.setdefault(part, len(self._numbers))

    def _first(self) -> World:
        memory, flights = self._begun(1)
        return World(memory, flights, memory, flights, 1, frozenset(), Database(), self.case.ends, self.case.late)

    def _begun(self, run: int) -> tuple[Memory, Flights]:
        state, commands = reducer.begin()
        return Memory.of(state), frozenset(self._flight(command, state, run) for command in commands)

    def _is_final(self, world: World) -> bool:
        return world.durable.state.stage is Stage.FINISHED and bool(
            world.database.phase and world.database.phase.is_final
        )

    # --- what can happen ------------------------------------------------------------------------------------------

    def _next(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._late(world)
        if world.durable.state.stage is Stage.FINISHED:
            if not (world.database.phase and world.database.phase.is_final):
                yield "sweep", self._again(replace(world, run=world.run + 1))
            return
        alone = sum(flight.name != "ask" for flight in world.flights) == 1
        for flight in world.flights:
            if flight.name == "ask":
                yield "the time to decide seems over", self._take(world, on.ApprovalDue(), ended=flight)
            elif flight.answered is not None:
                yield f"answer: {_name(flight)}", self._deliver(world, flight)
            else:
                for label, database, answered in self._act(world, flight):
                    acted = replace(world, flights=world.flights - {flight} | {answered}, database=database)
                    if not alone:
                        yield label, acted
                        continue
                    # Nothing else is under way whose answer could come first: act and answer are one.
                    yield label, self._deliver(acted, answered)
                    if self.case.crashes and database != world.database:
                        yield f"{label}, then a crash", _crashed(acted)
        yield from self._people(world)
        yield from self._outside(world)

    def _late(self, world: World) -> Iterator[tuple[str, World]]:
        for zombie in world.zombies:
            for label, database, _ in self._act(world, zombie):
                after = replace(world, zombies=world.zombies - {zombie}, database=database)
                yield f"late: {label}", self._without_stale(after)

    def _outside(self, world: World) -> Iterator[tuple[str, World]]:
        """Tasks complete, workers die, runs are ended and started again, the clock moves."""
        if self.fake.gated and not world.database.expired:
            yield "expiry", replace(world, database=replace(world.database, expired=True))
        if (world.durable.key, world.durable_flights) != (world.memory.key, world.flights):
            if self.case.crashes:
                yield "crash", _crashed(world)
            if world.late_left and (late := _able(world.flights)):
                gone = replace(_crashed(world), zombies=world.zombies | late, late_left=world.late_left - 1)
                yield "crash, but the old worker goes on", gone
            rests = all(flight.name == "ask" for flight in world.flights)
            if rests or (self.case.crashes and all(flight.answered is None for flight in world.flights)):
                yield "task completed", replace(world, durable=world.memory, durable_flights=world.flights)
        if world.ends_left and world.memory.state.stage is not Stage.FINISHED:
            yield from self._ended(world)

    def _ended(self, world: World) -> Iterator[tuple[str, World]]:
        """An operator terminates the run, and another begins or goes on from the last task."""
        running = world.zombies | _able(world.flights)
        run = world.run + 1
        ended = self._without_stale(replace(world, run=run, zombies=running, ends_left=world.ends_left - 1))
        begun = self._again(ended)
        yield "terminated, new run", begun
        if world.durable.key != begun.memory.key:
            again = frozenset(
                replace(flight, claim=replace(flight.claim, run=run)) if flight.claim else flight
                for flight in world.durable_flights
            )
            yield "reset to the last task", replace(ended, memory=world.durable, flights=again, durable_flights=again)

    def _again(self, world: World) -> World:
        """Begin a run from its first task."""
        begun, flights = self._begun(world.run)
        return replace(world, memory=begun, flights=flights, durable=begun, durable_flights=flights)

    def _without_stale(self, world: World) -> World:
        """Forget old activities that can do nothing any more."""
        database = world.database
        able = frozenset(
            flight
            for flight in world.zombies
            if flight.name == "admit" or flight.claim == Claim(database.owner, database.epoch)
        )
        return replace(world, zombies=able) if able != world.zombies else world

    def _people(self, world: World) -> Iterator[tuple[str, World]]:
        state = world.memory.state
        if state.stage is Stage.FINISHED:
            return
        if self.case.cancels and state.cancellation is None:
            yield "cancel", self._take(world, on.CancelRequested(CANCEL))
        names = {flight.name for flight in world.flights}
        claim = Claim(world.run, state.epoch)
        if self.fake.gated and state.plan is not None and "decide" not in names:
            for verdict in ("approve", "deny"):
                for step_id in ("", *sorted(self.fake.gated if len(self.fake.gated) > 1 else ())):
                    said = Flight("decide", step_id, verdict, claim)
                    if self.fake.would_decide(world.database, verdict, step_id or None):
                        yield f"{verdict} {step_id}", replace(world, flights=world.flights | {said})
        if state.stage is Stage.PARKED and "resolve" not in names:
            for verb, stuck in [*self.fake.verbs(world.database), ("again", None)]:
                said = Flight("resolve", stuck or "", verb, claim)
                yield f"resolve {verb} {stuck or ''}", replace(world, flights=world.flights | {said})

    # --- an activity acts on the database -------------------------------------------------------------------------

    def _act(self, world: World, flight: Flight) -> Iterator[tuple[str, Database, Flight]]:
        """Every way in which one activity can end, each with the database after it."""
        name, database = _name(flight), world.database
        open_run = world.run if world.durable.state.stage is not Stage.FINISHED else 0
        for label, refuse, read in self._wishes(database, flight):
            try:
                after, event, key = self._do(database, flight, refuse=refuse, read=read, open_run=open_run)
            except SagaError as error:
                if flight.name == "execute":
                    event = on.StepRefused(flight.step_id, error.info)
                elif flight.name == "compensate":
                    event = on.CompensationRefused(flight.step_id, error.info)
                elif error.reason is Reason.RUN_STALE:
                    event = on.RunStale()
                else:
                    raise Violation(f"{name} raised {error.reason}") from error
                yield f"{name}: {error.reason}", database, flight.answer(event, ("error", error.reason))
            else:
                yield f"{name}{label}", after, flight.answer(event, key)

    def _wishes(self, database: Database, flight: Flight) -> Iterator[tuple[str, bool, str]]:
        if flight.name == "execute":
            reads = flight.step_id not in self.fake.writes
            for value in self.case.reads if reads else ("",):
                yield f" = {value}" if value else "", False, value
            assert flight.claim is not None
            if (
                self.case.refusals
                and self.plan.by_id[flight.step_id].may_refuse
                and self.fake.executes(database, flight.claim, flight.step_id)
            ):
                yield "", True, ""
            return
        yield "", False, ""
        if flight.name == "compensate" and self.case.undo_refusals:
            row = database.row(flight.step_id)
            closing = database.phase is IntentPhase.CLOSING and database.parked is None
            if row is not None and row.state == "LANDED" and closing:
                yield "", True, ""

    def _do(  # noqa: PLR0911 - one return for each activity
        self, database: Database, flight: Flight, *, refuse: bool, read: str, open_run: int
    ) -> tuple[Database, on.Event, Key]:
        fake, claim = self.fake, flight.claim
        if flight.name == "admit":
            assert claim is not None
            after, standing = fake.admit(database, claim.run, open_run=open_run)
            return after, on.Admitted(standing), (after, standing.duplicate)
        assert claim is not None
        match flight.name:
            case "execute":
                after, result = fake.execute(database, claim, flight.step_id, flight.argument, refuse=refuse, read=read)
                return after, on.StepLanded(result), ("landed", result.transaction_id, read)
            case "compensate":
                self._check_order(database, flight.step_id)
                after, undone = fake.compensate(database, claim, flight.step_id, refuse=refuse)
                return after, on.StepCompensated(undone), ("undone",)
            case "close":
                after, closed = fake.close(database, claim, Cause(flight.argument))
                return after, on.IntentClosed(closed), ("closed", after)
            case "settle":
                after, standing = fake.settle(database, claim)
                return after, on.Admitted(standing), ("settled", after)
            case "park":
                stuck = tuple(filter(None, flight.step_id.split(",")))
                after, standing = fake.park(database, claim, ParkReason(flight.argument), stuck)
                return after, on.Admitted(standing), ("parked", after)
            case "decide":
                after, answer = fake.decide(database, claim, flight.argument, flight.step_id or None)
                return after, on.DecisionAdmitted(answer), ("decided", answer.accepted, after)
            case "resolve":
                repeat = flight.argument == "again"
                verb = "forward" if repeat else flight.argument
                after, taken = fake.resolve(database, claim, verb, flight.step_id or None, repeat=repeat)  # type: ignore[arg-type]
                said = resolution(verb, flight.step_id or None)  # type: ignore[arg-type]
                return after, on.Resolved(said, taken), ("resolved", taken.accepted, after)
            case name:
                raise AssertionError(name)

    # --- an answer arrives ----------------------------------------------------------------------------------------

    def _deliver(self, world: World, flight: Flight) -> World:
        world = self._without_stale(world)
        event = flight.event
        assert event is not None
        if isinstance(event, on.Resolved) and world.memory.state.stage is not Stage.PARKED:
            return replace(world, flights=world.flights - {flight})
        if isinstance(event, on.RunStale) and flight.name in ("decide", "resolve"):
            event = on.RunDoubted()
        return self._take(world, event, ended=flight)

    def _take(self, world: World, event: on.Event, ended: Flight | None = None) -> World:
        state, commands = reducer.advance(world.memory.state, event)
        flights = world.flights - {ended} if ended else world.flights
        for command in commands:
            if isinstance(command, do.Finish):
                self._check_finish(world.database, command, command.report)
                continue
            flight = self._flight(command, state, world.run)
            self._check_command(flights, flight, state)
            flights |= {flight}
        if state.stage is not Stage.AWAITING_APPROVAL:
            flights = frozenset(flight for flight in flights if flight.name != "ask")
        return replace(world, memory=Memory.of(state), flights=flights)

    def _flight(self, command: do.Command, state: State, run: int) -> Flight:  # noqa: C901, PLR0911 - one for each
        claim = Claim(run, state.epoch)
        match command:
            case do.Admit():
                return Flight("admit", claim=Claim(run, 0))
            case do.Ask():
                return Flight("ask")
            case do.Execute(step_id, arguments):
                return Flight("execute", step_id, str(arguments.get("value", "")), claim)
            case do.CloseIntent(cause):
                return Flight("close", "", cause.value, claim)
            case do.Compensate(step_id):
                return Flight("compensate", step_id, "", claim)
            case do.Settle():
                return Flight("settle", claim=claim)
            case do.Park(reason, detail):
                return Flight(
                    "park", ",".join(step["step_id"] for step in detail.get("steps", [])), reason.value, claim
                )
            case do.Lookup():
                raise AssertionError("no tool of the model is remote")
            case do.Grade():
                raise AssertionError("no step of the model is graded late")
            case do.AwaitStep():
                raise AssertionError("no plan of the model is open")
            case do.Finish():
                raise AssertionError("a saga's end is no activity")

    # --- what must hold -------------------------------------------------------------------------------------------

    def _check(self, world: World) -> None:
        stage = world.memory.state.stage
        if stage not in (Stage.FINISHED, Stage.PARKED) and not world.flights - {
            flight for flight in world.flights if flight.name in ("decide", "resolve")
        }:
            raise Violation(f"stuck in {stage}")
        rows = world.database.rows
        if len({row.step_id for row in rows}) != len(rows):
            raise Violation("a step landed twice")

    def _check_command(self, flights: Flights, flight: Flight, state: State) -> None:
        names = [other.name for other in flights]
        if any(other.name == flight.name and other.step_id == flight.step_id for other in flights):
            raise Violation(f"{_name(flight)} is asked for twice at once")
        if flight.name in ("close", "compensate", "settle", "park") and "execute" in names:
            raise Violation(f"{_name(flight)} while a step runs")
        if flight.name in ("execute", "settle", "park", "close") and "compensate" in names:
            raise Violation(f"{_name(flight)} while a compensation runs")
        if flight.name in ("execute", "compensate") and {"close", "settle", "park", "admit"} & set(names):
            raise Violation(f"{_name(flight)} while {names} run")
        going_forward = all(step.state is StepState.DONE for step in state.steps.values())
        if flight.name == "settle" and going_forward and state.cancellation is not None and not state.past_pivot:
            raise Violation("a cancel that was taken is forgotten")

    def _check_finish(self, database: Database, finish: do.Finish, report: IntentReport) -> None:
        phase = database.phase
        if phase is None or report.outcome is not phase.outcome:
            raise Violation(f"the saga says {report.outcome}, the database {phase}")
        if finish.duplicate:
            return
        live = frozenset(database.live())
        if phase is IntentPhase.COMMITTED and live != self.fake.writes:
            raise Violation(f"COMMITTED with {sorted(live)} live")
        if phase in (IntentPhase.COMPENSATED, IntentPhase.NOT_APPLIED) and live:
            raise Violation(f"{phase} with {sorted(live)} live")
        if phase is IntentPhase.NOT_APPLIED and any(row.state == "COMPENSATED" for row in database.rows):
            raise Violation("NOT_APPLIED after something was compensated")

    def _check_order(self, database: Database, step_id: str) -> None:
        """Reverse of the dependency order, and of the landing order on one object."""
        live = database.live()
        if step_id not in live:
            return
        mine = set(self.plan.by_id[step_id].resources)
        later = live[live.index(step_id) + 1 :]
        builds_on = self.plan.dependents[step_id] & set(live)
        sharing = {other for other in later if mine & set(self.plan.by_id[other].resources)}
        if builds_on | sharing:
            raise Violation(f"{step_id} is compensated before {sorted(builds_on | sharing)}")


def _able(flights: Flights) -> Flights:
    """Activities that have not acted yet."""
    return frozenset(flight for flight in flights if flight.answered is None and flight.name != "ask")


def _crashed(world: World) -> World:
    return replace(world, memory=world.durable, flights=world.durable_flights)


def _name(flight: Flight) -> str:
    return " ".join(filter(None, (flight.name, flight.argument, flight.step_id)))


def _path(parents: dict[Key, tuple[Key, str] | None], here: Key) -> list[str]:
    labels: list[str] = []
    while (step := parents[here]) is not None:
        here, label = step
        labels.append(label)
    return labels[::-1]


def _dead_ends(
    parents: dict[Key, tuple[Key, str] | None], edges: list[tuple[Key, Key]], finals: list[Key]
) -> list[str]:
    """Tell the worlds from which no end can be reached."""
    before: dict[Key, list[Key]] = {}
    for here, there in edges:
        before.setdefault(there, []).append(here)
    reaches = set(finals)
    queue = deque(finals)
    while queue:
        for earlier in before.get(queue.popleft(), []):
            if earlier not in reaches:
                reaches.add(earlier)
                queue.append(earlier)
    lost = [world for world in parents if world not in reaches]
    return [f"no end can be reached after {' / '.join(_path(parents, world))}" for world in lost[:3]]
