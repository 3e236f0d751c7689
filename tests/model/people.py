"""What people say: decisions about steps, and what operators say to parked intents."""

from collections.abc import Iterator

from activities.resolutions import verbs_for
from contracts.envelope import Cause
from contracts.saga import IntentPhase, ParkReason, Standing
from contracts.tool import Dispatch
from tests.model.rows import UNDECIDED, Database, Flight, Outcome
from tests.model.tables import Tables


class People(Tables):
    """Words, judged by the tables."""

    def would_decide(self, database: Database, verdict: str, step_id: str) -> frozenset[str]:
        """The steps that a decision would settle now; none when it comes too late."""
        landed = {one for one in self.index if self.row(database, one).effect}
        denying = verdict == "deny"
        undecided = self.gated - database.approved - database.denied
        open_steps = (undecided | (database.approved - database.denied if denying else frozenset[str]())) - landed
        steps = frozenset({step_id}) if step_id else open_steps
        settled = database.denied | landed | (frozenset[str]() if denying else database.approved)
        late = database.phase is not IntentPhase.ADMITTED or database.expired or steps & settled
        return frozenset[str]() if late else steps

    def decide(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Take a decision about one step or all that are open."""
        if not flight.valid:
            yield Outcome("decide: RUN_STALE", database, ("doubted",))
            return
        steps = self.would_decide(database, flight.argument, flight.step_id)
        field = "approved" if flight.argument == "approve" else "denied"
        after = database._replace(**{field: getattr(database, field) | steps}) if steps else database
        yield Outcome(flight.label, after, ("decided", bool(steps), self.ask(after)))

    def verbs(self, database: Database) -> list[tuple[str, str]]:
        """What an operator may say, and truly: `done` only of what landed, `skip` only of what cannot any more."""
        if database.phase is None or database.parked is None:
            return []
        key = (database.rows, database.phase, database.parked, database.stuck)
        if key not in self.known_verbs:
            self.known_verbs[key] = list(self._offered(database))
        return self.known_verbs[key]

    def _offered(self, database: Database) -> Iterator[tuple[str, str]]:
        standing = Standing(
            intent_id=self.plan.intent_id,
            plan=self.plan,
            phase=database.phase or IntentPhase.ADMITTED,
            parked=database.parked,
            parked_detail={"steps": [{"step_id": step_id} for step_id in database.stuck]},
        )
        offered = verbs_for(standing, pivot_landed=self.pivot_landed(database))
        pivots = self.pivots_unknown(database)
        is_unknown = database.parked is ParkReason.OUTCOME_UNKNOWN
        for step_id, verbs in offered.items():
            for verb in verbs:
                if (verb == "close" and pivots) or (verb == "skip" and pivots - {step_id}):
                    continue
                truth = self.row(database, step_id).truth if step_id else ""
                if is_unknown and verb == "done" and truth not in ("LANDED", "WRONG"):
                    continue
                if is_unknown and verb == "skip" and truth not in ("", "SHUT", "WRONG"):
                    continue
                yield verb, step_id

    def resolve(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Take an operator's verb; "again" is an earlier one that is said again."""
        verb, step_id = flight.argument, flight.step_id
        if not flight.valid:
            yield Outcome("resolve: RUN_STALE", database, ("doubted",))
            return
        after, accepted = database, verb == "again"
        if (verb, step_id) in self.verbs(database):
            accepted = True
            after = self._taken(database, verb, step_id)._replace(parked=None, stuck=())
            turns_back = verb == "close" or (verb == "skip" and database.parked is ParkReason.OUTCOME_UNKNOWN)
            if turns_back and database.phase is IntentPhase.ADMITTED:
                after = after._replace(phase=IntentPhase.CLOSING, cause=Cause.INTERRUPTED)
        yield Outcome(flight.label, after, ("resolved", accepted, self.standing(after)))

    def _taken(self, database: Database, verb: str, step_id: str) -> Database:
        if database.parked is ParkReason.OUTCOME_UNKNOWN and step_id:
            if self.row(database, step_id).attempt not in UNDECIDED:
                return database
            changes = {
                "retry": {"attempt": "UNKNOWN"},
                "skip": {"attempt": "FENCED", "effect": "TOMBSTONE", "truth": "SHUT"},
                "done": {"attempt": "LANDED", "effect": "LANDED", "truth": "LANDED"},
            }[verb]
            if verb == "retry" and self.row(database, step_id).truth == "WRONG":
                changes = {"attempt": "MISMATCH"}  # it is looked up again, and is as wrong as it was
            return self.put(database, step_id, **changes)
        if database.parked is ParkReason.STUCK_AFTER_PIVOT and verb in ("done", "skip"):
            return database if self.row(database, step_id).effect else self.put(database, step_id, effect="LANDED")
        if verb in ("forward", "retry"):
            for one, row in zip(self.index, database.rows, strict=True):
                if row.attempt == "REFUSED":
                    database = self.put(database, one, attempt="NOT_LANDED")
        elif verb in ("done", "skip") and self.row(database, step_id).effect == "LANDED":
            remote = self.step(step_id).dispatch is Dispatch.REMOTE
            truth = "BACK" if verb == "done" and remote else self.row(database, step_id).truth
            effect = "COMPENSATED" if verb == "done" else "RESIDUE"
            database = self.put(database, step_id, effect=effect, truth=truth)
        return database
