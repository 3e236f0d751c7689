"""Every way that a small saga can go, with two stores and a downstream: rows survive, the saga's memory may be lost.

A world is the saga's memory, the commands under way, both at the last completed workflow task, activities that were
thought dead, and the database. From each world every next thing is tried: an activity acts on the database, its answer
arrives, a workflow task completes, a worker dies (memory and commands fall back to the last completed task, the rows
stay), somebody cancels, decides or resolves, time runs out, a request lands late, an operator terminates or resets the
run while old activities are still on their way. Worlds are canonical: claims are valid or stale and never numbered,
nothing is counted, so that loops close and no counter bounds a run's length.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator

from contracts.plan import Plan
from tests.model import rules
from tests.model.database import FakeDatabase
from tests.model.rows import Answer, Database, Flight, Outcome, Weather
from tests.model.rules import ViolationError
from tests.model.saga import CANCEL, DUE, Saga
from tests.model.worlds import Case, Flights, Found, Step, World, dead_ends, told
from workflows import commands as do
from workflows.state import Stage

MESSAGES = ("decide", "resolve")
VIOLATIONS_MAX = 3


class Exploration:
    """Breadth first through all worlds of a case."""

    def __init__(self, case: Case, database: Callable[[Plan, Weather], FakeDatabase] = FakeDatabase) -> None:
        """Prepare a case; another `database` makes another build."""
        self.case = case
        self.fake = database(case.plan, case.weather)
        self.saga = Saga(case.plan)
        self.databases: list[Database] = []
        self._numbers: dict[Database, int] = {}
        self._acts: dict[tuple[int, Flight], tuple[tuple[str, int, Answer, bool], ...]] = {}
        self._people: dict[tuple[int, int], tuple[Flight, ...]] = {}

    def run(self, states_max: int) -> Found:
        """Explore; stop at the bounds. The shortest way to a violation is told with it."""
        found = Found(self.case.name)
        first = self._first()
        numbers: dict[World, int] = {first: 0}
        parents: list[tuple[int, str]] = [(-1, "")]
        befores, afters = array("i"), array("i")
        finals: list[int] = []
        queue = deque([first])
        here, edges = -1, 0
        while queue and len(found.violations) < VIOLATIONS_MAX and len(numbers) <= states_max:
            world, here = queue.popleft(), here + 1
            if self._is_end(world):
                finals.append(here)
            try:
                for label, after in self.next(world):
                    there = numbers.setdefault(after, len(numbers))
                    if there == len(parents):
                        parents.append((here, label))
                        queue.append(after)
                        self._check(after)
                    edges += 1
                    if not rules.is_harm(label):
                        befores.append(here)
                        afters.append(there)
            except ViolationError as violation:
                found.violations.append(told(str(violation), parents, here))
        found.complete = not queue and not found.violations
        found.states, found.edges, found.finals = len(numbers), edges, len(finals)
        if found.complete:
            lost = dead_ends(len(numbers), befores, afters, finals)
            found.violations += [told("no end can be reached", parents, world) for world in lost[:VIOLATIONS_MAX]]
        return found

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _number(self, database: Database) -> int:
        number = self._numbers.setdefault(database, len(self.databases))
        if number == len(self.databases):
            self.databases.append(database)
        return number

    def stage(self, memory: int) -> Stage:
        """Where a memory is on its way."""
        return self.saga.states[memory].stage

    def _first(self) -> World:
        memory, flights = self._begun()
        return World(memory, flights, memory, flights, (), self._number(self.fake.empty()))

    def _begun(self) -> tuple[int, Flights]:
        memory, commands = self.saga.begin()
        return memory, tuple(self.saga.flight(command, memory) for command in commands)

    def _is_end(self, world: World) -> bool:
        """Final, or at rest until an operator acts, which every reader of the tables sees."""
        database = self.databases[world.database]
        return self.stage(world.durable) is Stage.FINISHED and (
            database.owner == "foreign" or bool(database.phase and database.phase.is_final)
        )

    # --- what can happen --------------------------------------------------------------------------------------------

    def next(self, world: World) -> Iterator[Step]:
        """Everything that can happen next."""
        if world.late:
            yield from self._late(world)
        database = self.databases[world.database]
        if self.stage(world.durable) is Stage.FINISHED:
            if not (database.owner == "foreign" or (database.phase and database.phase.is_final)):
                yield "sweep", self._again(world)
            return
        alone = sum(flight.name != "ask" for flight in world.flights) == 1
        for flight in world.flights:
            if flight.name == "ask":
                yield "the time to decide seems over", self.take(world, DUE, ended=flight)
            elif flight.answer is not None:
                yield f"answer of {flight.label}", self._deliver(world, flight)
            else:
                yield from self._acted(world, flight, at_once=alone or not self.case.overlap)
        yield from self._said(world)
        yield from self._outside(world, database)

    def act(self, database: int, flight: Flight) -> tuple[tuple[str, int, Answer, bool], ...]:
        """Every way in which an activity can end, each checked against what no act may do."""
        known = self._acts.get((database, flight))
        if known is None:
            before = self.databases[database]
            outcomes: list[Outcome] = list(self.fake.acts[flight.name](before, flight))
            for outcome in outcomes:
                rules.check_act(self.fake, before, flight, outcome)
            known = tuple((one.label, self._number(one.database), one.answer, one.adopted) for one in outcomes)
            self._acts[database, flight] = known
        return known

    def _acted(self, world: World, flight: Flight, *, at_once: bool) -> Iterator[Step]:
        """An activity acts; its answer arrives at once where nothing else could come before it."""
        for label, database, answer, adopted in self.act(world.database, flight):
            if adopted:
                acted = self._aged(world)._replace(database=database)
                claim = flight
            else:
                acted, claim = world if database == world.database else world._replace(database=database), flight
            told = claim._replace(answer=answer, valid=flight.valid or flight.name == "admit")
            if not at_once:
                yield label, acted._replace(flights=_with(_without(acted.flights, claim), told))
                continue
            yield label, self._deliver(acted, told, under_way=claim)
            if self.case.crashes and database != world.database:
                yield f"{label}, then a crash", self._crashed(acted)

    def _late(self, world: World) -> Iterator[Step]:
        for flight in world.late:
            acting = flight
            if flight.name == "admit":
                is_open = self.stage(world.durable) is not Stage.FINISHED
                acting = flight._replace(argument="late" if is_open else "late, alone")
            for label, database, _, adopted in self.act(world.database, acting):
                after = world._replace(late=_without(world.late, flight), database=database)
                yield f"late: {label}", self._tidy(self._aged(after) if adopted else after)

    def _outside(self, world: World, database: Database) -> Iterator[Step]:
        """Tasks complete, workers die, runs are ended and started again, requests land, the clock moves."""
        if self.fake.gated and not database.expired:
            yield "expiry", world._replace(database=self._number(database._replace(expired=True)))
        for label, after in self.fake.drift(database):
            yield label, world._replace(database=self._number(after))
        if (world.durable, world.durable_flights) != (world.memory, world.flights):
            if self.case.crashes:
                yield "crash", self._crashed(world)
                for flight in self._able(world) if len(world.late) < self.case.late else ():
                    gone = self._crashed(world)._replace(late=_with(world.late, flight))
                    yield f"crash, but {flight.label} goes on", self._tidy(gone)
            rests = all(flight.name == "ask" for flight in world.flights)
            if rests or (self.case.crashes and all(flight.answer is None for flight in world.flights)):
                yield "task completed", world._replace(durable=world.memory, durable_flights=world.flights)
        if self.case.foreign and database.phase is None:
            claims = rules.claimed_by_another(database)
            yield "another workflow claims it", world._replace(database=self._number(claims))
        if self.case.ends and self.stage(world.memory) is not Stage.FINISHED:
            yield from self._ended(world)

    def _ended(self, world: World) -> Iterator[Step]:
        """An operator terminates the run, and another begins or goes on from the last task."""
        for going in ((), *((flight,) for flight in self._able(world) if len(world.late) < self.case.late)):
            told = f", but {going[0].label} goes on" if going else ""
            ended = world._replace(late=_with(world.late, *going))
            begun = self._again(ended)
            yield f"terminated, new run{told}", self._tidy(begun)
            if world.durable != begun.memory:
                memory = self.saga.aged(world.durable)
                flights = tuple(sorted(_stale(flight) for flight in world.durable_flights))
                database = self._orphaned(world.database)
                reset = World(memory, flights, memory, flights, ended.late, database)
                yield f"reset to the last task{told}", self._tidy(reset)

    def _again(self, world: World) -> World:
        """Begin a run from its first task."""
        memory, flights = self._begun()
        return World(memory, flights, memory, flights, world.late, self._orphaned(world.database))

    def _orphaned(self, database: int) -> int:
        known = self.databases[database]
        return self._number(known._replace(owner="old")) if known.owner == "current" else database

    def _able(self, world: World) -> Flights:
        """Activities that have not acted yet, and could do something after their run."""
        owner = self.databases[world.database].owner
        return tuple(
            flight
            for flight in world.flights
            if flight.answer is None
            and flight not in world.late
            and (flight.valid or (flight.name == "admit" and owner != "current"))
        )

    def _tidy(self, world: World) -> World:
        """Forget late activities that can do nothing any more."""
        if not world.late:
            return world
        database = self.databases[world.database]
        is_final = bool(database.phase and database.phase.is_final)
        late = tuple(flight for flight in world.late if not is_final and (flight.valid or flight.name == "admit"))
        return world._replace(late=late)

    def _aged(self, world: World) -> World:
        """The claim moved: every other one is stale."""
        return World(
            self.saga.aged(world.memory),
            tuple(_stale(flight) for flight in world.flights),
            self.saga.aged(world.durable),
            tuple(_stale(flight) for flight in world.durable_flights),
            tuple(_stale(flight) for flight in world.late),
            world.database,
        )

    def _crashed(self, world: World) -> World:
        return world._replace(memory=world.durable, flights=world.durable_flights)

    def _said(self, world: World) -> Iterator[Step]:
        """What people say. A word that the database would not take is left out: it changes nothing."""
        state = self.saga.states[world.memory]
        if state.stage is Stage.FINISHED:
            return
        if self.case.cancels and state.cancellation is None:
            yield "cancel", self.take(world, CANCEL)
        if state.plan is None or any(flight.name in MESSAGES for flight in world.flights):
            return
        known = self._people.get((world.memory, world.database))
        if known is None:
            known = self._people[world.memory, world.database] = tuple(self._words(world))
        for said in known:
            if self.case.overlap:
                yield f"{said.label} is said", world._replace(flights=_with(world.flights, said))
            else:
                yield from self._acted(world, said, at_once=True)

    def _words(self, world: World) -> Iterator[Flight]:
        state, database = self.saga.states[world.memory], self.databases[world.database]
        valid = state.epoch == 1
        for verdict in ("approve", "deny") if self.fake.gated else ():
            for step_id in ("", *(sorted(self.fake.gated) if len(self.fake.gated) > 1 else ())):
                if self.fake.would_decide(database, verdict, step_id):
                    yield Flight("decide", step_id, verdict, valid)
        if state.stage is Stage.PARKED:
            for verb, step_id in [*self.fake.verbs(database), ("again", "")]:
                yield Flight("resolve", step_id, verb, valid)

    # --- an answer arrives ------------------------------------------------------------------------------------------

    def _deliver(self, world: World, told: Flight, under_way: Flight | None = None) -> World:
        answer = told.answer
        if answer is None:
            raise AssertionError("nothing was answered")
        if answer[0] == "resolved" and self.stage(world.memory) is not Stage.PARKED:
            return world._replace(flights=_without(world.flights, told))
        return self.take(world, answer, ended=under_way or told, valid=told.valid)

    def take(self, world: World, answer: Answer, ended: Flight | None = None, *, valid: bool = True) -> World:
        """Feed the reducer; check and take up its commands."""
        memory, commands = self.saga.advance(world.memory, answer, valid=valid)
        flights = world.flights if ended is None else _without(world.flights, ended)
        for command in commands:
            if isinstance(command, do.Finish):
                rules.check_finish(self.fake, self.databases[world.database], command)
                continue
            flight = self.saga.flight(command, memory)
            rules.check_command(flights, flight, self.saga.states[memory])
            flights = _with(flights, flight)
        stage = self.stage(memory)
        if stage is not Stage.AWAITING_APPROVAL:
            flights = tuple(flight for flight in flights if flight.name != "ask")
        if stage is Stage.FINISHED:
            flights = ()
        return world._replace(memory=memory, flights=flights)

    def _check(self, world: World) -> None:
        stage = self.stage(world.memory)
        if stage not in (Stage.FINISHED, Stage.PARKED) and not any(
            flight.name not in MESSAGES for flight in world.flights
        ):
            raise ViolationError(f"stuck in {stage}")


def _with(flights: Flights, *more: Flight) -> Flights:
    return tuple(sorted({*flights, *more}, key=_order)) if more else flights


def _without(flights: Flights, ended: Flight) -> Flights:
    return tuple(flight for flight in flights if flight != ended)


def _order(flight: Flight) -> tuple[object, ...]:
    return (*flight[:4], repr(flight.answer))


def _stale(flight: Flight) -> Flight:
    return flight._replace(valid=False) if flight.valid else flight
