"""Why an intent stands where it stands: what blocks it, what happens next by itself and when, what a person can do.

Phase, decisions and effects come from the tables; which activity runs, and when it is tried again, from Temporal.
"""

from datetime import datetime
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from contracts.base import JsonObject, Record
from contracts.envelope import Cause, Outcome
from contracts.errors import ErrorInfo
from contracts.saga import IntentPhase, ParkReason
from worker.answers import Known
from worker.listings import resolve_commands

ACTIVITIES_MAX: Final = 20
_FAILING_AFTER_ATTEMPTS: Final = 3
_VERB_EFFECTS: Final = {
    "retry": "tries the step again",
    "skip": "leaves the effect as it is, listed as residue",
    "done": "says that it was undone by hand",
    "close": "undoes what landed",
    "forward": "goes on with the plan",
}


class PendingActivity(Record):
    """An activity that Temporal has not had an answer to; `next_attempt_at` is set between two attempts."""

    name: str
    attempt: int
    running: bool
    next_attempt_at: str | None = None
    last_failure: str | None = None


class Option(Record):
    """Something that a person can do now: the exact command, and what it brings about."""

    command: str
    effect: str


class Outlook(Record):
    """The answer of `backstay why`. `run` is open, none, or unknown while Temporal does not answer."""

    intent_id: str
    outcome: Outcome
    phase: IntentPhase
    cause: Cause
    error: ErrorInfo | None
    blocked_by: str | None
    next_action: str | None
    next_action_at: str | None
    parked: ParkReason | None
    parked_detail: JsonObject | None
    run: str
    activities: tuple[PendingActivity, ...]
    deadline_at: str
    options: tuple[Option, ...]


async def outlook_of(client: Client, known: Known) -> Outlook:
    """Put together what the tables and Temporal know of an intent."""
    standing = known.standing
    run, activities, workflow_task_attempt = await _run_of(client, known)
    blocked, action, at = _next(known, run, activities, workflow_task_attempt)
    return Outlook(
        intent_id=standing.intent_id,
        outcome=known.report().outcome,
        phase=standing.phase,
        cause=standing.cause,
        error=standing.error,
        blocked_by=blocked,
        next_action=action,
        next_action_at=at,
        parked=standing.parked,
        parked_detail=standing.parked_detail,
        run=run,
        activities=activities,
        deadline_at=known.row["deadline_at"].isoformat(timespec="seconds"),
        options=tuple(_options(known, run)),
    )


async def has_open_run(client: Client, workflow_id: str) -> bool:
    """True while a run of this workflow is open. Raises RPCError when Temporal does not answer."""
    return await _described(client, workflow_id) is not None


async def _described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Describe the latest run; None when none is open. Raises RPCError."""
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return described if described.status is WorkflowExecutionStatus.RUNNING else None


async def _run_of(client: Client, known: Known) -> tuple[str, tuple[PendingActivity, ...], int]:
    """Tell the run's state, its pending activities, and how often its workflow task was tried."""
    if known.standing.phase.is_final:
        return "none", (), 0
    try:
        described = await _described(client, known.row["workflow_id"])
    except RPCError:
        return "unknown", (), 0
    if described is None:
        return "none", (), 0
    raw = described.raw_description
    activities = tuple(_activity(pending) for pending in list(raw.pending_activities)[:ACTIVITIES_MAX])
    return "open", activities, raw.pending_workflow_task.attempt


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


def _next(
    known: Known, run: str, activities: tuple[PendingActivity, ...], workflow_task_attempt: int
) -> tuple[str | None, str | None, str | None]:
    """Say what blocks it, what happens next by itself, and when."""
    standing = known.standing
    if standing.phase.is_final:
        return None, None, None
    if standing.parked is not None:
        stuck = ", ".join(known.stuck())
        return f"parked {standing.parked}{f' on {stuck}' if stuck else ''}: an operator has to act", None, None
    if run == "none":
        return "no run carries it (it was ended from outside)", "none; `backstay sweep` starts a run", None
    if known.is_at_rest:
        asked = ", ".join(standing.ask.undecided)
        return f"a decision about {asked}", "it expires, and nothing is done", standing.ask.expires_at
    return _next_of_run(run, activities, workflow_task_attempt)


def _next_of_run(
    run: str, activities: tuple[PendingActivity, ...], workflow_task_attempt: int
) -> tuple[str, str, str | None]:
    """Say the same of an intent that nobody has to decide about."""
    waiting = [activity for activity in activities if activity.next_attempt_at is not None]
    if waiting:
        first = min(waiting, key=lambda activity: activity.next_attempt_at or "")
        why = f": {first.last_failure}" if first.last_failure else ""
        action = f"{first.name} is tried again (attempt {first.attempt})"
        return f"{first.name} failed{why}", action, first.next_attempt_at
    if activities:
        names = ", ".join(activity.name for activity in activities)
        return f"{names} is running or waits for a worker", "it goes on when that answers", None
    if workflow_task_attempt >= _FAILING_AFTER_ATTEMPTS:
        failed = f"its workflow task failed {workflow_task_attempt - 1} times; see the worker's log"
        return failed, "the task is tried again by the next worker", None
    if run == "unknown":
        return "Temporal does not answer", "it goes on when Temporal is back", None
    return "nothing: a worker has it, or will take it next", "its next step runs", None


def _options(known: Known, run: str) -> list[Option]:
    standing = known.standing
    intent_id = standing.intent_id
    if standing.phase.is_final:
        return _options_when_final(known)
    if run == "none":
        return [Option(command="backstay sweep", effect="starts a run, which parks it for you to close or forward")]
    if standing.parked is not None:
        commands = resolve_commands(intent_id, standing)
        return [Option(command=command, effect=_VERB_EFFECTS[verb]) for verb, command in commands]
    options: list[Option] = []
    if standing.phase is IntentPhase.ADMITTED:
        for step_id in standing.ask.undecided:
            options.append(Option(command=f"backstay approve {intent_id} {step_id}", effect="lets the step run"))
            options.append(Option(command=f"backstay deny {intent_id} {step_id}", effect="ends the intent"))
        options.append(Option(command=f"backstay intent cancel {intent_id}", effect="stops it and undoes what landed"))
    return options


def _options_when_final(known: Known) -> list[Option]:
    left = [step for step in known.report().steps if step.residue is not None]
    if known.standing.phase is IntentPhase.COMMITTED or left:
        following = known.row["occurrence"] + 1
        return [Option(command=f"post it with occurrence {following}", effect="does the same once more, on purpose")]
    return [
        Option(command=f"post it with retry_of {known.standing.intent_id}", effect="tries it again: nothing was left")
    ]


def due_text(at: str | None, now: datetime) -> str:
    """Say when something happens, and in how long."""
    if at is None:
        return ""
    seconds = int((datetime.fromisoformat(at) - now).total_seconds())
    if seconds <= 0:
        return f"at {at} (now)"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"at {at} (in {text})"
