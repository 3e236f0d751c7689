"""Decisions of approvers and operators, judged in one transaction by the database's clock.

A decision that arrives early, twice, late, for another plan or from an agent gets a definite typed answer and
changes nothing. A denial wins until the approval is spent, never after.
"""

import json

from activities import audit
from activities.database import Database, Row, Transaction
from activities.phase import UNPARK, pivot_landed
from activities.standing import ASK, ask_of, caller_of, locked, standing_of, without_plan
from contracts.envelope import Cause
from contracts.errors import Phase, SagaError
from contracts.keys import execute_key
from contracts.reasons import Reason
from contracts.saga import (
    Decision,
    DecisionAnswer,
    DecisionRequest,
    IntentPhase,
    ParkReason,
    ResolutionAnswer,
    ResolutionRequest,
    Standing,
)

_DECIDE = """
select step_id from backstay.record_decision(%(decision_id)s, %(intent_key)s, %(step_ids)s, %(verdict)s,
    %(plan_digest)s, %(approver)s, %(reason)s, %(door)s) as step_id
"""


async def admit_decision(database: Database, request: DecisionRequest) -> DecisionAnswer:
    """Judge a decision once; the same decision id always gets an accepted answer again.

    A refusal is an answer (DECISION_INVALID, DECISION_LATE, NOT_ALLOWED), not an exception.
    Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
    """

    async def work(transaction: Transaction) -> DecisionAnswer:
        row, asked, effects = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        decision = request.decision
        earlier = await transaction.all(
            "select verdict, plan_digest, approver, step_id from backstay.decisions"
            " where intent_key = %s and decision_id = %s",
            (request.claim.intent_key, decision.decision_id),
        )
        if earlier:
            same = all(
                said["verdict"] == decision.verdict
                and said["plan_digest"] == decision.plan_digest
                and said["approver"] == decision.approver
                and decision.step_id in (None, said["step_id"])
                for said in earlier
            )
            refusal = None if same else _invalid(f"Decision id {decision.decision_id} was used for another decision.")
            return _answer(standing, refusal)
        landed = {effect["step_id"] for effect in effects}
        steps = _covered(decision, standing, landed)
        refusal = _judge(decision, row, standing, steps, landed)
        if refusal is not None:
            await _note(transaction, row, request, "decision_refused", refusal)
            return _answer(standing, refusal)
        written = await transaction.all(
            _DECIDE,
            decision.model_dump() | {"intent_key": request.claim.intent_key, "step_ids": steps, "door": request.door},
        )
        if len(written) != len(steps):
            refusal = _late("The time to decide is over.")
            await _note(transaction, row, request, "decision_refused", refusal)
            raise _Rollback(_answer(standing, refusal), refusal)
        await _note(transaction, row, request, "decision", None)
        now_asked = await transaction.all(ASK, (request.claim.intent_key,))
        return DecisionAnswer(accepted=True, ask=ask_of(now_asked))

    try:
        return await database.run(work)
    except _Rollback as rolled_back:
        return rolled_back.answer


class _Rollback(Exception):  # noqa: N818 - carries an answer out of a transaction that must not commit
    def __init__(self, answer: DecisionAnswer, refusal: SagaError) -> None:
        super().__init__(str(refusal))
        self.answer = answer


def _covered(decision: Decision, standing: Standing, landed: set[str]) -> list[str]:
    """Steps that the decision is about: the named one, or all that it can still change."""
    if decision.step_id is not None:
        return [decision.step_id]
    open_steps = set(standing.ask.undecided)
    if decision.verdict == "deny":
        open_steps |= set(standing.ask.approved)
    return sorted(open_steps - landed)


