"""Steps that are sent somewhere, one act each: a crash between attempt and outcome is an outcome that is lost."""

from collections.abc import Iterator

from contracts.reasons import Reason
from contracts.saga import IntentPhase
from tests.model.rows import UNDECIDED, Database, Flight, Outcome, Row
from tests.model.tables import Tables


class Downstream(Tables):
    """Attempts, and the truth that only the downstream knows."""

    def send(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        step_id, row = flight.step_id, self.row(database, flight.step_id)
        is_open = row.attempt in UNDECIDED
        if row.effect or (not is_open and database.phase is not IntentPhase.ADMITTED):
            reason = self.stored(database, flight)
            yield self.refused(database, flight, reason) if reason else self.lands(database, flight, "again")
        elif row.attempt in ("REFUSED", "FENCED"):
            again = Reason.WRONG_STATE if row.attempt == "REFUSED" else Reason.SUPERSEDED
            yield self.refused(database, flight, again)
        elif not row.attempt and not self.approves(database, step_id):
            yield self.refused(database, flight, Reason.APPROVAL_MISSING)
        elif is_open:
            if row.truth == "LANDED" and row.attempt != "MISMATCH":
                yield self.lands(self.put(database, step_id, attempt="LANDED", effect="LANDED"), flight, "found")
            yield self.refused(database, flight, Reason.OUTCOME_UNKNOWN)
            if self.may_resend(database, row):
                yield from self._sent(database, flight, is_clear=False)
        elif (fenced := self.fenced(database, step_id)) is None:
            yield self.refused(database, flight, Reason.SUPERSEDED)
        else:
            yield from self._sent(fenced, flight, is_clear=True)

    def may_resend(self, database: Database, row: Row) -> bool:
        """True when an attempt of unknown outcome may be sent again under its key."""
        return self.weather.knows_keys and database.phase is IntentPhase.ADMITTED and row.attempt != "MISMATCH"

    def _sent(self, database: Database, flight: Flight, *, is_clear: bool) -> Iterator[Outcome]:
        step_id, before = flight.step_id, self.row(database, flight.step_id)
        lands = self.put(database, step_id, attempt="LANDED", effect="LANDED", truth="LANDED", value=flight.argument)
        yield self.lands(lands, flight)
        if self.weather.refusals and is_clear and self.step(step_id).may_refuse:
            refused = self.put(database, step_id, attempt="REFUSED")
            yield self.refused(refused, flight, Reason.WRONG_STATE)
        if self.weather.unsure:
            for truth in ("LANDED",) if before.truth == "LANDED" else ("FLYING", "LANDED", ""):
                lost = self.put(database, step_id, attempt="SENT", truth=truth, value=flight.argument)
                yield Outcome(
                    f"{flight.label}: lost, {truth.lower() or 'and not landed'}",
                    lost,
                    ("refused", step_id, Reason.OUTCOME_UNKNOWN),
                )
        if self.weather.mismatches and before.truth != "LANDED":
            wrong = self.put(database, step_id, attempt="MISMATCH", truth="WRONG", value=flight.argument)
            yield Outcome(f"{flight.label}: mismatch", wrong, ("refused", step_id, Reason.OUTCOME_UNKNOWN))

    def look_up(  # noqa: C901 - one branch for each thing that a lookup may find
        self, database: Database, flight: Flight
    ) -> Iterator[Outcome]:
        """Tell what is known, and write what became certain. `argument`: "closing" on the way back."""
        step_id, row = flight.step_id, self.row(database, flight.step_id)
        closing, admitted = flight.argument == "closing", database.phase is IntentPhase.ADMITTED
        if reason := self.asleep(database, flight):
            yield self.refused(database, flight, reason)
            return
        if row.effect == "LANDED":
            yield self._seen(database, flight, "LANDED")
            return
        forward = admitted and not closing
        if row.attempt not in UNDECIDED:
            yield self._seen(database, flight, "NOT_LANDED", may_resend=forward and row.attempt == "NOT_LANDED")
            return
        if row.attempt == "MISMATCH":
            yield self._seen(database, flight, "UNKNOWN", over=True)
            return
        unsure = self.put(database, step_id, attempt="UNKNOWN")
        for over in (False, True):
            for resend in (False, True) if forward and not over and self.may_resend(database, row) else (False,):
                yield self._seen(unsure, flight, "UNKNOWN", may_resend=resend, over=over)
        if row.truth == "LANDED":
            yield self._seen(self.put(database, step_id, attempt="LANDED", effect="LANDED"), flight, "LANDED")
        if cancels := closing and self.step(step_id).cancel_by_key and self.is_absent(row, cancels=True):
            fenced = self.put(database, step_id, attempt="FENCED", effect="TOMBSTONE", truth="SHUT")
            yield self._seen(fenced, flight, "NOT_LANDED")
        if not cancels and self.is_absent(row, cancels=False):
            if closing and database.phase is IntentPhase.CLOSING:
                fenced = self.put(database, step_id, attempt="FENCED", effect="TOMBSTONE")
                yield self._seen(fenced, flight, "NOT_LANDED")
            else:
                absent = self.put(database, step_id, attempt="NOT_LANDED")
                yield self._seen(absent, flight, "NOT_LANDED", may_resend=forward)
                if forward:
                    yield self._seen(absent, flight, "NOT_LANDED")

    def is_absent(self, row: Row, *, cancels: bool) -> bool:
        """True when it is certain that nothing landed and nothing can any more."""
        return row.truth in (("", "FLYING") if cancels else ("",))

    def _seen(
        self, database: Database, flight: Flight, state: str, *, may_resend: bool = False, over: bool = False
    ) -> Outcome:
        number = self.number(database, flight.step_id) if state == "LANDED" else None
        told = [state.lower(), *(["may be sent again"] if may_resend else []), *(["no patience left"] if over else [])]
        answer = ("sighted", flight.step_id, state, number, may_resend, over)
        return Outcome(f"{flight.label}: {', '.join(told)}", database, answer)

    def drift(self, database: Database) -> Iterator[tuple[str, Database]]:
        """What the downstream does by itself: a late request lands, or is lost for good."""
        for step_id, row in zip(self.index, database.rows, strict=True):
            if row.truth == "FLYING":
                yield f"{step_id} lands late", self.put(database, step_id, truth="LANDED")
                yield f"{step_id} is lost for good", self.put(database, step_id, truth="")
