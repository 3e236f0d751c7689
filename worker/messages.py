"""What people say to a running saga, with a definite answer however the saga ends meanwhile.

An update that reaches a saga in its last moment is answered by Temporal with "not found" or "aborted by closing
workflow" (measured: `docs/driver.md`). The tables then tell what became of it: a decision, a resolution or a cancel
that was recorded was taken, whoever heard the answer. Ids are made from what is said, so saying it twice is once.
"""

import asyncio
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.database import Database
from contracts.envelope import Cause, Envelope, Meta, Outcome, Status, error_envelope
from contracts.errors import Phase, SagaError
from contracts.keys import digest
from contracts.problems import field_problems
from contracts.reasons import Reason
from contracts.saga import Cancellation, Decision, MessageAnswer, Resolution
from contracts.shape import shape_of
from contracts.wire import refusal
from worker.answers import POLL_RUNNING_MS, Known, find, not_found, now_text
from worker.runs import unadmitted
from workflows.intent_workflow import refusal_of

ANSWER_SECONDS_MAX: Final = 20.0
A = TypeVar("A", bound=MessageAnswer)
M = TypeVar("M", bound=BaseModel)
Verdict = Literal["approve", "deny"]
Verb = Literal["retry", "skip", "done", "close", "forward"]


class Messages:
    """Carries what people say to the sagas of a tenant; `intent_id` may be a unique beginning of one."""

    def __init__(self, client: Client, database: Database) -> None:
        """Speak through `client`, and look into `database` for what became of it."""
        self._client = client
        self._database = database

    async def cancel(self, tenant: str, intent_id: str, *, requested_by: str, reason: str = "") -> Envelope:
        """Ask a saga to stop; what landed is undone. Raises SagaError: TOO_LATE, INTENT_NOT_FOUND, INTERRUPTED."""
        message = valid(Cancellation, {"reason": reason, "requested_by": requested_by})
        try:
            known = await find(self._database, tenant, intent_id)
        except SagaError as error:
            if error.reason is not Reason.INTENT_NOT_FOUND:
                raise
            return await self._cancel_before_admission(tenant, intent_id, message)
        if not known.standing.phase.is_final:
            try:
                answer = await self.tell(known.row["workflow_id"], "cancel", message, MessageAnswer)
            except SagaError as error:
                if await self.is_sent_instead(error, known, message):
                    return sent_unanswered(known)
                raise
            if answer is not None:
                return _envelope(known.standing.intent_id, answer, Reason.TOO_LATE)
            known = await find(self._database, tenant, known.standing.intent_id)
        if known.standing.cause is Cause.CANCELLED:
            return _taken(known, "The intent was stopped.")
        raise self.ended(known, Reason.TOO_LATE)

    async def _cancel_before_admission(self, tenant: str, intent_id: str, message: Cancellation) -> Envelope:
        """Stop a saga that the tables do not know yet; it waits for admission's answer, then closes."""
        envelope = await unadmitted(self._client, tenant, intent_id)
        if envelope.error is not None:
            return envelope
        answer = await self.tell(intent_id, "cancel", message, MessageAnswer)
        if answer is None:
            raise not_found(intent_id)
        return _envelope(intent_id, answer, Reason.TOO_LATE)

    async def decide(
        self,
        tenant: str,
        intent_id: str,
        verdict: Verdict,
        *,
        approver: str,
        step_id: str | None = None,
        reason: str = "",
        plan_digest: str | None = None,
    ) -> Envelope:
        """Approve or deny a step, or all that are asked; `plan_digest`: of the card that the person saw.

        Raises SagaError: DECISION_INVALID, DECISION_LATE, NOT_ALLOWED, INTENT_NOT_FOUND, INTERRUPTED.
        """
        known = await find(self._database, tenant, intent_id)
        bound = plan_digest or _asked_digest(known, step_id)
        if bound is None:
            raise SagaError(
                Reason.DECISION_INVALID,
                f"Intent {known.standing.intent_id} was rejected; there is nothing to decide.",
                phase=Phase.APPROVAL,
            )
        if approver.casefold() == known.row["agent"].casefold():
            refused = SagaError(
                Reason.NOT_ALLOWED,
                f"{approver} is the agent of this intent, in whatever letters; an agent has no say in approvals.",
                details={"approver": approver},
                phase=Phase.APPROVAL,
            )
            return error_envelope(refused.info, _meta(known.standing.intent_id, known.report().outcome, step_id))
        identity = [known.intent_key, bound, step_id, verdict, approver]
        message = valid(
            Decision,
            {
                "intent_id": known.standing.intent_id,
                "decision_id": f"d-{digest(identity)[:24]}",
                "plan_digest": bound,
                "verdict": verdict,
                "approver": approver,
                "step_id": step_id,
                "reason": reason,
            },
        )
        if not known.standing.phase.is_final:
            answer = await self.tell(known.row["workflow_id"], "decide", message, MessageAnswer)
            if answer is not None:
                return _envelope(known.standing.intent_id, answer, Reason.DECISION_LATE, step_id)
            known = await find(self._database, tenant, known.standing.intent_id)
        recorded = await self._database.one(
            "select 1 from backstay.decisions where intent_key = %s and decision_id = %s limit 1",
            (known.intent_key, message.decision_id),
        )
        if recorded is not None:
            return _taken(known, "The decision was taken.", step_id)
        raise self.ended(known, Reason.DECISION_LATE)

    async def resolve(
        self,
        tenant: str,
        intent_id: str,
        verb: Verb,
        *,
        operator: str,
        step_id: str | None = None,
        evidence: str = "",
    ) -> Envelope:
        """Say how a parked saga goes on. Raises SagaError: RESOLUTION_INVALID, INTENT_NOT_FOUND, INTERRUPTED."""
        known = await find(self._database, tenant, intent_id)
        # Of this parking: the same verb may be needed again when it parks again.
        since = known.row["parked_since"]
        identity = [known.intent_key, step_id, verb, operator, since.isoformat() if since else None]
        message = valid(
            Resolution,
            {
                "intent_id": known.standing.intent_id,
                "resolution_id": f"r-{digest(identity)[:24]}",
                "verb": verb,
                "operator": operator,
                "step_id": step_id,
                "evidence": evidence,
            },
        )
        if not known.standing.phase.is_final:
            answer = await self.tell(known.row["workflow_id"], "resolve", message, MessageAnswer)
            if answer is not None:
                return _envelope(known.standing.intent_id, answer, Reason.RESOLUTION_INVALID, step_id)
            known = await find(self._database, tenant, known.standing.intent_id)
        recorded = await self._database.one(
            "select 1 from backstay.resolutions where resolution_id = %s", (message.resolution_id,)
        )
        if recorded is not None:
            return _taken(known, "The resolution was taken.", step_id)
        raise self.ended(known, Reason.RESOLUTION_INVALID)

    async def is_sent_instead(self, refused: SagaError, known: Known, wish: Cancellation) -> bool:
        """Send a wish to stop as a signal where Temporal has no room for one more update of the run."""
        if refused.info.details.get("status") != RPCStatusCode.RESOURCE_EXHAUSTED.name:
            return False
        try:
            await self._client.get_workflow_handle(known.row["workflow_id"]).signal("cancel", wish)
        except RPCError as error:
            raise refused from error
        return True

    async def tell(
        self,
        workflow_id: str,
        update: str,
        message: BaseModel,
        gives: type[A],
        update_id: str | None = None,
    ) -> A | None:
        """Send an update and return the saga's answer; None when it ended meanwhile. Raises SagaError."""
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer: A = await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - of the SDK
                    update, message, id=update_id, result_type=gives
                )
        except WorkflowUpdateFailedError as failed:
            self._refused(failed)
            return None
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            raise SagaError(
                Reason.OUTCOME_UNKNOWN,
                f"No worker answered for {workflow_id} in {ANSWER_SECONDS_MAX:.0f} seconds; it may still arrive.",
                details={"workflow_id": workflow_id, "seconds": ANSWER_SECONDS_MAX},
                suggestion="Say the same again when a worker runs; it counts once.",
            ) from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise SagaError(
                Reason.DEPENDENCY_DOWN,
                f"Temporal did not take the message ({error.status.name}); send it again.",
                details={"status": error.status.name},
            ) from error
        return answer

    def _refused(self, failed: WorkflowUpdateFailedError) -> None:
        """Read why an update was refused; nothing is wrong when the saga closed over it. Raises SagaError."""
        cause = failed.cause
        if not isinstance(cause, ApplicationError) or cause.type is None or cause.type not in Reason.__members__:
            return
        refused = refusal_of(cause)
        if refused.reason is not Reason.TOO_LATE:
            raise refused

    def ended(self, known: Known, late: Reason) -> SagaError:
        """Make the error for what came when the intent had its outcome, or has no run."""
        standing = known.standing
        if standing.phase.is_final:
            return SagaError(
                late,
                f"Intent {standing.intent_id} ended {standing.phase}; this changed nothing.",
                details={"intent_id": standing.intent_id, "outcome": standing.phase.value},
            )
        return SagaError(
            Reason.INTERRUPTED,
            f"Intent {standing.intent_id} has no run that could take this; `backstay sweep` starts one, then say it"
            " again.",
            details={"intent_id": standing.intent_id},
        )