def _judge(  # noqa: C901, PLR0911 - one line per reason
    decision: Decision, row: Row, standing: Standing, steps: list[str], landed: set[str]
) -> SagaError | None:
    """Say why a decision does not count; None when it does."""
    ask = standing.ask
    if decision.intent_id not in (None, row["intent_id"]):
        return _invalid(f"The decision is about intent {decision.intent_id}; this is {row['intent_id']}.")
    if decision.approver == row["agent"]:
        return SagaError(Reason.NOT_ALLOWED, "An agent has no say in approvals.", phase=Phase.APPROVAL)
    asked = {*ask.undecided, *ask.approved, *ask.denied}
    if standing.plan is None or decision.plan_digest != standing.plan_digest:
        return _invalid("The decision is about another plan; copy the plan digest from the card that is shown now.")
    if not set(steps) <= asked:
        return _invalid(f"No decision is asked about {sorted(set(steps) - asked)}.")
    if standing.phase is not IntentPhase.ADMITTED:
        return _late(f"The intent is {standing.phase}.")
    if not steps:
        return _late("Everything was decided before.")
    if set(steps) & set(ask.denied):
        return _late(f"{sorted(set(steps) & set(ask.denied))} was denied before; a denial is final.")
    if set(steps) & landed:
        return _late(f"{sorted(set(steps) & landed)} has already run on its approval.")
    if decision.verdict == "approve" and set(steps) & set(ask.approved):
        return _late(f"{sorted(set(steps) & set(ask.approved))} was approved before.")
    if ask.expires_in_seconds <= 0:
        return _late("The time to decide is over.")
    return None


def _answer(standing: Standing, refusal: SagaError | None) -> DecisionAnswer:
    return DecisionAnswer(accepted=refusal is None, error=refusal.info if refusal else None, ask=standing.ask)


def _invalid(message: str) -> SagaError:
    return SagaError(Reason.DECISION_INVALID, message, phase=Phase.APPROVAL)


def _late(message: str) -> SagaError:
    return SagaError(Reason.DECISION_LATE, f"{message} The decision changed nothing.", phase=Phase.APPROVAL)


async def _note(
    transaction: Transaction, row: Row, request: DecisionRequest, kind: str, refusal: SagaError | None
) -> None:
    decision = request.decision
    await audit.append(
        transaction,
        kind,
        caller=caller_of(row),
        intent_key=row["intent_key"],
        step_id=decision.step_id,
        actor=decision.approver,
        decisions=decision.decision_id,
        result={
            "verdict": decision.verdict,
            "plan_digest": decision.plan_digest,
            "reason": decision.reason,
            "door": request.door,
            "refused": refusal.reason.value if refusal else None,
        },
    )


# --- operators -------------------------------------------------------------------------------------------------

WHOLE_VERBS = {
    ParkReason.INTERRUPTED: {"close", "forward"},
    ParkReason.MISMATCH: {"close", "forward"},
    ParkReason.STUCK_AFTER_PIVOT: {"forward"},
    ParkReason.COMPENSATION_REFUSED: set[str](),
}


def verbs_for(standing: Standing, *, pivot_landed: bool = False) -> dict[str, list[str]]:
    """What an operator may say: by step id, and for the whole intent under an empty id."""
    if standing.parked is None:
        return {}
    whole = set(WHOLE_VERBS[standing.parked])
    if standing.phase is IntentPhase.CLOSING:
        whole -= {"forward"}
    if pivot_landed:
        whole -= {"close"}
    stuck = [step["step_id"] for step in (standing.parked_detail or {}).get("steps", [])]
    verbs = {"": sorted(whole)} if whole else {}
    if standing.parked is ParkReason.COMPENSATION_REFUSED:
        verbs |= {step_id: ["done", "retry", "skip"] for step_id in stuck}
    if standing.parked is ParkReason.STUCK_AFTER_PIVOT:
        verbs |= {step_id: ["retry"] for step_id in stuck}
    return verbs


