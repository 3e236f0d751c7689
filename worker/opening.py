"""The door to open intents: open one, add steps, commit or abort, each with one envelope.

Saying the same again is safe: a step counts once by its id, commit and abort are the same however often they are said.
An update that Temporal answers with "not found" or "aborted by closing workflow" came when the saga had its outcome,
and gets it from the tables.
"""

import json
from typing import Any, Final, LiteralString, Self

from temporalio.client import Client

from activities.database import Database
from activities.dispatch import Engine
from contracts import opening
from contracts.base import JsonObject
from contracts.envelope import Envelope, Meta, Outcome, Status, StepReport, StepState, error_envelope
from contracts.errors import ErrorInfo, SagaError
from contracts.growth import request_digest
from contracts.intent import Caller
from contracts.opening import Abort, Addition, Commit, OpenAnswer
from contracts.reasons import EffectOutcome, Reason
from contracts.wire import parse_object
from worker.answers import Known, find, now_text
from worker.door import Door
from worker.messages import Messages, sent_unanswered, valid
from worker.settings import Settings

_ADDED: Final[LiteralString] = "select request_digest from backstay.added_steps where intent_key = %s and step_id = %s"


class Openings:
    """What an agent may do with open intents; `intent_id` may be a unique beginning of one."""

    def __init__(self, door: Door, database: Database) -> None:
        """Open through `door`, which stays the caller's to close, and look into `database`."""
        self._door = door
        self._messages: Messages = door.messages
        self._database = database

    @classmethod
    def of(cls, client: Client, engine: Engine, settings: Settings) -> Self:
        """Make a door of its own for it."""
        return cls(Door.of(client, engine, settings), engine.database)

    async def open(
        self,
        name: str,
        caller: Caller,
        *,
        session_id: str,
        goal: str | None = None,
        **more: Any,  # noqa: ANN401
    ) -> Envelope:
        """Open an intent under a name that the conversation has not used; the same again joins it.

        `more`: what `Door.post` takes. Never raises for what the caller or the world did.
        """
        intent = {"protocol": 1, "session_id": session_id, "open": name} | ({} if goal is None else {"goal": goal})
        envelope = await self._door.post(json.dumps(intent).encode(), caller, **more)
        is_open = envelope.status is Status.PENDING and envelope.error is None and envelope.data is not None
        if not is_open or envelope.meta.intent_id is None:
            return envelope
        known = await find(self._database, caller.tenant, envelope.meta.intent_id)
        if not known.is_open or known.standing.parked is not None:
            return envelope
        meta = envelope.meta.model_copy(update={"poll_after_ms": None})
        return envelope.model_copy(update={"status_code": 200, "status": Status.SUCCESS, "meta": meta})

    async def add(
        self, caller: Caller, intent_id: str, body: bytes, *, call_id: str | None = None, update_id: str | None = None
    ) -> Envelope:
        """Add a step, `{step_id, tool, arguments}`, and answer with its output; it counts once by its id.

        Raises SagaError: INTENT_NOT_FOUND, NOT_ALLOWED, INTERRUPTED, RATE_LIMITED, what is wrong with the body.
        """
        step = parse_object(body)
        known = await self._found(caller, intent_id)
        answer = await self._tell(known, opening.ADD_STEP, Addition(step=step), update_id)
        if answer is None or (not answer.accepted and answer.outcome.is_final):
            return await self._over(known, step, answer, call_id)
        meta = _meta(known, call_id, answer.step)
        if not answer.accepted:
            return error_envelope(answer.error or SagaError(Reason.TOO_LATE, answer.message).info, meta)
        return _added(answer.step, answer.message, answer.outcome, meta)

    async def commit(
        self, caller: Caller, intent_id: str, *, final_step: bytes | None = None, call_id: str | None = None
    ) -> Envelope:
        """Add nothing more but perhaps a last step, and answer with the outcome of all. Raises as `add`."""
        step = None if final_step is None else parse_object(final_step)
        known = await self._found(caller, intent_id)
        answer = await self._tell(known, opening.COMMIT, Commit(final_step=step), None)
        if answer is not None and not answer.accepted and answer.outcome is Outcome.PENDING:
            meta = _meta(known, call_id)
            return error_envelope(answer.error or SagaError(Reason.TOO_LATE, answer.message).info, meta)
        ended = await self._again(known)
        if step is not None and not await self._has(ended, step):
            return _too_late(ended, call_id)
        return _called(ended.envelope(), call_id)

    async def abort(self, caller: Caller, intent_id: str, *, reason: str = "", call_id: str | None = None) -> Envelope:
        """Undo all that was added and answer with the outcome: 200 when nothing of it is left. Raises as `add`."""
        known = await self._found(caller, intent_id)
        wish = valid(Abort, {"reason": reason, "requested_by": caller.agent})
        try:
            answer = await self._tell(known, opening.ABORT, wish, None)
        except SagaError as error:
            if await self._messages.is_sent_instead(error, known, wish):
                return _called(sent_unanswered(known), call_id)
            raise
        if answer is not None and not answer.accepted and answer.outcome is Outcome.PENDING:
            meta = _meta(known, call_id)
            return error_envelope(answer.error or SagaError(Reason.TOO_LATE, answer.message).info, meta)
        ended = await self._again(known)
        report = ended.report()
        if report.outcome is Outcome.COMMITTED:
            return _too_late(ended, call_id)
        if not report.outcome.is_final:
            return _called(ended.envelope(), call_id)
        data = report.model_dump(mode="json")
        return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=_meta(ended, call_id))

    async def _found(self, caller: Caller, intent_id: str) -> Known:
        """Find an open intent of the caller's principal. Raises SagaError."""
        known = await find(self._database, caller.tenant, intent_id)
        if known.row["principal"] != caller.principal:
            raise SagaError(
                Reason.NOT_ALLOWED,
                f"Intent {known.standing.intent_id} is on behalf of another principal.",
                details={"intent_id": known.standing.intent_id},
            )
        plan = known.standing.plan
        if plan is None or not plan.opened:
            raise SagaError(
                Reason.TOO_LATE,
                f"Intent {known.standing.intent_id} is no open one: its steps were all posted with it.",
                details={"intent_id": known.standing.intent_id},
                suggestion="Post another intent, or open one.",
            )
        return known

    async def _tell(
        self, known: Known, update: str, message: Addition | Commit | Abort, update_id: str | None
    ) -> OpenAnswer | None:
        """Say it to the saga; None when it has its outcome."""
        if known.standing.phase.is_final:
            return None
        return await self._messages.tell(known.row["workflow_id"], update, message, OpenAnswer, update_id)

    async def _again(self, known: Known) -> Known:
        """Look how it stands after it was told. Raises SagaError(INTERRUPTED) when no run carries it."""
        seen = await find(self._database, known.row["tenant"], known.standing.intent_id)
        if not seen.standing.phase.is_final and seen.standing.parked is None:
            raise self._messages.ended(seen, Reason.TOO_LATE)
        return seen

    async def _over(self, known: Known, step: JsonObject, answer: OpenAnswer | None, call_id: str | None) -> Envelope:
        """Answer a step that met the end: as it was answered before, or with the outcome of the saga."""
        seen = await self._again(known)
        outcome = seen.report().outcome
        mine = next((told for told in seen.report().steps if told.step_id == step.get("step_id")), None)
        if outcome is Outcome.COMMITTED and mine is not None and await self._has(seen, step):
            return _added(mine, "The step was done before.", outcome, _meta(seen, call_id, mine))
        return _too_late(seen, call_id, answer.error if answer is not None else None)

    async def _has(self, known: Known, step: JsonObject) -> bool:
        """True when this very step was added to the intent."""
        row = await self._database.one(_ADDED, (known.intent_key, str(step.get("step_id"))))
        return row is not None and row["request_digest"] == request_digest(step)


