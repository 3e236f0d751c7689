"""Random sagas in random weather, one seed a run: `python -m tests.model.simulation [--runs N] [--seed S]`.

The exploration takes a remote call for one act; here it is what it is: an attempt is committed, a request travels, is
lost, doubled, delayed or overtaken, the downstream writes its own book, the reply travels back, its worker may be dead
or only thought dead. The clock is a number, the rates of all faults are drawn anew for each run, and after a while
nothing more goes wrong: then every saga has to come to its end. Judged by the rules of the exploration and by the book.
"""

import heapq
import sys
import time
from pathlib import Path
from typing import Final

from contracts.tool import Dispatch
from tests.model import rules
from tests.model.calls import Calls
from tests.model.rows import Answer, Flight
from tests.model.rules import ViolationError
from tests.model.saga import CANCEL, DUE
from tests.model.weather import CALM_AFTER_SECONDS, PATIENCE_SECONDS, SECONDS_MAX, Act, Running
from workflows import commands as do
from workflows.state import Stage

RUNS: Final = 3_000
REGRESSIONS: Final = Path(__file__).with_name("seeds.txt")


class Simulation(Calls):
    """One run."""

    def run(self) -> None:
        """Go to the end. Raises ViolationError."""
        self._begin()
        for after in (5.0, 60.0):
            self.at(self.chance.random() * after, self._outside)
        self.at(self.chance.random() * 200, self._expire)
        while self._queue and not self._is_over():
            self.now, _, happens = heapq.heappop(self._queue)
            if self.now > SECONDS_MAX:
                raise ViolationError(f"no end after {SECONDS_MAX} s: {self._stage()}, {self.database}")
            happens()
        if not self._is_over():
            raise ViolationError(f"nothing happens any more: {self._stage()}, {self.database}")
        self._judge()

    def _stage(self) -> Stage:
        return self.saga.states[self.memory].stage

    def _is_over(self) -> bool:
        phase = self.database.phase
        return self.saga.states[self.durable].stage is Stage.FINISHED and bool(phase and phase.is_final)

    # --- the saga ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.memory, commands = self.saga.begin()
        self.durable, self.durable_flights = self.memory, ()
        self._start(commands)
        self.durable_flights = tuple(one.flight for one in self._heard())

    def _heard(self) -> list[Running]:
        return [one for one in self.running if one.heard]

    def _start(self, commands: tuple[do.Command, ...]) -> None:
        for command in commands:
            if isinstance(command, do.Finish):
                rules.check_finish(self.fake, self.database, command)
                continue
            flight = self.saga.flight(command, self.memory)
            rules.check_command(tuple(one.flight for one in self._heard()), flight, self.saga.states[self.memory])
            self._launch(flight)

    def _launch(self, flight: Flight) -> None:
        remote = bool(flight.step_id) and flight.name in ("execute", "look up", "compensate")
        acts = {"execute": self.execute, "look up": self.look_up, "compensate": self.compensate}
        if flight.name == "ask":
            act = self._ask()
        elif remote and self.fake.step(flight.step_id).dispatch is Dispatch.REMOTE:
            act = acts[flight.name](flight)
        else:
            act = self._simply(flight)
        one = Running(flight, act)
        self.running.append(one)
        self.at(self.wait(), lambda: self._resume(one))

    def _resume(self, one: Running) -> None:
        if one.dead:
            return
        one_wait: float | None = None
        try:
            one_wait = next(one.act)
        except StopIteration as stop:
            answer: Answer | None = stop.value
            self.at(self.wait(), lambda: self._answer(one, answer))
        else:
            self.at(one_wait, lambda: self._resume(one))

    def _answer(self, one: Running, answer: Answer | None) -> None:
        if one not in self.running or one.dead:
            return
        self.running.remove(one)
        if one.heard and answer is not None:
            if answer[0] == "resolved" and self._stage() is not Stage.PARKED:
                return
            self._take(answer, valid=one.flight.valid)
        self._outside()

    def _take(self, answer: Answer, *, valid: bool = True) -> None:
        self.memory, commands = self.saga.advance(self.memory, answer, valid=valid)
        self.say(f"    {answer[0]} -> {self._stage()} {commands}")
        self._start(commands)
        if self._stage() is not Stage.AWAITING_APPROVAL:
            for one in [one for one in self.running if one.flight.name == "ask"]:
                self.running.remove(one)
        waiting = [one for one in self._heard() if one.flight.name not in ("decide", "resolve")]
        if self._stage() not in (Stage.FINISHED, Stage.PARKED) and not waiting:
            raise ViolationError(f"stuck in {self._stage()}")
        if self._stage() is Stage.FINISHED or self.now > CALM_AFTER_SECONDS or self.chance.random() < 0.5:
            self.durable, self.durable_flights = self.memory, tuple(one.flight for one in self._heard())
        if self._stage() in (Stage.PARKED, Stage.AWAITING_APPROVAL):
            self.at(self.wait() * 5, self._people)

    # --- from outside -----------------------------------------------------------------------------------------------

    def _outside(self) -> None:
        if self.saga.states[self.durable].stage is Stage.FINISHED:
            return
        if self.happens(self.rates.cancel) and self.saga.states[self.memory].cancellation is None:
            self.say("cancel")
            self._take(CANCEL)
        if self.happens(self.rates.crash):
            self.say("crash")
            self._lose()
            self.memory = self.durable
            self._again(self.durable_flights)
        elif self.happens(self.rates.end):
            self.say("terminated, new run")
            self._lose()
            if self.database.owner == "current":
                self.database = self.database._replace(owner="old")
            for one in self.running:
                if one.flight.name == "admit":
                    one.dead = True
            self._begin()

    def _lose(self) -> None:
        """The worker dies, or is only thought dead: then its activities go on, and nobody hears them."""
        for one in self._heard():
            one.heard = False
            one.dead = not self.happens(self.rates.linger) or one.flight.name == "ask"
        self.running = [one for one in self.running if not one.dead]

    def _again(self, flights: tuple[Flight, ...]) -> None:
        for flight in flights:
            self._launch(flight)
        if self._stage() in (Stage.PARKED, Stage.AWAITING_APPROVAL):
            self.at(self.wait() * 5, self._people)

    def _expire(self) -> None:
        self.database = self.database._replace(expired=True)

    def _people(self) -> None:
        if any(one.flight.name in ("decide", "resolve") for one in self._heard()):
            return
        state = self.saga.states[self.memory]
        self.know()
        said: list[tuple[str, str, str]] = []
        if state.stage is Stage.AWAITING_APPROVAL:
            said = [("decide", "", self.chance.choice(("approve", "approve", "deny")))]
        elif state.stage is Stage.PARKED:
            said = [("resolve", step_id, verb) for verb, step_id in self.fake.verbs(self.database)]
            said = said or [("resolve", "", "again")]
            self.at(20.0, self._people)
        if said:
            name, step_id, verb = self.chance.choice(said)
            self._launch(Flight(name, step_id, verb, state.epoch == 1))

    def _simply(self, flight: Flight) -> Act:
        """An act of our database: one transaction."""
        yield self.wait()
        self.know()
        acting = self.valid(flight)
        outcomes = list(self.fake.acts[flight.name](self.database, acting))
        outcome = outcomes[0]
        if len(outcomes) > 1 and self.happens(self.rates.refuse):
            outcome = self.chance.choice(outcomes[1:])
        self.write(acting, outcome.database, outcome.label)
        if outcome.adopted:
            self._age(flight)
        if flight.name == "resolve":
            self._repair(flight)
        yield self.wait()
        if flight.name == "admit":
            for one in self.running:
                if one.flight is flight:
                    one.flight = flight._replace(valid=True)
        return outcome.answer

    def _repair(self, flight: Flight) -> None:
        """An operator who says that it is done has done it; who says `skip` has seen to it that it stays so."""
        for one in self.plan.steps:
            truth = self.row(one.step_id).truth
            if truth == "SHUT":
                self.book.shut.add(one.step_id)
            if truth == "BACK":
                self.book.back[one.step_id] = 1
        if flight.argument == "retry" and flight.step_id:
            self.attempts[flight.step_id].patience_until = self.now + PATIENCE_SECONDS

    def _age(self, but: Flight) -> None:
        self.memory, self.durable = self.saga.aged(self.memory), self.saga.aged(self.durable)
        self.durable_flights = tuple(flight._replace(valid=False) for flight in self.durable_flights)
        for one in self.running:
            if one.flight is not but:
                one.flight = one.flight._replace(valid=False)

    def _ask(self) -> Act:
        while not self.database.expired:
            yield 5.0
        return DUE

    # --- the end ----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Nothing was carried out twice, and what the book says is what the outcome says; also once all has arrived."""
        while self._queue:
            self.now, _, happens = heapq.heappop(self._queue)
            if self.now < CALM_AFTER_SECONDS + SECONDS_MAX:
                happens()
        self.know()
        if twice := [step_id for step_id, count in self.book.landed.items() if count > 1]:
            raise ViolationError(f"carried out twice: {', '.join(twice)}")
        rules.check_end(self.fake, self.database)


def simulate(seed: int) -> str | None:
    """Run one seed; return what went wrong, with the trace."""
    run = Simulation(seed)
    try:
        run.run()
    except (ViolationError, AssertionError, KeyError) as error:
        return f"seed {seed}: {error}\n" + "\n".join(run.trace[-60:])
    return None


def regressions() -> list[int]:
    """Seeds that once failed."""
    return [int(line.split()[0]) for line in REGRESSIONS.read_text().splitlines() if line and line[0] != "#"]


def main(arguments: list[str]) -> int:
    """Run the regressions and then fresh seeds; print the first seed, so that it can be run again."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    seed, runs = int(given.get("--seed", time.time_ns() % 10**9)), int(given.get("--runs", RUNS))
    failures = [failure for one in (*regressions(), *range(seed, seed + runs)) if (failure := simulate(one))]
    for failure in failures[:3]:
        _say(failure)
    _say(f"SIMULATION seed={seed} runs={runs} failures={len(failures)}")
    return 1 if failures else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - its report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