def _asked_digest(known: Known, step_id: str | None) -> str | None:
    """What a decision names when nobody says the card. Raises SagaError(DECISION_INVALID) where there are several."""
    ask, plan_digest = known.standing.ask, known.standing.plan_digest
    digests = ask.digests(plan_digest, ask.undecided if step_id is None else (step_id,))
    named = set(digests.values()) or {plan_digest}
    if len(named) > 1:
        raise SagaError(
            Reason.DECISION_INVALID,
            f"Decisions are asked about {', '.join(digests)}, each by a card of its own; name the step.",
            details={"steps": list(digests)},
            phase=Phase.APPROVAL,
        )
    return named.pop()


def valid(model: type[M], values: dict[str, Any]) -> M:
    """Make a message. Raises SagaError(ARGUMENTS_INVALID) with every wrong field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise refusal(Reason.ARGUMENTS_INVALID, field_problems(error, shape_of(model), values)) from None


def _envelope(intent_id: str, answer: MessageAnswer, late: Reason, step_id: str | None = None) -> Envelope:
    """Answer a person: 200 means taken, whatever the saga still has to do."""
    meta = _meta(intent_id, answer.outcome, step_id)
    if answer.accepted:
        data = {"accepted": True, "message": answer.message, "outcome": answer.outcome.value}
        return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=meta)
    phase = Phase.APPROVAL if late is Reason.DECISION_LATE else Phase.EXECUTION
    error = answer.error or SagaError(late, answer.message, phase=phase).info
    return error_envelope(error, meta)


def sent_unanswered(known: Known) -> Envelope:
    """Answer a wish to stop that went as a signal: on its way, and whether it comes in time is not known."""
    intent_id = known.standing.intent_id
    message = (
        "Temporal has no room for one more message that is answered, so this went as one that is not: the intent stops,"
        " unless it ends before."
    )
    data: dict[str, Any] = {"accepted": None, "message": message, "outcome": Outcome.PENDING.value}
    meta = _meta(intent_id, Outcome.PENDING, None)
    return Envelope(status_code=202, status=Status.PENDING, data=data, meta=meta)


def _taken(known: Known, message: str, step_id: str | None = None) -> Envelope:
    outcome = known.report().outcome
    data = {"accepted": True, "message": message, "outcome": outcome.value}
    return Envelope(
        status_code=200, status=Status.SUCCESS, data=data, meta=_meta(known.standing.intent_id, outcome, step_id)
    )


def _meta(intent_id: str, outcome: Outcome, step_id: str | None) -> Meta:
    return Meta(
        intent_id=intent_id,
        step_id=step_id,
        timestamp=now_text(),
        poll_after_ms=None if outcome.is_final else POLL_RUNNING_MS,
    )