def _added(step: StepReport | None, message: str, outcome: Outcome, meta: Meta) -> Envelope:
    data: JsonObject = {
        "accepted": True,
        "message": message,
        "outcome": outcome.value,
        "step": step.model_dump(mode="json") if step is not None else None,
    }
    return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=meta)


def _too_late(known: Known, call_id: str | None, error: ErrorInfo | None = None) -> Envelope:
    """Refuse with the outcome of the saga, and how each of its steps ended."""
    report = known.report()
    told = (
        error
        or SagaError(
            Reason.TOO_LATE,
            f"Intent {known.standing.intent_id} ended {report.outcome}; this changed nothing.",
            details={"intent_id": known.standing.intent_id, "outcome": report.outcome.value},
        ).info
    )
    left = EffectOutcome.COMPENSATED if report.outcome is Outcome.COMPENSATED else EffectOutcome.NOT_APPLIED
    envelope = error_envelope(told.model_copy(update={"outcome": left}), _meta(known, call_id))
    return envelope.model_copy(update={"data": report.model_dump(mode="json")})


def _meta(known: Known, call_id: str | None, step: StepReport | None = None) -> Meta:
    done = step if step is not None and step.state is StepState.DONE else None
    return Meta(
        intent_id=known.standing.intent_id,
        step_id=step.step_id if step is not None else None,
        tool=step.tool if step is not None else None,
        transaction_id=done.transaction_id if done is not None else None,
        applied_args=done.applied_args if done is not None else None,
        call_id=call_id,
        timestamp=now_text(),
    )


def _called(envelope: Envelope, call_id: str | None) -> Envelope:
    return envelope.model_copy(update={"meta": envelope.meta.model_copy(update={"call_id": call_id})})
