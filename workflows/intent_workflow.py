"""The driver: turns the reducer's commands into activities and timers, and their results into events.

It decides nothing. Each command runs in a task of its own that no cancel reaches: Temporal's cancel hits the main
coroutine only and becomes one more event. The run completes with its envelope; it fails only for a rejection that
may be retried (so that the same id may start again), and a bug of ours fails the workflow *task*, which stops, is
mended and resumes. Shape after the trials in `docs/driver.md`.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey, SearchAttributePair
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from contracts import saga
from contracts.envelope import Cause, Envelope, Meta, intent_envelope
from contracts.errors import ErrorInfo, SagaError
from contracts.plan import PlannedStep
from contracts.reasons import Reason
from contracts.tool import Dispatch
from workflows import commands as do
from workflows import events as on
from workflows.details import markdown
from workflows.growing import Growing
from workflows.reading import NO_INPUT, read
from workflows.reducer import advance, begin
from workflows.state import Stage, State

T = TypeVar("T", bound=BaseModel)

LOCAL_SECONDS: Final = timedelta(seconds=5)
ORDINARY_SECONDS: Final = timedelta(seconds=10)
LOCAL_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=2.0, maximum_attempts=2
)
ENGINE_RETRY: Final = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10))
REMOTE_COMMITS_SECONDS: Final = 8.0
TOOLS_BYTES_MAX: Final = 1_800
BY_TEMPORAL: Final = saga.Cancellation(reason="cancelled in Temporal", requested_by="temporal")

_STATE: Final = SearchAttributeKey.for_keyword(saga.SEARCH_STATE)
_TENANT: Final = SearchAttributeKey.for_keyword(saga.SEARCH_TENANT)
_AGENT: Final = SearchAttributeKey.for_keyword(saga.SEARCH_AGENT)
_RISK: Final = SearchAttributeKey.for_keyword(saga.SEARCH_RISK)
_TOOLS: Final = SearchAttributeKey.for_keyword_list(saga.SEARCH_TOOLS)


@workflow.defn(name=saga.WORKFLOW)
class IntentWorkflow(Growing):
    """One intent, from admission to its envelope."""

    @workflow.init
    def __init__(self, request: RawValue = NO_INPUT) -> None:
        """Start the reducer here: messages can arrive before `run`. `request` is read by admission only.

        The first command waits for `run`, whose context carries the trace.
        """
        self._request = read(request)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bug: BaseException | None = None
        self._finish: do.Finish | None = None
        self._refused: Counter[str] = Counter()
        self._adding = asyncio.Lock()
        self._words = self._words_bytes = self._unanswered = self._signals = 0
        self._state, self._first = begin()

    @workflow.run
    async def run(self, request: RawValue = NO_INPUT) -> Envelope:  # noqa: ARG002 - read in __init__
        """Carry the intent to its envelope. Raises ApplicationError for a rejection that may be posted again."""
        self._emit(self._first)
        while not (self._finish is not None and workflow.all_handlers_finished()):
            try:
                await workflow.wait_condition(
                    lambda: self._bug is not None or (self._finish is not None and workflow.all_handlers_finished())
                )
            except asyncio.CancelledError:
                self._take(on.CancelRequested(BY_TEMPORAL))
            if self._bug is not None:
                raise self._bug
        self._show(self._state)
        finish = self._finish
        envelope = self._envelope(finish.error)
        if finish.failed and finish.error is not None:
            raise ApplicationError(
                finish.error.message,
                envelope.model_dump(mode="json"),
                type=finish.error.code.value,
                non_retryable=True,
            )
        return envelope

    @workflow.query(description="The envelope as it stands.")
    def status(self) -> Envelope:
        """Answer with the envelope as it stands."""
        return self._envelope(self._state.error)

    # --- commands -------------------------------------------------------------------------------------------------

    def _take(self, event: on.Event) -> None:
        """Feed one event to the reducer; synchronous, so that nothing comes between state and commands."""
        self._state, commands = advance(self._state, event)
        self._emit(commands)
        if self._state.stage in (Stage.AWAITING_APPROVAL, Stage.OPEN, Stage.PARKED):
            self._show(self._state)

    def _emit(self, commands: tuple[do.Command, ...]) -> None:
        for command in commands:
            if isinstance(command, do.Finish):
                self._finish = command
                continue
            task = asyncio.create_task(self._do(command))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error

    async def _do(self, command: do.Command) -> None:
        """Carry out one command and feed back what came of it."""
        match command:
            case do.Execute():
                await pause(command.after_seconds)
                self._take(self._overtaken(command) or await self._execute(command))
            case do.Grade():
                self._take(await self._grade(command))
            case do.Lookup():
                await pause(command.after_seconds)
                self._take(await self._look_up(command))
            case do.Compensate():
                self._take(await self._compensate(command))
            case do.Ask():
                await self._ask(command)
            case do.AwaitStep():
                await self._await_step(command)
            case _:
                self._take(await self._engine(command))

    async def _engine(self, command: do.Command) -> on.Event:
        """Admit, close, settle or park: never given up before the database has answered."""
        try:
            match command:
                case do.Admit():
                    info = workflow.info()
                    admit = saga.AdmitRequest(request=self._request, workflow_id=info.workflow_id, run_id=info.run_id)
                    return on.Admitted(await self._call(saga.ADMIT, admit, saga.Standing))
                case do.CloseIntent(cause, error, actor):
                    close = saga.CloseRequest(claim=self._claim(), cause=cause, error=error, actor=actor)
                    return on.IntentClosed(await self._call(saga.CLOSE, close, saga.Closed))
                case do.Settle():
                    steps = tuple(step.report() for step in self._state.steps.values() if step.transaction_id is None)
                    settle = saga.SettleRequest(claim=self._claim(), steps=steps)
                    return on.Admitted(await self._call(saga.SETTLE, settle, saga.Standing))
                case do.Park(reason, detail):
                    park = saga.ParkRequest(claim=self._claim(), reason=reason, detail=detail)
                    return on.Admitted(await self._call(saga.PARK, park, saga.Standing))
                case _:
                    raise AssertionError(f"no activity for {command}")
        except SagaError as error:
            if error.reason is Reason.RUN_STALE:
                return on.RunStale()
            if isinstance(command, do.Admit):
                return on.Rejected(error.info)
            raise

    def _overtaken(self, command: do.Execute) -> on.Event | None:
        """Leave a step out that has rested while the saga turned back: it has not begun."""
        if command.after_seconds == 0 or self._state.cause is Cause.NONE or self._state.past_pivot:
            return None
        error = SagaError(Reason.SUPERSEDED, f"Step {command.step_id!r} had not begun when the intent was stopped.")
        return on.StepRefused(command.step_id, error.info)

    async def _execute(self, command: do.Execute) -> on.Event:
        step = self._state.known_plan.by_id[command.step_id]
        call = saga.StepCall(claim=self._claim(), step_id=step.step_id, arguments=command.arguments)
        left = timedelta(seconds=self._seconds_left())
        try:
            unbounded = self._state.past_pivot and (step.is_remote or step.confirms is not None)
            attempts_max = 0 if unbounded else step.attempts_max
            result = await self._call(
                step.tool, call, saga.StepResult, step=step, attempts_max=attempts_max, within=left
            )
        except SagaError as error:
            return on.StepRefused(step.step_id, error.info)
        return on.StepLanded(result)

    async def _grade(self, command: do.Grade) -> on.Event:
        call = saga.GradeCall(claim=self._claim(), step_id=command.step_id)
        try:
            return on.StepGraded(command.step_id, answer=await self._call(saga.GRADE, call, saga.GradeAnswer))
        except SagaError as error:
            return on.StepGraded(command.step_id, error=error.info)

    async def _look_up(self, command: do.Lookup) -> on.Event:
        """Ask until there is an answer: whatever the downstream does is one."""
        step = self._state.known_plan.by_id[command.step_id]
        call = saga.LookupCall(claim=self._claim(), step_id=step.step_id, closing=command.closing)
        try:
            return on.StepSighted(await self._call(f"{step.tool}.lookup", call, saga.Sighting, step=step))
        except SagaError as error:
            return on.StepRefused(step.step_id, error.info)

    async def _compensate(self, command: do.Compensate) -> on.Event:
        plan = self._state.known_plan
        step = plan.by_id[command.step_id]
        call = saga.CompensateCall(claim=self._claim(), step_id=step.step_id)
        while True:
            try:
                result = await self._call(
                    f"{step.tool}.compensate",
                    call,
                    saga.CompensateResult,
                    step=step,
                    attempts_max=plan.compensation_attempts_max,
                    interval_max=timedelta(seconds=plan.compensation_backoff_max_seconds),
                )
            except SagaError as error:
                if not (step.is_remote and error.reason is Reason.RATE_LIMITED):
                    return on.CompensationRefused(step.step_id, error.info)
                await pause(error.info.details.get("retry_after_seconds", 1.0))  # it was not tried: it costs no attempt
            else:
                return on.StepCompensated(result)

    async def _ask(self, command: do.Ask) -> None:
        """Wait until the decision is made or its time is over; the database judges which came first."""
        self._upsert(self._state.stage.value)
        try:
            await workflow.wait_condition(
                lambda: self._state.stage is not Stage.AWAITING_APPROVAL,
                timeout=timedelta(seconds=max(1.0, command.expires_in_seconds)),
                timeout_summary=f"decision about {', '.join(command.step_ids)}",
            )
        except TimeoutError:
            self._take(on.ApprovalDue())

    async def _await_step(self, command: do.AwaitStep) -> None:
        """Wait until something is added or ends it, or nothing was for as long as it may be."""
        self._upsert(Stage.OPEN.value)
        seconds = min(command.seconds, self._seconds_left())
        try:
            await workflow.wait_condition(
                lambda: self._state.stage is not Stage.OPEN or self._state.waits != command.number,
                timeout=timedelta(seconds=seconds),
                timeout_summary="the next step",
            )
        except TimeoutError:
            error = SagaError(
                Reason.DEADLINE_EXCEEDED,
                f"No step was added, and nothing was committed, for {seconds:.0f} seconds.",
                details={"seconds": seconds},
            )
            self._take(on.NothingAdded(command.number, error.info))

    def _seconds_left(self) -> float:
        """How long this run may still go forward, by this run's clock."""
        passed = (workflow.now() - workflow.info().start_time).total_seconds()
        return max(1.0, self._state.known_plan.deadline_seconds - passed)

    async def _call(
        self,
        name: str,
        request: BaseModel,
        gives: type[T],
        *,
        step: PlannedStep | None = None,
        attempts_max: int = 0,
        interval_max: timedelta = timedelta(seconds=10),
        within: timedelta | None = None,
    ) -> T:
        """Run an activity: locally twice where it is short and ours, then by the same name as an ordinary one.

        Raises SagaError for every refusal, and the last transient one when the attempts ran out.
        """
        if step is None or step.dispatch is Dispatch.DATABASE:
            try:
                local: T = await workflow.execute_local_activity(
                    name,
                    request,
                    result_type=gives,
                    start_to_close_timeout=LOCAL_SECONDS,
                    retry_policy=LOCAL_RETRY,
                )
            except (ActivityError, ApplicationError) as error:
                refused = refusal_of(error)
                if not refused.reason.is_transient:
                    raise refused from None
            else:
                return local
        try:
            ordinary: T = await workflow.execute_activity(
                name,
                request,
                result_type=gives,
                start_to_close_timeout=timedelta(seconds=seconds_of(step)) if step else ORDINARY_SECONDS,
                schedule_to_close_timeout=within,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=500),
                    maximum_interval=interval_max,
                    maximum_attempts=attempts_max,
                    non_retryable_error_types=[Reason.RATE_LIMITED.value] if step and step.is_remote else None,
                ),
            )
        except (ActivityError, ApplicationError) as error:
            raise refusal_of(error) from None
        else:
            return ordinary

    @property
    def _is_duplicate(self) -> bool:
        return self._finish is not None and self._finish.duplicate

    def _claim(self) -> saga.Claim:
        info = workflow.info()
        return saga.Claim(
            intent_key=self._state.known_plan.intent_key,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            epoch=self._state.epoch,
        )

    # --- what people see ----------------------------------------------------------------------------------------

    def _envelope(self, error: ErrorInfo | None) -> Envelope:
        state, duplicate = self._state, self._is_duplicate
        elapsed = workflow.now() - workflow.info().start_time
        return intent_envelope(
            state.snapshot(),
            error,
            Meta(
                intent_id=state.intent_id,
                timestamp=workflow.now().isoformat(timespec="milliseconds"),
                duration_ms=int(elapsed.total_seconds() * 1000),
                duplicate=duplicate,
                duplicate_of=state.intent_id if duplicate else None,
            ),
        )

    def _show(self, state: State) -> None:
        """Tell Temporal's own UI: the state as a search attribute, the card as Markdown."""
        if state.stage is Stage.FINISHED:
            self._upsert(state.outcome().value)
        elif state.stage is Stage.PARKED:
            self._upsert(Stage.PARKED.value)
        workflow.set_current_details(markdown(state))

    def _upsert(self, value: str) -> None:
        pairs: list[SearchAttributePair[Any]] = [SearchAttributePair(_STATE, value)]
        if plan := self._state.plan:
            pairs += [
                SearchAttributePair(_TENANT, plan.caller.tenant),
                SearchAttributePair(_AGENT, plan.caller.agent),
                SearchAttributePair(_RISK, plan.risk_level),
                SearchAttributePair(_TOOLS, fitting(plan.tools)),
            ]
        current = workflow.info().typed_search_attributes
        if any(current.get(pair.key) != pair.value for pair in pairs):
            updates = [pair.key.value_set(pair.value) for pair in pairs]
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] - the SDK's own gap


