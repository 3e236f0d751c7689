"""A database with the rules of the real one and nothing else: what `activities` does in SQL, as pure functions.

The barrier, close, settle, park, admission, decisions and resolutions, each one atomic transition. Rows are in
landing order, so that a row's number is its place. Compared with the real SQL by `tests/integration`.
"""

from dataclasses import dataclass, replace
from typing import Literal

from activities.resolutions import verbs_for
from contracts.envelope import Cause, IntentReport
from contracts.errors import SagaError
from contracts.keys import execute_key
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Closed,
    CompensateResult,
    DecisionAnswer,
    EffectSeen,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
    Standing,
    StepResult,
)

RowState = Literal["LANDED", "COMPENSATED", "TOMBSTONE"]
Verb = Literal["retry", "skip", "done", "close", "forward"]


@dataclass(frozen=True, slots=True)
class Row:
    """An execute row of the barrier; `argument` stands for the digest."""

    step_id: str
    state: RowState
    argument: str = ""
    residue: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Which run acts, and the epoch it believes in."""

    run: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Database:
    """All rows of one intent."""

    owner: int = 0
    epoch: int = 1
    former: tuple[int, ...] = ()
    phase: IntentPhase | None = None
    cause: Cause = Cause.NONE
    parked: ParkReason | None = None
    stuck: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    undone: frozenset[str] = frozenset()
    """Steps whose compensation landed."""
    readings: tuple[tuple[str, str], ...] = ()
    """What steps that only read were told."""
    approved: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    expired: bool = False

    def row(self, step_id: str) -> Row | None:
        """The execute row of a step."""
        return next((row for row in self.rows if row.step_id == step_id), None)

    def live(self) -> tuple[str, ...]:
        """Steps whose effect stands, in landing order."""
        return tuple(row.step_id for row in self.rows if row.state == "LANDED")

    def with_row(self, step_id: str, state: RowState, *, residue: bool = False) -> "Database":
        """Change a row's state."""
        rows = tuple(replace(row, state=state, residue=residue) if row.step_id == step_id else row for row in self.rows)
        return replace(self, rows=rows)


