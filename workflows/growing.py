"""The messages of an open intent: open, add_step, commit and abort, each an update that is answered.

Adds and commits stand in one queue, in the order in which Temporal accepted them: the next one is asked of the tables
when all that was added before it is done. Mixed into the workflow, which carries out what they mean.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from contracts import opening
from contracts.base import JsonObject
from contracts.envelope import Cause, Outcome, StepState, cause_error
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason
from contracts.wire import BODY_BYTES_MAX
from workflows import events as on
from workflows.hearing import Hearing
from workflows.reading import NO_INPUT, heard
from workflows.state import Stage

ENDS: Final = (Stage.PARKED, Stage.FINISHED)
ASKED_AGAIN_MAX: Final = 3
"""How often the tables are asked for one message while they are ahead of the run."""


class Growing(Hearing):
    """Takes what an agent says to its open intent, besides what people say."""

    _adding: asyncio.Lock
    _words: int
    _words_bytes: int
    _unanswered: int

    @workflow.update(name=opening.OPENED, description="Answered once the intent takes steps.")
    async def opened(self, body: RawValue = NO_INPUT) -> opening.OpenAnswer:
        """Wait until steps are taken."""
        with self._counted(body):
            await workflow.wait_condition(self._is_ready)
        if self._state.stage is Stage.OPEN:
            return self._says(accepted=True, message="The intent takes steps.")
        return self._says(accepted=False, message=self._why_not())

    @opened.validator
    def _check_opening(self, body: RawValue = NO_INPUT) -> None:
        self._check_queue(body, opening.Opening)

    @workflow.update(name=opening.ADD_STEP, description="Add a step and run it; answered with its output.")
    async def add_step(self, body: RawValue = NO_INPUT) -> opening.OpenAnswer:
        """Add a step and wait until it is done, or the intent has its outcome."""
        step = heard(body, opening.Addition).step
        step_id = str(step.get("step_id"))
        with self._counted(body):
            async with self._adding:
                refused = await self._grow(step, final=False)
                if refused is None:
                    await workflow.wait_condition(lambda: self._state.stage in ENDS or self._is_done(step_id))
        if refused is not None:
            return refused
        if self._is_done(step_id):
            return self._says(accepted=True, message=f"Step {step_id} is done.", step_id=step_id)
        return self._says(accepted=False, message=self._why_not(), error=self._error(), step_id=step_id)

    @add_step.validator
    def _check_addition(self, body: RawValue = NO_INPUT) -> None:
        self._check_queue(body, opening.Addition)

    @workflow.update(
        name=opening.COMMIT, description="Add nothing more, but perhaps a last step, and commit; answered."
    )
    async def commit(self, body: RawValue = NO_INPUT) -> opening.OpenAnswer:
        """Seal the plan and wait for the outcome."""
        final_step = heard(body, opening.Commit).final_step
        with self._counted(body):
            async with self._adding:
                refused = await self._grow(final_step, final=True)
                await workflow.wait_condition(lambda: refused is not None or self._state.stage in ENDS)
        if refused is not None and self._state.outcome() is not Outcome.COMMITTED:
            return refused
        committed = self._state.outcome() is Outcome.COMMITTED
        return self._says(accepted=committed, message=self._why_not(), error=None if committed else self._error())

    @commit.validator
    def _check_commit(self, body: RawValue = NO_INPUT) -> None:
        self._check_queue(body, opening.Commit)

    @workflow.update(name=opening.ABORT, description="Add nothing more and undo what landed; answered.")
    async def abort(self, body: RawValue = NO_INPUT) -> opening.OpenAnswer:
        """Turn back, and wait for the outcome."""
        with self._counted(body):
            answer = self._cancel(heard(body, opening.Abort))
            if not answer.accepted and self._state.past_pivot:
                return self._says(accepted=False, message=answer.message)
            await workflow.wait_condition(lambda: self._state.stage in ENDS)
        is_undone = self._state.outcome() in (Outcome.COMPENSATED, Outcome.NOT_APPLIED)
        return self._says(accepted=is_undone, message=self._why_not())

    @abort.validator
    def _check_abort(self, body: RawValue = NO_INPUT) -> None:
        self._check_word(body, opening.Abort)

    @contextmanager
    def _counted(self, body: RawValue) -> Generator[None]:
        """Count an update, and that it is unanswered as long as this lasts."""
        self._words += 1
        self._words_bytes += len(body.payload.data)
        self._unanswered += 1
        try:
            yield
        finally:
            self._unanswered -= 1

    def _check_queue(self, body: RawValue, model: type[BaseModel]) -> None:
        """Take so many at a time that `cancel` and `abort` still come through to Temporal."""
        self._check_word(body, model)
        if self._unanswered >= opening.WAITING_MAX:
            raise ApplicationError(
                f"{opening.WAITING_MAX} updates of this run are not answered yet; say it again when one is.",
                type=Reason.RATE_LIMITED.value,
            )

    def _check_word(self, body: RawValue, model: type[BaseModel]) -> None:
        """Bound the history: updates that a person needs (decide, cancel, resolve) have bounds of their own."""
        self._check_open(body, model, BODY_BYTES_MAX)
        size_bytes = len(body.payload.data)
        is_free = size_bytes <= opening.UPDATE_BYTES_FREE
        if not is_free and self._words_bytes + size_bytes > opening.UPDATES_BYTES_MAX:
            raise ApplicationError(
                f"This run has taken updates of {self._words_bytes} bytes, and takes {opening.UPDATES_BYTES_MAX} in"
                f" all; from now on only such of at most {opening.UPDATE_BYTES_FREE} bytes.",
                type=Reason.RATE_LIMITED.value,
            )
        if self._words >= opening.UPDATES_MAX:
            raise ApplicationError(
                f"This run has taken {opening.UPDATES_MAX} updates and takes no more of these; cancel it, or let it end"
                " by its inactivity.",
                type=Reason.RATE_LIMITED.value,
            )

    async def _grow(self, step: JsonObject | None, *, final: bool) -> opening.OpenAnswer | None:
        """Ask the tables to take it, and let the saga know; None when it was taken."""
        for _ in range(ASKED_AGAIN_MAX):
            await workflow.wait_condition(self._is_ready)
            if self._state.stage in ENDS:
                return self._says(accepted=False, message=self._why_not(), error=self._error())
            request = opening.AddRequest(claim=self._claim(), step=step, final=final)
            try:
                answer = await self._call(opening.ADMIT_STEP, request, opening.AddAnswer)
            except SagaError as error:
                said = self._not_taken(error)
                return self._says(accepted=False, message=said.message, error=said.error)
            self._take(on.StepAdded(answer.standing) if answer.standing else on.StepNotAdded())
            if answer.accepted:
                return None
            if answer.error is not None:
                if answer.error.code is Reason.TOO_LATE and self._state.known_plan.opened:
                    await workflow.wait_condition(lambda: self._state.stage in ENDS)
                return self._says(accepted=False, message=answer.error.message, error=answer.error)
        behind = SagaError(Reason.IN_PROGRESS, "The run was behind its tables; say it again.")
        return self._says(accepted=False, message=str(behind), error=behind.info)

    def _is_ready(self) -> bool:
        """True when the tables can be asked: everything that was added is done, or nothing will be."""
        plan = self._state.plan
        return self._state.stage in (Stage.OPEN, *ENDS) or (plan is not None and not plan.is_open)

    def _is_done(self, step_id: str) -> bool:
        """True when it stands: not when the saga is turning back over it."""
        step = self._state.steps.get(step_id)
        return step is not None and step.state is StepState.DONE and self._state.cause is Cause.NONE

    def _why_not(self) -> str:
        outcome = self._state.outcome()
        if outcome is Outcome.PENDING:
            return f"The intent is {self._state.stage.lower()}."
        return f"The intent is {outcome}."

    def _error(self) -> ErrorInfo:
        """Say why an intent takes nothing more: its own error, its cause, or that it has its outcome."""
        state = self._state
        if state.stage is Stage.PARKED:
            return SagaError(Reason.INTENT_PARKED, f"Intent {state.intent_id} is parked: {state.parked}.").info
        if state.error is not None:
            return state.error
        cause = state.report.cause if state.report is not None else state.cause
        return cause_error(cause) if cause is not Cause.NONE else SagaError(Reason.TOO_LATE, self._why_not()).info

    def _says(
        self, *, accepted: bool, message: str, error: ErrorInfo | None = None, step_id: str | None = None
    ) -> opening.OpenAnswer:
        step = self._state.steps.get(step_id) if step_id is not None else None
        return opening.OpenAnswer(
            accepted=accepted,
            message=message,
            error=error,
            outcome=self._state.outcome(),
            step=step.report() if step is not None else None,
        )