async def admit_resolution(database: Database, request: ResolutionRequest) -> ResolutionAnswer:
    """Take an operator's verb for a parked intent, and unpark it in the same transaction.

    `close` sets CLOSING at once and `done` and `skip` of a compensation mark the effect COMPENSATED, with what was
    said as residue for `skip`: should the saga lose the answer, the rows still say how it goes on. Repeating a
    resolution gives an accepted answer again; its id used for another one is refused.
    Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
    """

    async def work(transaction: Transaction) -> ResolutionAnswer:
        row, asked, effects = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        resolution = request.resolution
        earlier = await transaction.one(
            "select intent_key, verb, step_id from backstay.resolutions where resolution_id = %s",
            (resolution.resolution_id,),
        )
        if earlier is not None:
            same = (earlier["intent_key"], earlier["verb"], earlier["step_id"]) == (
                row["intent_key"],
                resolution.verb,
                resolution.step_id,
            )
            if same:
                return ResolutionAnswer(accepted=True, standing=without_plan(standing))
            used = SagaError(
                Reason.RESOLUTION_INVALID,
                f"Resolution id {resolution.resolution_id} was used for another resolution; choose a new one.",
            )
            return ResolutionAnswer(accepted=False, error=used.info, standing=without_plan(standing))
        offered = verbs_for(standing, pivot_landed=pivot_landed(effects))
        refusal: SagaError | None = None
        if resolution.intent_id not in (None, row["intent_id"]):
            refusal = SagaError(
                Reason.RESOLUTION_INVALID, f"It is about intent {resolution.intent_id}; this is {row['intent_id']}."
            )
        elif resolution.verb not in offered.get(resolution.step_id or "", []):
            refusal = SagaError(
                Reason.RESOLUTION_INVALID,
                f"{resolution.verb!r} is not possible now; possible: {json.dumps(offered)}.",
                details={"offered": offered},
            )
        elif resolution.verb in ("done", "skip") and not resolution.evidence.strip():
            refusal = SagaError(
                Reason.RESOLUTION_INVALID, f"{resolution.verb!r} needs --evidence: say what was done, or why not."
            )
        if refusal is not None:
            await _note_resolution(transaction, row, request, refused=refusal.reason.value)
            return ResolutionAnswer(accepted=False, error=refusal.info, standing=without_plan(standing))
        residue = await _take(transaction, row, request)
        await transaction.later(UNPARK, (row["intent_key"],))
        if resolution.verb in ("forward", "retry") and standing.plan is not None:
            await transaction.later(_EXTEND, (standing.plan.deadline_seconds, row["intent_key"]))
        taken = standing.model_copy(update={"parked": None, "parked_detail": None})
        if resolution.verb == "close" and standing.phase is IntentPhase.ADMITTED:
            await _begin_closing(transaction, row, resolution.operator)
            taken = taken.model_copy(update={"phase": IntentPhase.CLOSING, "cause": Cause.INTERRUPTED})
        return ResolutionAnswer(accepted=True, standing=without_plan(taken), residue=residue)

    return await database.run(work)


_EXTEND = """
update backstay.intents set deadline_at = greatest(deadline_at, now() + make_interval(secs => %s)) where intent_key = %s
"""
"""An operator who sends an intent forward gives it the time for it; else it would be refused at once."""


async def _begin_closing(transaction: Transaction, row: Row, operator: str) -> None:
    """Shut the way forward here and now: a `close` that the saga forgets must not become a `forward`."""
    await transaction.later(
        "update backstay.intents set phase = 'CLOSING', cause = %s where intent_key = %s",
        (Cause.INTERRUPTED.value, row["intent_key"]),
    )
    await audit.append(
        transaction,
        "closed",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        actor=operator,
        result={"cause": Cause.INTERRUPTED.value},
    )


async def _take(transaction: Transaction, row: Row, request: ResolutionRequest) -> str | None:
    resolution = request.resolution
    await transaction.later(
        "insert into backstay.resolutions (resolution_id, intent_key, step_id, verb, evidence, operator)"
        " values (%s, %s, %s, %s, %s, %s)",
        (
            resolution.resolution_id,
            row["intent_key"],
            resolution.step_id,
            resolution.verb,
            resolution.evidence,
            resolution.operator,
        ),
    )
    residue = None
    if resolution.verb in ("done", "skip") and resolution.step_id is not None:
        residue = f"not restored: {resolution.evidence}" if resolution.verb == "skip" else None
        await transaction.later(
            "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s"
            " where step_key = %s and state = 'LANDED'",
            (residue, execute_key(row["intent_key"], resolution.step_id)),
        )
    await _note_resolution(transaction, row, request, residue=residue)
    return residue


async def _note_resolution(
    transaction: Transaction,
    row: Row,
    request: ResolutionRequest,
    *,
    residue: str | None = None,
    refused: str | None = None,
) -> None:
    resolution = request.resolution
    await audit.append(
        transaction,
        "resolution_refused" if refused else "resolution",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        step_id=resolution.step_id,
        actor=resolution.operator,
        decisions=resolution.resolution_id,
        result={
            "verb": resolution.verb,
            "evidence": resolution.evidence,
            "residue": residue,
            "refused": refused,
        },
    )
