"""Reads what a saga learned, and what it did, from nothing but its history: a second opinion on the driver.

It shares no code with the driver. What it knows of the SDK: within one workflow task signals and updates are handled
first, then Temporal's own cancel, then the results of ordinary activities and timers, then local activities as their
markers stand; a timer that was started and cancelled in one task leaves no trace, but the search attribute does.
A chain runs one step at a time, so the step of a failed local activity (its marker has no input) follows from the plan.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType as Kind
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from contracts import saga
from contracts.base import JsonObject
from contracts.errors import ErrorInfo, SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from workflows import events as on

M = TypeVar("M", bound=BaseModel)
RESULTS: Final = frozenset(
    {
        Kind.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        Kind.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        Kind.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
        Kind.EVENT_TYPE_TIMER_FIRED,
    }
)
MESSAGES: Final = frozenset(
    {Kind.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED, Kind.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED}
)
CANCEL: Final = Kind.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
ENGINE: Final = {
    saga.ADMIT: "admit",
    saga.CLOSE: "close",
    saga.SETTLE: "settle",
    saga.PARK: "park",
    saga.GRADE: "grade",
}
ASKING: Final = b'"AWAITING_APPROVAL"'
ASKS: Final = "decision about "
UNDO: Final = ".compensate"


@dataclass(frozen=True)
class Shown:
    """A command as a history shows it; None where it does not show something."""

    kind: str
    tool: str | None = None
    step_id: str | None = None
    arguments: JsonObject | None = None
    cause: str | None = None
    end: tuple[str, str, bool, bool] | None = None
    """Of the last one: outcome, cause, whether a duplicate, whether the run failed."""

    def is_of(self, whole: "Shown") -> bool:
        """True when all that is shown is also in a command that is wholly known."""
        return all(mine is None or mine == getattr(whole, name) for name, mine in vars(self).items())


@dataclass
class Read:
    """What a history says: what the saga learned, what it did, and what it was told that it could not use."""

    events: list[on.Event] = field(default_factory=list[on.Event])
    shown: list[Shown] = field(default_factory=list[Shown])
    features: set[str] = field(default_factory=set[str])
    ended: bool = False


def in_order_of_learning(history: Sequence[HistoryEvent]) -> Iterator[HistoryEvent]:
    """Sort the events by when the saga's code saw them, not by when the server wrote them."""
    pending: list[HistoryEvent] = []
    tasks: list[tuple[list[HistoryEvent], list[HistoryEvent]]] = []
    for event in history:
        if event.event_type == Kind.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            started = event.workflow_task_completed_event_attributes.started_event_id
            tasks.append(([one for one in pending if one.event_id < started], []))
            pending = [one for one in pending if one.event_id > started]
        elif event.event_type in RESULTS or event.event_type in (
            CANCEL,
            Kind.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        ):
            pending.append(event)
        elif tasks:
            tasks[-1][1].append(event)
    for came, own in tasks:
        yield from (event for event in [*came, *own] if event.event_type in MESSAGES)
        yield from (event for event in came if event.event_type == CANCEL)
        yield from (event for event in came if event.event_type in RESULTS)
        yield from (event for event in own if event.event_type not in MESSAGES)


@dataclass
class _Call:
    """An ordinary activity that has been scheduled."""

    name: str
    step_id: str | None