class FakeDatabase:
    """The transitions, for one plan. Each returns the database after it and the answer, or raises as the real one."""

    def __init__(self, plan: Plan) -> None:
        """Serve one plan."""
        self.plan = plan
        self.gated = frozenset(step.step_id for step in plan.gated_steps)
        self.pivots = frozenset(step.step_id for step in plan.steps if step.is_pivot)
        self.writes = frozenset(step.step_id for step in plan.steps if step.writes)
        self._standings: dict[Database, Standing] = {}

    def standing(self, database: Database) -> Standing:
        """How the intent stands."""
        known = self._standings.get(database)
        if known is None:
            known = self._standings[database] = self._standing(database)
        return known

    def _standing(self, database: Database) -> Standing:
        phase = database.phase
        assert phase is not None
        report = IntentReport(outcome=phase.outcome, cause=database.cause) if phase.is_final else None
        detail = {"steps": [{"step_id": step_id} for step_id in database.stuck]} if database.parked else None
        return Standing(
            intent_id=self.plan.intent_id,
            plan=self.plan,
            plan_digest="0" * 64,
            epoch=database.epoch,
            phase=phase,
            cause=database.cause,
            parked=database.parked,
            parked_detail=detail,
            report=report,
            ask=self.ask(database),
        )

    def ask(self, database: Database) -> Ask:
        """What people were asked and what they said."""
        if not self.gated:
            return Ask()
        return Ask(
            undecided=tuple(sorted(self.gated - database.approved - database.denied)),
            approved=tuple(sorted(database.approved - database.denied)),
            denied=tuple(sorted(database.denied)),
            expires_in_seconds=0.0 if database.expired else 60.0,
        )

    # --- admission ------------------------------------------------------------------------------------------------

    def admit(self, database: Database, run: int, *, open_run: int) -> tuple[Database, Standing]:
        """Claim, repeat, or adopt: every run here has the claim's own workflow id; Temporal says which is open."""
        if database.phase is None:
            claimed = replace(database, owner=run, phase=IntentPhase.ADMITTED)
            return claimed, self.standing(claimed)
        if run in database.former or (run != database.owner == open_run):
            return database, self.standing(database).model_copy(update={"duplicate": True})
        if database.phase.is_final or run == database.owner:
            return database, self.standing(database)
        adopted = replace(
            database,
            owner=run,
            former=tuple(sorted({*database.former, database.owner})),
            epoch=database.epoch + 1,
            parked=ParkReason.INTERRUPTED,
            stuck=(),
        )
        return adopted, self.standing(adopted)

    def _owned(self, database: Database, claim: Claim) -> IntentPhase:
        if database.phase is None:
            raise SagaError(Reason.INTENT_NOT_FOUND, "not admitted")
        if (database.owner, database.epoch) != (claim.run, claim.epoch):
            raise SagaError(Reason.RUN_STALE, "stale")
        return database.phase

    def _awake(self, database: Database, claim: Claim) -> IntentPhase:
        phase = self._owned(database, claim)
        if database.parked is not None:
            raise SagaError(Reason.INTENT_PARKED, "parked")
        return phase

    # --- the barrier ----------------------------------------------------------------------------------------------

    def executes(self, database: Database, claim: Claim, step_id: str) -> bool:
        """True when the business function itself would run, so that it may refuse."""
        try:
            phase = self._awake(database, claim)
        except SagaError:
            return False
        if step_id not in self.writes:
            return step_id not in dict(database.readings)
        return phase is IntentPhase.ADMITTED and database.row(step_id) is None and self._is_approved(database, step_id)

    def _is_approved(self, database: Database, step_id: str) -> bool:
        return step_id not in self.gated or (step_id in database.approved and step_id not in database.denied)

    def execute(
        self,
        database: Database,
        claim: Claim,
        step_id: str,
        argument: str = "",
        *,
        refuse: bool = False,
        read: str = "",
    ) -> tuple[Database, StepResult]:
        """Land a step, or answer what its key says; `refuse` is the business's own no."""
        phase = self._awake(database, claim)
        if step_id not in self.writes:
            return self._read(database, step_id, refuse=refuse, read=read)
        if phase is not IntentPhase.ADMITTED:
            raise SagaError(Reason.SUPERSEDED, "not admitted any more")
        row = database.row(step_id)
        if row is not None:
            if row.state != "LANDED":
                raise SagaError(Reason.SUPERSEDED, "fenced")
            if row.argument != argument:
                raise SagaError(Reason.KEY_REUSED, "other arguments")
            return database, self._result(step_id, database.rows.index(row) + 1, "")
        if not self._is_approved(database, step_id):
            raise SagaError(Reason.APPROVAL_MISSING, "not approved")
        if refuse:
            raise SagaError(Reason.WRONG_STATE, "refused")
        after = replace(database, rows=(*database.rows, Row(step_id, "LANDED", argument)))
        return after, self._result(step_id, len(after.rows), "")

    def _read(self, database: Database, step_id: str, *, refuse: bool, read: str) -> tuple[Database, StepResult]:
        known = dict(database.readings).get(step_id)
        if known is not None:
            return database, self._result(step_id, None, known)
        if refuse:
            raise SagaError(Reason.WRONG_STATE, "refused")
        after = replace(database, readings=(*database.readings, (step_id, read)))
        return after, self._result(step_id, None, read)

    def _result(self, step_id: str, number: int | None, read: str) -> StepResult:
        return StepResult(
            step_id=step_id,
            step_key=execute_key(self.plan.intent_key, step_id),
            transaction_id=number,
            applied_args={},
            output={"value": read},
        )

    def compensate(
        self, database: Database, claim: Claim, step_id: str, *, refuse: bool = False
    ) -> tuple[Database, CompensateResult]:
        """Undo a landed step once, fence one that never landed."""
        phase = self._awake(database, claim)
        row = database.row(step_id)
        if step_id in database.undone:
            return database, self._undone(step_id, undone=True)
        if row is not None and row.state == "COMPENSATED":  # an operator said `done` or `skip`
            return database, self._undone(step_id, undone=False)
        if phase is not IntentPhase.CLOSING:
            raise SagaError(Reason.SUPERSEDED, "not closing")
        if row is None:
            rows = (*database.rows, Row(step_id, "TOMBSTONE"))
            fenced = replace(database, rows=rows, undone=database.undone | {step_id})
            return fenced, self._undone(step_id, undone=False)
        if row.state == "LANDED":
            if refuse:
                raise SagaError(Reason.WRONG_STATE, "cannot be undone now")
            database = database.with_row(step_id, "COMPENSATED")
        after = replace(database, undone=database.undone | {step_id})
        return after, self._undone(step_id, undone=row.state == "LANDED")

    def _undone(self, step_id: str, *, undone: bool) -> CompensateResult:
        return CompensateResult(step_id=step_id, step_key=f"{step_id}/compensate/1", transaction_id=1, undone=undone)

    # --- the phase ------------------------------------------------------------------------------------------------

    def close(self, database: Database, claim: Claim, cause: Cause) -> tuple[Database, Closed]:
        """Shut the way forward and list what landed."""
        phase = self._owned(database, claim)
        seen = tuple(
            EffectSeen(step_id=row.step_id, state=row.state, transaction_id=number)
            for number, row in enumerate(database.rows, 1)
        )
        standing = self.standing(database)
        if phase is not IntentPhase.ADMITTED:
            return database, Closed(standing=standing, effects=seen)
        if set(database.live()) & self.pivots:
            return database, Closed(standing=standing, effects=seen, past_pivot=True)
        if cause is Cause.EXPIRED and (not standing.ask.undecided or not database.expired):
            return database, Closed(standing=standing, due_in_seconds=standing.ask.expires_in_seconds)
        closing = replace(database, phase=IntentPhase.CLOSING, cause=cause)
        return closing, Closed(standing=self.standing(closing), effects=seen)

    def settle(self, database: Database, claim: Claim) -> tuple[Database, Standing]:
        """Set the final phase if the rows agree, else park MISMATCH."""
        phase = self._owned(database, claim)
        if phase.is_final or database.parked is not None:
            return database, self.standing(database)
        live = frozenset(database.live())
        committing = phase is IntentPhase.ADMITTED
        if (live != self.writes) if committing else live:
            database = replace(database, parked=ParkReason.MISMATCH, stuck=())
        elif committing:
            database = replace(database, phase=IntentPhase.COMMITTED)
        elif any(row.state == "COMPENSATED" for row in database.rows):
            database = replace(database, phase=IntentPhase.COMPENSATED)
        else:
            database = replace(database, phase=IntentPhase.NOT_APPLIED)
        return database, self.standing(database)

    def park(
        self, database: Database, claim: Claim, reason: ParkReason, stuck: tuple[str, ...]
    ) -> tuple[Database, Standing]:
        """Put it to rest."""
        phase = self._owned(database, claim)
        if not phase.is_final and database.parked is None:
            database = replace(database, parked=reason, stuck=stuck)
        return database, self.standing(database)

    # --- people ---------------------------------------------------------------------------------------------------

    def would_decide(self, database: Database, verdict: str, step_id: str | None) -> frozenset[str]:
        """The steps that a decision would settle now; none when it comes too late."""
        ask = self.ask(database)
        landed = {row.step_id for row in database.rows}
        open_steps = {*ask.undecided, *(ask.approved if verdict == "deny" else ())} - landed
        steps = {step_id} if step_id else open_steps
        settled = set(ask.denied) | landed | (set(ask.approved) if verdict == "approve" else set[str]())
        late = database.phase is not IntentPhase.ADMITTED or database.expired or steps & settled
        return frozenset[str]() if late else frozenset(steps)

    def decide(
        self, database: Database, claim: Claim, verdict: str, step_id: str | None
    ) -> tuple[Database, DecisionAnswer]:
        """Take a decision about one step or all that are open."""
        self._owned(database, claim)
        steps = self.would_decide(database, verdict, step_id)
        if not steps:
            refused = SagaError(Reason.DECISION_LATE, "late")
            return database, DecisionAnswer(accepted=False, error=refused.info, ask=self.ask(database))
        if verdict == "approve":
            database = replace(database, approved=database.approved | steps)
        else:
            database = replace(database, denied=database.denied | steps)
        return database, DecisionAnswer(accepted=True, ask=self.ask(database))

    def verbs(self, database: Database) -> list[tuple[Verb, str | None]]:
        """What an operator may say."""
        if database.phase is None or database.parked is None:
            return []
        offered = verbs_for(self.standing(database), pivot_landed=bool(set(database.live()) & self.pivots))
        return [(verb, step_id or None) for step_id, verbs in offered.items() for verb in verbs]  # type: ignore[misc]

    def resolve(
        self, database: Database, claim: Claim, verb: Verb, step_id: str | None, *, repeat: bool = False
    ) -> tuple[Database, ResolutionAnswer]:
        """Take an operator's verb; `repeat` is an earlier one said again."""
        self._owned(database, claim)
        if repeat:
            return database, ResolutionAnswer(accepted=True, standing=self.standing(database))
        if (verb, step_id) not in self.verbs(database):
            refused = SagaError(Reason.RESOLUTION_INVALID, "not offered")
            return database, ResolutionAnswer(accepted=False, error=refused.info, standing=self.standing(database))
        database = replace(database, parked=None, stuck=())
        if verb in ("done", "skip") and step_id is not None:
            database = database.with_row(step_id, "COMPENSATED", residue=verb == "skip")
        if verb == "close" and database.phase is IntentPhase.ADMITTED:
            database = replace(database, phase=IntentPhase.CLOSING, cause=Cause.INTERRUPTED)
        return database, ResolutionAnswer(accepted=True, standing=self.standing(database))


def resolution(verb: Verb, step_id: str | None) -> Resolution:
    """The message of an operator."""
    return Resolution(resolution_id="r1", verb=verb, operator="operator", step_id=step_id, evidence="seen")
