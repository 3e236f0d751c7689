"""Reading and writing the tables of one intent: what every act has in common."""

from contracts.plan import Plan, PlannedStep
from contracts.reasons import Reason
from contracts.saga import IntentPhase
from tests.model.rows import CALM, UNDECIDED, Answer, Database, Flight, Outcome, Row, Weather


class Tables:
    """One plan's tables in one weather."""

    def __init__(self, plan: Plan, weather: Weather = CALM) -> None:
        """Serve one plan in one weather."""
        self.plan = plan
        self.weather = weather
        self.index = {step.step_id: number for number, step in enumerate(plan.steps)}
        self.gated = frozenset(step.step_id for step in plan.gated_steps)
        self.writes = tuple(step.writes for step in plan.steps if step.stands_for is None)
        objects = [name for step in plan.steps for name in step.resources]
        self.keeps_order = len(objects) != len(set(objects))
        self.known_verbs: dict[tuple[object, ...], list[tuple[str, str]]] = {}

    def empty(self) -> Database:
        """Nothing was ever written."""
        return Database(tuple(Row() for _ in self.plan.steps))

    # --- reading ----------------------------------------------------------------------------------------------------

    def row(self, database: Database, step_id: str) -> Row:
        """What is known of a step."""
        return database.rows[self.index[step_id]]

    def step(self, step_id: str) -> PlannedStep:
        """A step of the plan."""
        return self.plan.steps[self.index[step_id]]

    def live(self, database: Database) -> tuple[str, ...]:
        """Steps whose effect stands."""
        return tuple(step_id for step_id, row in zip(self.index, database.rows, strict=True) if row.effect == "LANDED")

    def places(self, database: Database) -> tuple[int, ...]:
        """For each step how much of it stands: itself, or its fallback in its place."""
        live = [self.step(step_id).stands_for or step_id for step_id in self.live(database)]
        return tuple(live.count(step.step_id) for step in self.plan.steps if step.stands_for is None)

    def unknown(self, database: Database) -> tuple[str, ...]:
        """Steps that were sent and whose outcome the tables do not know."""
        pairs = zip(self.index, database.rows, strict=True)
        return tuple(step_id for step_id, row in pairs if row.attempt in UNDECIDED)

    def pivot_landed(self, database: Database) -> bool:
        """True when there is only forward."""
        return any(self.step(step_id).is_pivot for step_id in self.live(database))

    def pivots_unknown(self, database: Database) -> set[str]:
        """Steps that cannot be undone and may have landed."""
        return {step_id for step_id in self.unknown(database) if self.step(step_id).is_pivot}

    def number(self, database: Database, step_id: str) -> int:
        """The transaction id: its place in landing order, where that matters, else its place in the plan."""
        place = self.index[step_id]
        return (database.order.index(place) if self.keeps_order else place) + 1

    def standing(self, database: Database, *, duplicate: bool = False) -> Answer:
        """How the intent stands."""
        return (
            "standing",
            database.phase,
            database.cause,
            database.parked,
            database.stuck,
            database.approved,
            database.denied,
            database.expired,
            duplicate,
        )

    def ask(self, database: Database) -> Answer:
        """What people were asked and what they said."""
        return database.approved, database.denied, database.expired

    def reserved(self, database: Database) -> bool:
        """True when every step that may be confirmed, and all else that was posted, has landed."""
        live = self.live(database)
        return all(step.step_id in live for step in self.plan.steps if step.writes and step.confirms is None)

    def asleep(self, database: Database, flight: Flight) -> Reason | None:
        """Why a claim may do nothing now."""
        if not flight.valid:
            return Reason.RUN_STALE
        return Reason.INTENT_PARKED if database.parked else None

    def approves(self, database: Database, step_id: str) -> bool:
        """True when people let the step run, or need not."""
        return step_id not in self.gated or (step_id in database.approved and step_id not in database.denied)

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(self, database: Database, step_id: str, **changes: object) -> Database:
        """Change what is known of a step; one that is new in the tables gets the next transaction id."""
        place = self.index[step_id]
        row = database.rows[place]._replace(**changes)  # type: ignore[arg-type]
        rows = (*database.rows[:place], row, *database.rows[place + 1 :])
        is_new = self.keeps_order and place not in database.order and (row.effect or row.attempt)
        order = (*database.order, place) if is_new else database.order
        return database._replace(rows=rows, order=order)

    def fenced(self, database: Database, step_id: str) -> Database | None:
        """Shut the key of the step that this one stands for; None where that has landed, or may have."""
        first = self.step(step_id).stands_for
        if first is None:
            return database
        row = self.row(database, first)
        if row.effect not in ("", "TOMBSTONE") or row.attempt in UNDECIDED:
            return None
        return self.put(database, first, effect="TOMBSTONE", attempt="FENCED" if row.attempt else "")

    def stored(self, database: Database, flight: Flight) -> Reason | None:
        """Why nothing may land now, and no stored answer is told."""
        row = self.row(database, flight.step_id)
        if database.phase is not IntentPhase.ADMITTED or row.effect not in ("", "LANDED"):
            return Reason.SUPERSEDED
        if self.step(flight.step_id).confirms and not row.effect and not self.reserved(database):
            return Reason.MISMATCH
        return Reason.KEY_REUSED if row.effect and row.value != flight.argument else None

    def refused(self, database: Database, flight: Flight, reason: Reason) -> Outcome:
        """An execute or a lookup that said no; of a step that its fallback fenced, that too."""
        fallback = self.plan.fallbacks.get(flight.step_id)
        fenced = reason is Reason.SUPERSEDED and database.phase is IntentPhase.ADMITTED and fallback is not None
        if fenced and self.row(database, str(fallback)) != Row():
            return Outcome(f"{flight.label}: fenced", database, ("refused", flight.step_id, reason, fallback))
        return Outcome(f"{flight.label}: {reason}", database, ("refused", flight.step_id, reason))

    def lands(self, database: Database, flight: Flight, how: str = "lands") -> Outcome:
        """An execute that landed, now or before."""
        number = self.number(database, flight.step_id)
        return Outcome(f"{flight.label}: {how}", database, ("landed", flight.step_id, number, ""))
