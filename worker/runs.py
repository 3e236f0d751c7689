"""What Temporal knows of an intent's run: is one open, what does it wait for, how did one end before admission."""

from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from contracts.base import Record
from contracts.envelope import Envelope, IntentReport, Meta, Outcome, intent_envelope
from contracts.errors import SagaError
from contracts.reasons import Reason
from worker.answers import POLL_RUNNING_MS, named, not_found, now_text

ACTIVITIES_MAX: Final = 20


class PendingActivity(Record):
    """An activity that Temporal has not had an answer to; `next_attempt_at` is set between two attempts."""

    name: str
    attempt: int
    running: bool
    next_attempt_at: str | None = None
    last_failure: str | None = None


@dataclass(frozen=True)
class Run:
    """The latest run of a workflow: open, none, or unknown while Temporal does not answer."""

    state: str = "none"
    activities: tuple[PendingActivity, ...] = ()
    workflow_task_attempt: int = 0


async def run_of(client: Client, workflow_id: str) -> Run:
    """Describe a workflow's latest run."""
    try:
        described = await _described(client, workflow_id)
    except RPCError:
        return Run("unknown")
    if described is None or described.status is not WorkflowExecutionStatus.RUNNING:
        return Run()
    raw = described.raw_description
    activities = tuple(_activity(pending) for pending in list(raw.pending_activities)[:ACTIVITIES_MAX])
    return Run("open", activities, raw.pending_workflow_task.attempt)


async def has_open_run(client: Client, workflow_id: str) -> bool:
    """True while a run of this workflow is open. Raises RPCError when Temporal does not answer."""
    described = await _described(client, workflow_id)
    return described is not None and described.status is WorkflowExecutionStatus.RUNNING


async def unadmitted(client: Client, tenant: str, intent_id: str) -> Envelope:
    """Answer for an intent that the tables do not know: on its way to admission, or refused there and not claimed.

    Raises SagaError: INTENT_NOT_FOUND (also for another tenant's), DEPENDENCY_DOWN.
    """
    try:
        described = await _described(client, intent_id)
        if described is None or (await described.memo()).get("tenant") != tenant:
            raise not_found(intent_id)
        if described.status is WorkflowExecutionStatus.FAILED:
            await client.get_workflow_handle(intent_id, run_id=described.run_id).result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        if isinstance(cause, ApplicationError) and cause.details and isinstance(cause.details[0], dict):
            return named(Envelope.model_validate(cause.details[0]), intent_id)
        raise not_found(intent_id) from failure
    except RPCError as error:
        raise SagaError(
            Reason.DEPENDENCY_DOWN,
            f"The tables do not know {intent_id} and Temporal does not answer ({error.status.name}); ask again.",
            details={"status": error.status.name},
        ) from error
    if described.status is not WorkflowExecutionStatus.RUNNING:
        raise not_found(intent_id)  # ended from outside before anything was claimed
    report = IntentReport(outcome=Outcome.PENDING, waiting_for="admission")
    return intent_envelope(report, None, Meta(intent_id=intent_id, timestamp=now_text(), poll_after_ms=POLL_RUNNING_MS))


async def _described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Describe the latest run; None when Temporal has none. Raises RPCError."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _activity(pending: Any) -> PendingActivity:  # noqa: ANN401 - a protobuf message
    running = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    due = None
    if not running and pending.HasField("next_attempt_schedule_time"):
        due = pending.next_attempt_schedule_time.ToDatetime().isoformat(timespec="seconds") + "+00:00"
    return PendingActivity(
        name=pending.activity_type.name,
        attempt=pending.attempt,
        running=running,
        next_attempt_at=due,
        last_failure=pending.last_failure.message or None,
    )
