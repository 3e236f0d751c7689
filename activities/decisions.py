"""Decisions of approvers, judged in one transaction by the database's clock.

A decision that arrives early, twice, late, for another plan or from an agent gets a definite typed answer and
changes nothing. A denial wins until the approval is spent, never after.
"""

from activities import audit
from activities.database import Database, Row, Transaction
from activities.standing import ASK, ask_of, caller_of, locked, standing_of
from contracts.errors import Phase, SagaError
from contracts.reasons import Reason
from contracts.saga import Decision, DecisionAnswer, DecisionRequest, IntentPhase, Standing

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
    """Steps that the decision is about: the named one, or all that it can still change of what its digest names."""
    if decision.step_id is not None:
        return [decision.step_id]
    open_steps = set(standing.ask.undecided)
    if decision.verdict == "deny":
        open_steps |= set(standing.ask.approved)
    asked = standing.ask.digests(standing.plan_digest, open_steps - landed)
    return sorted(step_id for step_id, named in asked.items() if named == decision.plan_digest)


def _judge(  # noqa: C901, PLR0911 - one line per reason
    decision: Decision, row: Row, standing: Standing, steps: list[str], landed: set[str]
) -> SagaError | None:
    """Say why a decision does not count; None when it does."""
    ask = standing.ask
    if decision.intent_id not in (None, row["intent_id"]):
        return _invalid(f"The decision is about intent {decision.intent_id}; this is {row['intent_id']}.")
    if decision.approver.casefold() == row["agent"].casefold():
        return SagaError(Reason.NOT_ALLOWED, "An agent has no say in approvals.", phase=Phase.APPROVAL)
    asked = {*ask.undecided, *ask.approved, *ask.denied}
    named = ask.digests(standing.plan_digest, steps or asked)
    if standing.plan is None or decision.plan_digest not in {standing.plan_digest, *named.values()}:
        return _invalid("The decision is about another plan; copy the plan digest from the card that is shown now.")
    if not set(steps) <= asked:
        return _invalid(f"No decision is asked about {sorted(set(steps) - asked)}.")
    if wrong := sorted(step_id for step_id in steps if named[step_id] != decision.plan_digest):
        return _invalid(f"Step {wrong[0]} was graded later; copy the plan digest from its own card.")
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
