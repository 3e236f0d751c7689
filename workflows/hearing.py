"""What people say to a saga: decide, cancel and resolve, each as an update (answered) and as a signal (not answered).

A message that a person may send never fails the workflow task, whatever it holds. Mixed into the workflow, which
carries out what they mean; the database judges what counts.
"""

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from contracts import opening, saga
from contracts.envelope import Cause, Outcome
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason
from workflows import events as on
from workflows.reading import NO_INPUT, check_body, heard
from workflows.state import Stage, State

T = TypeVar("T", bound=BaseModel)
M = TypeVar("M", saga.Decision, saga.Cancellation, saga.Resolution)

REFUSALS_MAX: Final = 200
"""How often one word (approve, close, ...) may come to nothing; what is accepted is bounded by what can be decided."""


class Hearing(ABC):
    """Takes what people say."""

    _state: State
    _refused: Counter[str]
    _signals: int

    @workflow.update(name="decide", description="Approve or deny what is asked; answered.")
    async def decide(self, body: RawValue = NO_INPUT) -> saga.MessageAnswer:
        """Take a person's decision; the database judges it."""
        return await self._decide(heard(body, saga.Decision), "update")

    @decide.validator
    def _check_decide(self, body: RawValue = NO_INPUT) -> None:
        self._check_open(body, saga.Decision)
        self._check_count(heard(body, saga.Decision).verdict)

    @workflow.signal(name="decide", description="Approve or deny what is asked; not answered.")
    async def decide_signal(self, *bodies: Any) -> None:  # noqa: ANN401 - whatever was sent
        """Take a person's decision without answering."""
        decision = message_of(saga.Decision, bodies)
        if self._hears() and decision and self._refused[decision.verdict] < REFUSALS_MAX:
            await self._decide(decision, "signal")

    @workflow.update(name="cancel", description="Stop the intent and undo what landed; answered.")
    async def cancel(self, body: RawValue = NO_INPUT) -> saga.MessageAnswer:
        """Take a wish to stop; one that comes before admission's answer is told what came of it."""
        stage, answer = self._state.stage, self._cancel(heard(body, saga.Cancellation))
        if answer.accepted and stage is Stage.ADMITTING:
            await workflow.wait_condition(lambda: self._state.stage is not Stage.ADMITTING)
            if self._state.stage is Stage.PARKED or self._state.outcome() is Outcome.COMMITTED or self._is_duplicate:
                return self._too_late()
        return answer

    @cancel.validator
    def _check_cancel(self, body: RawValue = NO_INPUT) -> None:
        self._check_open(body, saga.Cancellation)

    @workflow.signal(name="cancel", description="Stop the intent and undo what landed; not answered.")
    async def cancel_signal(self, *bodies: Any) -> None:  # noqa: ANN401 - as above
        """Take a wish to stop without answering."""
        cancellation = message_of(saga.Cancellation, bodies)
        if self._hears() and cancellation:
            self._cancel(cancellation)

    @workflow.update(name="resolve", description="Say how a parked intent goes on; answered.")
    async def resolve(self, body: RawValue = NO_INPUT) -> saga.MessageAnswer:
        """Take an operator's verb; the database judges it."""
        return await self._resolve(heard(body, saga.Resolution))

    @resolve.validator
    def _check_resolve(self, body: RawValue = NO_INPUT) -> None:
        self._check_open(body, saga.Resolution)
        self._check_count(heard(body, saga.Resolution).verb)

    @workflow.signal(name="resolve", description="Say how a parked intent goes on; not answered.")
    async def resolve_signal(self, *bodies: Any) -> None:  # noqa: ANN401 - as above
        """Take an operator's verb without answering."""
        resolution = message_of(saga.Resolution, bodies)
        if self._hears() and resolution and self._refused[resolution.verb] < REFUSALS_MAX:
            await self._resolve(resolution)

    def _hears(self) -> bool:
        """Count a signal; nobody is answered, so what is beyond the bound is passed over."""
        self._signals += 1
        return self._signals <= opening.SIGNALS_MAX

    def _check_open(self, body: RawValue, model: type[BaseModel], bytes_max: int = saga.MESSAGE_BYTES_MAX) -> None:
        check_body(body, model, bytes_max)
        if self._state.stage is Stage.FINISHED:
            raise ApplicationError("The intent has its outcome; nothing can change it.", type=Reason.TOO_LATE.value)

    def _check_count(self, word: str) -> None:
        """Bound the history: a word that came to nothing too often is not taken any more, every other one is."""
        if self._refused[word] >= REFUSALS_MAX:
            raise ApplicationError(
                f"{REFUSALS_MAX} times {word!r} came to nothing; this run takes no more of it. Terminate the run in"
                " Temporal and call `backstay sweep`: the run that adopts the intent takes all words again.",
                type=Reason.RATE_LIMITED.value,
            )

    async def _decide(self, decision: saga.Decision, door: str) -> saga.MessageAnswer:
        await workflow.wait_condition(lambda: self._state.plan is not None or self._state.stage is Stage.FINISHED)
        if self._state.stage is Stage.FINISHED:
            return self._answer(accepted=False, message="The intent has its outcome; the decision changed nothing.")
        request = saga.DecisionRequest(claim=self._claim(), decision=decision, door=door)  # type: ignore[arg-type]
        try:
            answer = await self._call(saga.ADMIT_DECISION, request, saga.DecisionAnswer)
        except SagaError as error:
            return self._not_taken(error)
        self._take(on.DecisionAdmitted(answer))
        done = "approved" if decision.verdict == "approve" else "denied"
        message = answer.error.message if answer.error else done
        self._refused[decision.verdict] += not answer.accepted
        return self._answer(accepted=answer.accepted, message=message, error=answer.error)

    async def _resolve(self, resolution: saga.Resolution) -> saga.MessageAnswer:
        await workflow.wait_condition(lambda: self._state.stage not in (Stage.ADMITTING, Stage.PARKING))
        if self._state.stage is not Stage.PARKED:
            return self._answer(accepted=False, message="The intent is not parked; there is nothing to resolve.")
        request = saga.ResolutionRequest(claim=self._claim(), resolution=resolution)
        try:
            answer = await self._call(saga.ADMIT_RESOLUTION, request, saga.ResolutionAnswer)
        except SagaError as error:
            return self._not_taken(error)
        if self._state.stage is Stage.PARKED:
            self._take(on.Resolved(resolution, answer))
        taken = f"{resolution.verb} taken" + (f"; residue: {answer.residue}" if answer.residue else "")
        message = answer.error.message if answer.error else taken
        self._refused[resolution.verb] += not answer.accepted
        return self._answer(accepted=answer.accepted, message=message, error=answer.error)

    def _not_taken(self, error: SagaError) -> saga.MessageAnswer:
        """Answer that the database did not take a message; a run that it does not know (reset) asks how it stands."""
        if error.reason is Reason.RUN_STALE:
            self._take(on.RunDoubted())
        return self._answer(accepted=False, message=str(error), error=error.info)

    def _cancel(self, cancellation: saga.Cancellation) -> saga.MessageAnswer:
        stage, expiring = self._state.stage, self._state.cause is Cause.EXPIRED
        is_open = stage in (Stage.ADMITTING, Stage.AWAITING_APPROVAL, Stage.FORWARD, Stage.OPEN)
        if self._state.past_pivot or not (is_open or (stage is Stage.CLOSING and expiring)):
            return self._too_late()
        if cancellation.intent_id not in (None, self._state.intent_id) and self._state.intent_id is not None:
            return self._answer(
                accepted=False, message=f"This is intent {self._state.intent_id}, not the one you mean."
            )
        self._take(on.CancelRequested(cancellation))
        return self._answer(accepted=True, message="The intent is being stopped.")

    def _too_late(self) -> saga.MessageAnswer:
        """Answer that a wish to stop changes nothing."""
        stands = "another run's" if self._is_duplicate else self._state.stage.lower()
        return self._answer(accepted=False, message=f"Too late: the intent is {stands}.")

    def _answer(self, *, accepted: bool, message: str, error: ErrorInfo | None = None) -> saga.MessageAnswer:
        return saga.MessageAnswer(accepted=accepted, message=message, error=error, outcome=self._state.outcome())

    # --- what the workflow has ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _is_duplicate(self) -> bool: ...

    @abstractmethod
    def _take(self, event: on.Event) -> None: ...

    @abstractmethod
    async def _call(self, name: str, request: BaseModel, gives: type[T]) -> T: ...

    @abstractmethod
    def _claim(self) -> saga.Claim: ...


def message_of(model: type[M], bodies: tuple[Any, ...]) -> M | None:
    """Read what a signal brought; None when it is not one message of the model.

    A signal's handler that raised would fail the workflow task for ever, so nothing is left to the SDK.
    """
    try:
        return model.model_validate(bodies[0]) if len(bodies) == 1 else None
    except ValidationError:
        return None
