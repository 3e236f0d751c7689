"""A database with the rules of the real one and nothing else, and the downstream that remote steps are sent to.

What `activities` does in SQL, as pure functions over plain tuples: each act is one atomic transition with every way in
which it can end. Compared with the real SQL by `tests/integration`.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

from contracts.envelope import Cause
from contracts.reasons import Reason
from contracts.saga import IntentPhase, ParkReason
from contracts.tool import Dispatch
from tests.model.downstream import Downstream
from tests.model.people import People
from tests.model.rows import COMPENSATED, Answer, Database, Flight, Outcome


class FakeDatabase(Downstream, People):
    """All acts, for one plan in one weather."""

    @cached_property
    def acts(self) -> dict[str, Callable[[Database, Flight], Iterator[Outcome]]]:
        """Every activity by its name. A new command of the reducer gets its line here."""
        return {
            "admit": self.admit,
            "execute": self.execute,
            "look up": self.look_up,
            "compensate": self.compensate,
            "close": self.close,
            "settle": self.settle,
            "park": self.park,
            "decide": self.decide,
            "resolve": self.resolve,
        }

    # --- admission --------------------------------------------------------------------------------------------------

    def admit(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Claim, repeat or adopt. `argument`: "late" from a run that is ended, "late, alone" when no run is open."""
        is_late, is_alone = flight.argument.startswith("late"), flight.argument == "late, alone"
        mine = "old" if is_late else "current"
        if database.phase is None:
            claimed = database._replace(phase=IntentPhase.ADMITTED, owner=mine)
            yield Outcome("admit", claimed, self.standing(claimed))
        elif database.owner == "foreign" or (is_late and database.owner == "current" and not is_alone):
            yield Outcome("admit: duplicate", database, self.standing(database, duplicate=True))
        elif database.phase.is_final or (database.owner == mine and not is_late):
            yield Outcome("admit: known", database, self.standing(database))
        else:
            adopted = database._replace(owner=mine, parked=ParkReason.INTERRUPTED, stuck=())
            yield Outcome("admit: adopts", adopted, self.standing(adopted), adopted=True)

    # --- the barrier ------------------------------------------------------------------------------------------------

    def execute(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Land a step, or answer what its key says."""
        step_id, step = flight.step_id, self.step(flight.step_id)
        if reason := self.asleep(database, flight):
            yield self.refused(database, flight, reason)
        elif not step.writes:
            yield from self._read(database, flight)
        elif step.dispatch is Dispatch.REMOTE:
            yield from self.send(database, flight)
        elif reason := self.stored(database, flight):
            yield self.refused(database, flight, reason)
        elif self.row(database, step_id).effect:
            yield self.lands(database, flight, "again")
        elif not self.approves(database, step_id):
            yield self.refused(database, flight, Reason.APPROVAL_MISSING)
        elif (fenced := self.fenced(database, step_id)) is None:
            yield self.refused(database, flight, Reason.SUPERSEDED)
        else:
            yield self.lands(self.put(fenced, step_id, effect="LANDED", value=flight.argument), flight)
            yield from self._refusals(database, flight)

    def _refusals(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """All of it is rolled back."""
        if self.weather.refusals and self.step(flight.step_id).may_refuse:
            yield self.refused(database, flight, Reason.WRONG_STATE)
        if self.weather.mismatches:
            yield self.refused(database, flight, Reason.MISMATCH)
        if self.weather.switched_off:
            yield self.refused(database, flight, Reason.KILL_SWITCH_ON)
            yield self.refused(database, flight, Reason.DEADLINE_EXCEEDED)

    def _read(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        row = self.row(database, flight.step_id)
        if row.attempt == "READ":
            yield Outcome(f"{flight.label}: again", database, ("landed", flight.step_id, None, row.value))
            return
        for value in self.weather.reads:
            after = self.put(database, flight.step_id, attempt="READ", value=value)
            yield Outcome(f"{flight.label}: {value or 'is read'}", after, ("landed", flight.step_id, None, value))
        if self.weather.refusals and self.step(flight.step_id).may_refuse:
            yield self.refused(database, flight, Reason.WRONG_STATE)

    # --- compensation -----------------------------------------------------------------------------------------------

    def compensate(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Undo a landed step once, fence one of our database that never landed."""
        step_id, row, step = flight.step_id, self.row(database, flight.step_id), self.step(flight.step_id)
        remote = step.dispatch is Dispatch.REMOTE
        done: Answer = ("undone", step_id)
        if reason := self.asleep(database, flight):
            yield self._not_undone(database, flight, reason)
        elif row.undone or row.effect in COMPENSATED:
            yield Outcome(f"{flight.label}: again", database, done)
        elif remote and row.effect != "LANDED":
            yield self._not_undone(database, flight, Reason.OUTCOME_UNKNOWN)
        elif database.phase is not IntentPhase.CLOSING:
            yield self._not_undone(database, flight, Reason.SUPERSEDED)
        elif row.effect != "LANDED":
            yield Outcome(f"{flight.label}: fenced", self.put(database, step_id, effect="TOMBSTONE", undone=True), done)
        else:
            back = "BACK" if remote else ""
            after = self.put(database, step_id, effect="COMPENSATED", undone=True, truth=back)
            yield Outcome(flight.label, after, done)
            if self.weather.refused_compensations:
                yield self._not_undone(database, flight, Reason.WRONG_STATE)
            if remote and self.weather.unsure:
                for truth in {row.truth, "BACK"}:
                    lost = self.put(database, step_id, truth=truth)
                    yield self._not_undone(lost, flight, Reason.DEPENDENCY_DOWN)

    def _not_undone(self, database: Database, flight: Flight, reason: Reason) -> Outcome:
        return Outcome(f"{flight.label}: {reason}", database, ("not undone", flight.step_id, reason))

    # --- the phase --------------------------------------------------------------------------------------------------

    def close(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Shut the way forward and list what landed."""
        if not flight.valid:
            yield Outcome("close: RUN_STALE", database, ("stale",))
            return
        cause, seen = Cause(flight.argument), self.seen(database)
        due = past = unsure = False
        after = database
        if database.phase is IntentPhase.ADMITTED and database.parked is None:
            undecided = self.gated - database.approved - database.denied
            past = self.pivot_landed(database)
            unsure = not past and bool(self.pivots_unknown(database))
            due = not (past or unsure) and cause is Cause.EXPIRED and not (undecided and database.expired)
            if not (past or unsure or due):
                after = database._replace(phase=IntentPhase.CLOSING, cause=cause)
        listed = () if due else seen
        answer = ("closed", self.standing(after), listed, () if due else self.unknown(database), past, unsure)
        yield Outcome(flight.label, after, answer)

    def seen(self, database: Database) -> Answer:
        """All execute rows: step, state and transaction id."""
        return tuple(
            (step_id, "COMPENSATED" if row.effect in COMPENSATED else row.effect, self.number(database, step_id))
            for step_id, row in zip(self.index, database.rows, strict=True)
            if row.effect
        )

    def settle(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Set the final phase if the rows agree, else park."""
        if not flight.valid:
            yield Outcome("settle: RUN_STALE", database, ("stale",))
            return
        after = database
        if database.phase and not database.phase.is_final and database.parked is None:
            live = self.places(database)
            committing = database.phase is IntentPhase.ADMITTED
            if unknown := self.unknown(database):
                after = database._replace(parked=ParkReason.OUTCOME_UNKNOWN, stuck=unknown)
            elif tuple(live) != self.writes if committing else any(live):
                after = database._replace(parked=ParkReason.MISMATCH, stuck=())
            elif committing:
                after = database._replace(phase=IntentPhase.COMMITTED)
            else:
                undone = any(row.effect in COMPENSATED for row in database.rows)
                after = database._replace(phase=IntentPhase.COMPENSATED if undone else IntentPhase.NOT_APPLIED)
        yield Outcome("settle", after, self.standing(after))

    def park(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Put it to rest."""
        if not flight.valid:
            yield Outcome("park: RUN_STALE", database, ("stale",))
            return
        after = database
        if database.phase and not database.phase.is_final and database.parked is None:
            stuck = tuple(filter(None, flight.step_id.split(",")))
            after = database._replace(parked=ParkReason(flight.argument), stuck=stuck)
        yield Outcome(flight.label, after, self.standing(after))