def seconds_of(step: PlannedStep) -> float:
    """How long one attempt of a step's activity may take: a remote one may look up, call and read back."""
    return 3 * step.timeout_seconds + REMOTE_COMMITS_SECONDS if step.is_remote else step.timeout_seconds


async def pause(seconds: float) -> None:
    """Wait by a durable timer; not at all for nothing, which costs no event."""
    if seconds > 0:
        await workflow.sleep(timedelta(seconds=seconds))


def fitting(tools: tuple[str, ...]) -> list[str]:
    """Cut the list of tools to what Temporal takes (2,048 bytes measured): more would end the run."""
    found: list[str] = []
    for tool in tools:
        if sum(len(name.encode()) + 4 for name in found) + len(tool.encode()) > TOOLS_BYTES_MAX:
            break
        found.append(tool)
    return found


def refusal_of(error: ActivityError | ApplicationError) -> SagaError:
    """Unwrap what an activity said: a local failure is bare, an ordinary one wrapped, a timeout has no reason."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError) and cause.type is not None and cause.type in Reason.__members__:
        details = cause.details[0] if cause.details else None
        if isinstance(details, dict):
            refused = SagaError(Reason(cause.type), cause.message)
            refused.info = ErrorInfo.model_validate(details)
            return refused
        return SagaError(Reason(cause.type), cause.message)
    if isinstance(cause, TemporalTimeoutError):
        return SagaError(Reason.DEPENDENCY_DOWN, "The activity did not answer in time.")
    return SagaError(Reason.INTERNAL, "The activity failed in a way it has no reason for.")


__all__ = ["IntentWorkflow", "refusal_of"]