@dataclass
class Reader:
    """Goes through one history."""

    read: Read = field(default_factory=Read)
    _plan: Plan | None = None
    _done: set[str] = field(default_factory=set[str])
    _landed: set[str] = field(default_factory=set[str])
    _graded: set[str] = field(default_factory=set[str])
    _calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    _asking: bool = False
    _rests: set[str] = field(default_factory=set[str])
    """Timers of steps that wait for something; those of people have a summary."""
    _resolutions: list[saga.Resolution] = field(default_factory=list[saga.Resolution])

    def through(self, history: Iterable[HistoryEvent]) -> Read:
        """Read it all."""
        for event in in_order_of_learning(list(history)):
            self._event(event)
        return self.read

    def _event(self, event: HistoryEvent) -> None:
        match event.event_type:
            case Kind.EVENT_TYPE_MARKER_RECORDED:
                self._local(event)
            case Kind.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                self._scheduled(event)
            case Kind.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                self._message("signal", signal.signal_name, signal.input)
            case Kind.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                told = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
                self._message("update", told.name, told.args)
            case Kind.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
                self.read.features.add("cancel by temporal")
                self.read.events.append(on.CancelRequested(saga.Cancellation(requested_by="temporal")))
            case (
                Kind.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
                | Kind.EVENT_TYPE_ACTIVITY_TASK_FAILED
                | Kind.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT
            ):
                self._ordinary(event)
            case _:
                self._other(event)

    def _other(self, event: HistoryEvent) -> None:
        match event.event_type:
            case Kind.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
                fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
                if fields[saga.SEARCH_STATE].data == ASKING:
                    self._asking = True
                    self.read.shown.append(Shown("ask"))
            case Kind.EVENT_TYPE_TIMER_STARTED if not event.user_metadata.summary.data:
                self._rests.add(event.timer_started_event_attributes.timer_id)
            case Kind.EVENT_TYPE_TIMER_FIRED if event.timer_fired_event_attributes.timer_id in self._rests:
                self.read.features.add("a step rested")
            case Kind.EVENT_TYPE_TIMER_STARTED:
                summary = str(json.loads(event.user_metadata.summary.data)).removeprefix(ASKS)
                if self._asking:
                    self.read.shown.pop()
                self._asking = False
                self.read.shown.append(Shown("ask", step_id=summary))
            case Kind.EVENT_TYPE_TIMER_FIRED:
                self.read.events.append(on.ApprovalDue())
            case Kind.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                self._end(_json(event.workflow_execution_completed_event_attributes.result), failed=False)
            case Kind.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
                failure = event.workflow_execution_failed_event_attributes.failure
                self._end(_json(failure.application_failure_info.details), failed=True)
            case _:
                pass

    def _end(self, envelope: Any, *, failed: bool) -> None:  # noqa: ANN401 - JSON
        data, duplicate = envelope["data"], bool(envelope["meta"]["duplicate"])
        self.read.ended = True
        self.read.shown.append(Shown("finish", end=(data["outcome"], data["cause"], duplicate, failed)))

    def _message(self, door: str, name: str, payloads: Payloads) -> None:
        self.read.features.add(f"{name} by {door}")
        models: dict[str, type[BaseModel]] = {"cancel": saga.Cancellation, "resolve": saga.Resolution}
        if name not in models or len(payloads.payloads) != 1:
            return  # a decision is an event when the database has answered, not before
        try:
            message = models[name].model_validate(_json(payloads))
        except ValidationError:
            return
        if isinstance(message, saga.Cancellation):
            self.read.events.append(on.CancelRequested(message))
        elif isinstance(message, saga.Resolution):
            self._resolutions.append(message)

    # --- activities ---------------------------------------------------------------------------------------------

    def _local(self, event: HistoryEvent) -> None:
        marker = event.marker_recorded_event_attributes
        assert marker.marker_name == "core_local_activity", marker.marker_name
        name = _json(marker.details["data"])["activity_type"]
        error = _error_of(marker.failure) if marker.HasField("failure") else None
        if error is not None and error.code.is_transient:
            self.read.features.add("fallback to an ordinary activity")
            return  # the same call comes again, as an ordinary activity
        result = None if error else _json(marker.details["result"])
        step_id = self._step_of(name, result)
        if name not in (saga.ADMIT_DECISION, saga.ADMIT_RESOLUTION):
            arguments = result["applied_args"] if result and step_id and not name.endswith(UNDO) else None
            self._show(name, step_id, arguments)
        self._answered(name, step_id, result, error)

    def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        name, request = scheduled.activity_type.name, _json(scheduled.input)
        self._calls[event.event_id] = _Call(name, request.get("step_id"))
        if name not in (saga.ADMIT_DECISION, saga.ADMIT_RESOLUTION):
            self._show(name, request.get("step_id"), request.get("arguments"), request.get("cause"))

    def _ordinary(self, event: HistoryEvent) -> None:
        match event.event_type:
            case Kind.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                call = self._calls[completed.scheduled_event_id]
                self._answered(call.name, call.step_id, _json(completed.result), None)
            case Kind.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                call = self._calls[failed.scheduled_event_id]
                self._answered(call.name, call.step_id, None, _error_of(failed.failure))
            case _:
                late = event.activity_task_timed_out_event_attributes
                call = self._calls[late.scheduled_event_id]
                self._answered(call.name, call.step_id, None, _error_of(late.failure))

    def _show(
        self, name: str, step_id: str | None, arguments: JsonObject | None = None, cause: str | None = None
    ) -> None:
        self._asking = False
        if name in ENGINE:
            self.read.shown.append(Shown(ENGINE[name], cause=cause))
        elif name.endswith(UNDO):
            self.read.shown.append(Shown("compensate", name.removesuffix(UNDO), step_id))
        else:
            self.read.shown.append(Shown("execute", name, step_id, arguments))

    def _step_of(self, name: str, result: Any) -> str | None:  # noqa: ANN401 - JSON
        """Name the step of a local activity: its result says so; for a failed one, the chain does."""
        if name in ENGINE or name in (saga.ADMIT_DECISION, saga.ADMIT_RESOLUTION):
            return None
        if result is not None:
            return str(result["step_id"])
        assert self._plan is not None, "no step before admission"
        if name.endswith(UNDO):
            last = [step for step in self._plan.steps if step.step_id in self._landed][-1]
        else:
            last = next(step for step in self._plan.steps if step.step_id not in self._done)
        assert last.tool == name.removesuffix(UNDO), f"{name} is not the tool of {last.step_id}, whose turn it is"
        return last.step_id

    def _answered(self, name: str, step_id: str | None, result: Any, error: ErrorInfo | None) -> None:  # noqa: ANN401
        event = self._failure(name, step_id, error) if error else self._success(name, result)
        if event is not None:
            self.read.events.append(event)

    def _success(self, name: str, result: Any) -> on.Event:  # noqa: ANN401, PLR0911 - JSON; one for each activity
        match name:
            case saga.ADMIT | saga.SETTLE | saga.PARK:
                standing = saga.Standing.model_validate(result)
                self._plan = standing.plan or self._plan
                if standing.parked:
                    self.read.features.add(f"parked {standing.parked}")
                return on.Admitted(standing)
            case saga.CLOSE:
                closed = saga.Closed.model_validate(result)
                self._landed = {effect.step_id for effect in closed.effects if effect.state == "LANDED"}
                return on.IntentClosed(closed)
            case saga.GRADE:
                graded = saga.GradeAnswer.model_validate(result)
                self._graded.add(graded.graded.step_id)
                return on.StepGraded(graded.graded.step_id, answer=graded)
            case saga.ADMIT_DECISION:
                return on.DecisionAdmitted(saga.DecisionAnswer.model_validate(result))
            case saga.ADMIT_RESOLUTION:
                resolution = self._resolutions.pop(0)
                self.read.features.add(f"resolved {resolution.verb}")
                return on.Resolved(resolution, saga.ResolutionAnswer.model_validate(result))
            case _ if name.endswith(UNDO):
                undone = saga.CompensateResult.model_validate(result)
                self._landed.discard(undone.step_id)
                return on.StepCompensated(undone)
            case _:
                landed = saga.StepResult.model_validate(result)
                self._done.add(landed.step_id)
                return on.StepLanded(landed)

    def _failure(self, name: str, step_id: str | None, error: ErrorInfo) -> on.Event | None:
        if name in (saga.ADMIT_DECISION, saga.ADMIT_RESOLUTION):
            if name == saga.ADMIT_RESOLUTION:
                self._resolutions.pop(0)
            return on.RunDoubted() if error.code is Reason.RUN_STALE else None
        if name == saga.GRADE:
            assert self._plan is not None, "no grade before admission"
            turn = next(step for step in self._plan.steps if step.late and step.step_id not in self._graded)
            return on.StepGraded(turn.step_id, error=error)
        if name in ENGINE:
            if error.code is Reason.RUN_STALE:
                return on.RunStale()
            assert name == saga.ADMIT, f"{name} failed: {error.message}"
            return on.Rejected(error)
        assert step_id is not None, "a tool is called for a step"
        return on.CompensationRefused(step_id, error) if name.endswith(UNDO) else on.StepRefused(step_id, error)


def _json(payloads: Payloads) -> Any:  # noqa: ANN401 - JSON
    return json.loads(payloads.payloads[0].data)


def _error_of(failure: Failure) -> ErrorInfo:
    info = failure.application_failure_info
    if failure.HasField("application_failure_info") and info.type in Reason.__members__:
        if info.details.payloads:
            return ErrorInfo.model_validate(_json(info.details))
        return SagaError(Reason(info.type), failure.message).info
    if failure.HasField("timeout_failure_info"):
        return SagaError(Reason.DEPENDENCY_DOWN, "The activity did not answer in time.").info
    return SagaError(Reason.INTERNAL, "The activity failed in a way it has no reason for.").info
