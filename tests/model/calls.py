"""Remote calls of a simulated saga, as they are: requests travel, and an activity knows only what came back."""

from collections.abc import Callable

from contracts.reasons import Reason
from contracts.saga import IntentPhase
from tests.model.rows import COMPENSATED, UNDECIDED, Answer, Flight, Row
from tests.model.rules import ViolationError
from tests.model.weather import PATIENCE_SECONDS, TIMEOUT_SECONDS, WINDOW_SECONDS, Act, Ground


class Calls(Ground):
    """Execute, look up and compensate somewhere else."""

    # --- what is sent somewhere -------------------------------------------------------------------------------------

    def execute(self, flight: Flight) -> Act:  # noqa: C901, PLR0911 - one line for each thing that the tables may say
        """Send a step and note what came of it; answer what is known of one that was sent before."""
        step_id = flight.step_id
        yield self.wait()
        row, asleep = self.row(step_id), self.fake.asleep(self.database, self.valid(flight))
        refused: Callable[[Reason], Answer] = lambda reason: ("refused", step_id, reason)  # noqa: E731 - a word for what is said often
        if asleep:
            return refused(asleep)
        if row.effect or (row.attempt not in UNDECIDED and self.database.phase is not IntentPhase.ADMITTED):
            return self._landed(step_id) if self._is_stored(row) else refused(Reason.SUPERSEDED)
        if row.attempt in ("REFUSED", "FENCED"):
            return refused(Reason.WRONG_STATE if row.attempt == "REFUSED" else Reason.SUPERSEDED)
        if not row.attempt and not self.fake.approves(self.database, step_id):
            return refused(Reason.APPROVAL_MISSING)
        if row.attempt in UNDECIDED:
            seen = yield from self.look_up(flight)
            if seen is None or seen[0] == "refused":
                return seen
            if seen[2] == "LANDED":
                return self._landed(step_id)
            row, asleep = self.row(step_id), self.fake.asleep(self.database, self.valid(flight))
            unsure = row.attempt in UNDECIDED
            if asleep:
                return refused(asleep)
            if self.database.phase is not IntentPhase.ADMITTED or row.effect or row.attempt in ("REFUSED", "FENCED"):
                return refused(Reason.OUTCOME_UNKNOWN if unsure else Reason.SUPERSEDED)
            if unsure and not (seen[4] and self.book.knows_keys):
                return refused(Reason.OUTCOME_UNKNOWN)
        return (yield from self._send(flight, is_clear=row.attempt not in UNDECIDED))

    def _is_stored(self, row: Row) -> bool:
        return row.effect == "LANDED" and self.database.phase is IntentPhase.ADMITTED

    def _landed(self, step_id: str) -> Answer:
        return ("landed", step_id, self.fake.number(self.database, step_id), "")

    def _send(self, flight: Flight, *, is_clear: bool) -> Act:
        step_id, attempt = flight.step_id, self.attempts[flight.step_id]
        attempt.sends += 1
        attempt.in_flight_until = max(attempt.in_flight_until, self.now + WINDOW_SECONDS)
        if attempt.sends == 1:
            attempt.patience_until = self.now + PATIENCE_SECONDS
        sends = attempt.sends
        self.put(self.valid(flight), f"sent, {sends}", attempt="SENT")
        replies = self._request(step_id, sends, lambda refuses: self.book.carry_out(step_id, sends, refuses=refuses))
        until = self.now + TIMEOUT_SECONDS
        while not replies and self.now < until:
            yield 0.5
        reply = replies[0] if replies else "lost"
        yield self.wait()
        same = attempt.sends == sends and self.row(step_id).attempt in UNDECIDED
        if reply == "landed":
            return self._land(flight)
        if reply == "refused" and is_clear and same:
            self._note(flight, "refused", attempt="REFUSED")
            return ("refused", step_id, Reason.WRONG_STATE)
        if same:
            self._note(flight, "unknown", attempt="UNKNOWN")
        return ("refused", step_id, Reason.OUTCOME_UNKNOWN)

    def _note(self, flight: Flight, label: str, **changes: object) -> None:
        """Write a fact: no claim is asked for."""
        self.put(flight._replace(name="note", valid=True), label, **changes)

    def _land(self, flight: Flight) -> Answer:
        """Write that it landed: a fact is never refused."""
        step_id = flight.step_id
        if self.row(step_id).effect not in ("", "LANDED", "TOMBSTONE"):
            return ("refused", step_id, Reason.SUPERSEDED)
        if self.row(step_id).effect != "LANDED":
            self._note(flight, "landed", attempt="LANDED", effect="LANDED")
        return self._landed(step_id)

    def _request(self, step_id: str, sending: int, does: Callable[[bool], str]) -> list[str]:
        """Let a request travel: lost, doubled, late, overtaken by others; its reply too. Returns where replies come."""
        replies: list[str] = []
        doubles = self.book.knows_keys and self.happens(self.rates.double)
        copies = 0 if self.happens(self.rates.drop) else 1 + doubles

        def arrives() -> None:
            self.book.travelling[step_id, sending] -= 1
            reply = does(self.happens(self.rates.refuse))
            self.say(f"    downstream: {step_id} {reply}")
            if not self.happens(self.rates.drop):
                self.at(self.wait(), lambda: replies.append(reply))

        for copy in range(copies):
            slow = copy or self.happens(self.rates.silent)
            self.book.travelling[step_id, sending] += 1
            self.at(self.chance.random() * (WINDOW_SECONDS * 0.95 if slow else 1.0), arrives)
        return replies

    def look_up(self, flight: Flight) -> Act:  # noqa: PLR0911 - as above
        """Ask the downstream, and write what became certain."""
        step_id, closing = flight.step_id, flight.argument == "closing"
        yield 0.5 + self.wait()
        row, attempt = self.row(step_id), self.attempts[step_id]
        if asleep := self.fake.asleep(self.database, self.valid(flight)):
            return ("refused", step_id, asleep)
        if row.effect == "LANDED" or row.attempt not in UNDECIDED:
            return self._decided(step_id, closing=closing)
        sends, past_flight = attempt.sends, self.now >= attempt.in_flight_until
        yield self.wait()
        said = "" if self.happens(self.rates.silent) else "landed" if self.book.landed[step_id] else "absent"
        if closing and self.fake.step(step_id).cancel_by_key and said == "absent":
            self.book.shut.add(step_id)
            said = "fenced"
        yield self.wait()
        if said == "landed":
            answer = self._land(flight)
            landed = answer[0] == "landed"
            return self._seen(step_id, "LANDED" if landed else "NOT_LANDED")
        if attempt.sends != sends or self.row(step_id).attempt not in UNDECIDED:
            if self.row(step_id).attempt in UNDECIDED:
                return self._seen(step_id, "UNKNOWN", may_resend=self._may_resend(closing=closing))
            return self._decided(step_id, closing=closing)
        if said == "fenced" or (said == "absent" and past_flight):
            if said == "fenced" or (closing and self.database.phase is IntentPhase.CLOSING):
                self._note(flight, "fenced", attempt="FENCED", effect="TOMBSTONE")
                return self._seen(step_id, "NOT_LANDED")
            self._note(flight, "not landed", attempt="NOT_LANDED")
            return self._seen(step_id, "NOT_LANDED", may_resend=not closing)
        self._note(flight, "still unknown", attempt="UNKNOWN")
        if closing and not attempt.closing:
            attempt.closing, attempt.patience_until = True, max(attempt.patience_until, self.now + PATIENCE_SECONDS)
        over = self.now >= max(attempt.patience_until, attempt.in_flight_until)
        return self._seen(step_id, "UNKNOWN", may_resend=not over and self._may_resend(closing=closing), over=over)

    def _may_resend(self, *, closing: bool) -> bool:
        return self.book.knows_keys and not closing and self.database.phase is IntentPhase.ADMITTED

    def _decided(self, step_id: str, *, closing: bool) -> Answer:
        row = self.row(step_id)
        if row.effect == "LANDED":
            return self._seen(step_id, "LANDED")
        forward = self.database.phase is IntentPhase.ADMITTED and not closing
        return self._seen(step_id, "NOT_LANDED", may_resend=forward and row.attempt == "NOT_LANDED")

    def _seen(self, step_id: str, state: str, *, may_resend: bool = False, over: bool = False) -> Answer:
        number = self.fake.number(self.database, step_id) if state == "LANDED" else None
        return ("sighted", step_id, state, number, may_resend, over)

    def compensate(self, flight: Flight) -> Act:
        """Give back what landed, by one key however often it is sent."""
        step_id = flight.step_id
        no: Callable[[Reason], Answer] = lambda reason: ("not undone", step_id, reason)  # noqa: E731 - as above
        for _ in range(5):
            yield self.wait()
            row = self.row(step_id)
            if asleep := self.fake.asleep(self.database, self.valid(flight)):
                return no(asleep)
            if row.undone or row.effect in COMPENSATED:
                return ("undone", step_id)
            if row.effect != "LANDED" or self.database.phase is not IntentPhase.CLOSING:
                return no(Reason.SUPERSEDED if row.effect == "LANDED" else Reason.OUTCOME_UNKNOWN)
            replies = self._request(step_id, 0, lambda _: self._give_back(step_id))
            until = self.now + TIMEOUT_SECONDS
            while not replies and self.now < until:
                yield 0.5
            if replies:
                if self.row(step_id).effect == "LANDED":
                    done = flight._replace(name="compensate", valid=True)
                    self.put(done, "done", effect="COMPENSATED", undone=True)
                return ("undone", step_id)
        return no(Reason.DEPENDENCY_DOWN)

    def _give_back(self, step_id: str) -> str:
        if not self.book.landed[step_id]:
            raise ViolationError(f"{step_id} is given back and was never taken")
        self.book.back[step_id] = 1
        return "back"
