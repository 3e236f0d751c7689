"""An open intent on the real servers, as an agent holds it."""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowUpdateHandle, WorkflowUpdateStage
from temporalio.service import RPCError, RPCStatusCode

from contracts.base import JsonObject
from contracts.envelope import Envelope, Outcome
from contracts.opening import OpenAnswer
from tests.support.sagas import BOUND_SECONDS, CALLER, Handle, Sagas

MONEY = {"currency": "EUR", "reason_code": "PURCHASE"}


@dataclass
class Opened:
    """What an agent may say, and what the tables hold of it."""

    sagas: Sagas
    handle: Handle

    async def say(self, update: str, message: object, **more: Any) -> OpenAnswer:  # noqa: ANN401 - the SDK's
        """Send an update and wait for the answer; what meets the end of the run is told its outcome, as by the door."""
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                answer: Any = await self.handle.execute_update(update, message, **more)  # pyright: ignore[reportUnknownMemberType]
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # which "aborted by closing workflow" is, too
                raise
            ended = Outcome((((await self.result()).data) or {})["outcome"])
            wanted = {"commit": ended is Outcome.COMMITTED, "abort": ended is not Outcome.COMMITTED}
            return OpenAnswer(accepted=wanted.get(update, False), message=str(error), outcome=ended)
        return OpenAnswer.model_validate(answer)

    async def add(self, step: JsonObject, **more: Any) -> OpenAnswer:  # noqa: ANN401 - as above
        """Add a step."""
        return await self.say("add_step", {"step": step}, **more)

    async def begin_adding(self, step: JsonObject) -> WorkflowUpdateHandle[Any]:
        """Add a step and come back when it stands in the queue: what is said from now on comes after it."""
        return await self.handle.start_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's own gap
            "add_step", {"step": step}, wait_for_stage=WorkflowUpdateStage.ACCEPTED
        )

    async def commit(self, final_step: JsonObject | None = None) -> OpenAnswer:
        """Add nothing more."""
        return await self.say("commit", {"final_step": final_step})

    async def abort(self) -> OpenAnswer:
        """Undo it."""
        return await self.say("abort", {"reason": "enough", "requested_by": "agent"})

    async def result(self) -> Envelope:
        """Wait for the envelope of the run."""
        return await self.sagas.result(self.handle)

    def effects(self) -> dict[str, str]:
        """State of each execute row by step, in landing order."""
        return {row["step_id"]: row["state"] for row in self._rows("execute")}

    def undone(self) -> list[str]:
        """Steps whose compensation landed, in landing order."""
        return [row["step_id"] for row in self._rows("compensate")]

    def _rows(self, direction: str) -> list[JsonObject]:
        return self.sagas.rows(
            "select step_id, state from backstay.effects join backstay.intents using (intent_key)"
            " where workflow_id = %s and direction = %s order by transaction_id",
            self.handle.id,
            direction,
        )


def body(name: str = "trip") -> JsonObject:
    """Input of the workflow: an open intent in a conversation of its own."""
    session = f"s-{uuid.uuid4().hex}"
    intent = {"protocol": 1, "session_id": session, "open": name}
    return {"protocol": 1, "caller": CALLER.model_dump(), "intent": intent, "business_reference": session}


async def opened(sagas: Sagas) -> Opened:
    """Open an intent and wait until it takes steps."""
    found = Opened(sagas, await sagas.start(body()))
    answer = await found.say("open", {})
    assert answer.accepted, answer.message
    return found


def freeze(amount: object = 500, account: str = "A00000001") -> JsonObject:
    """A step that holds an amount."""
    arguments = {"account_id": account, "amount_cents": amount, **MONEY}
    return {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": arguments}


def debit(amount: object = 500) -> JsonObject:
    """A step that captures what `freeze` holds."""
    more = {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": "S00000002", "amount_cents": amount}
    return {"step_id": "debit", "tool": "debit_frozen_funds", "arguments": {**MONEY, **more}}
