"""Why an intent stands where it stands: what blocks it, what happens next by itself and when, what a person can do.

Phase, decisions and effects come from the tables; which activity runs, and when it is tried again, from Temporal.
"""

from typing import Final

from temporalio.client import Client

from activities.database import Row
from activities.phase import pivot_landed
from contracts.base import JsonObject, Record, as_object
from contracts.envelope import Cause, Outcome
from contracts.errors import ErrorInfo
from contracts.question import Question
from contracts.saga import IntentPhase, ParkReason
from worker.answers import Known
from worker.listings import resolve_commands
from worker.runs import PendingActivity, Run, run_of, unadmitted

_FAILING_AFTER_ATTEMPTS: Final = 3
_VERB_EFFECTS: Final = {
    "retry": "tries the step again",
    "skip": "leaves the effect as it is, listed as residue",
    "done": "says that it was undone by hand",
    "close": "undoes what landed",
    "forward": "goes on with the plan",
}
_STUCK_EFFECTS: Final = {
    **_VERB_EFFECTS,
    "skip": "leaves the reservation unconfirmed, listed as residue",
    "done": "says that it was confirmed by hand: it counts as an effect from now on",
}
_UNKNOWN_EFFECTS: Final = {
    "retry": "looks it up again under the same key, with new patience",
    "skip": "says that it did not land: it is fenced, and the intent turns back",
    "done": "says that it landed: it counts as an effect from now on",
    "close": "looks it up on the way back, and undoes what landed",
}
_EFFECTS: Final = {
    ParkReason.OUTCOME_UNKNOWN: _UNKNOWN_EFFECTS,
    ParkReason.STUCK_AFTER_PIVOT: _STUCK_EFFECTS,
}


class Option(Record):
    """Something that a person can do now: the exact command, and what it brings about."""

    command: str
    effect: str


class Outlook(Record):
    """The answer of `backstay why`; `phase` is None before admission.

    `run` is open, none, or unknown while Temporal does not answer.
    """

    intent_id: str
    outcome: Outcome
    phase: IntentPhase | None
    cause: Cause
    error: ErrorInfo | None
    blocked_by: str | None
    next_action: str | None
    next_action_at: str | None
    parked: ParkReason | None
    parked_detail: JsonObject | None
    unknown: tuple[Question, ...] = ()
    run: str
    activities: tuple[PendingActivity, ...]
    deadline_at: str | None
    options: tuple[Option, ...]


async def outlook_of(client: Client, known: Known, in_the_way: list[Row]) -> Outlook:
    """Put together what the tables and Temporal know of an intent; `in_the_way`: who keeps it from its locks."""
    standing = known.standing
    run = Run() if standing.phase.is_final else await run_of(client, known.row["workflow_id"])
    blocked, action, at = _next(known, run, in_the_way)
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
        unknown=known.unknown,
        run=run.state,
        activities=run.activities,
        deadline_at=known.row["deadline_at"].isoformat(timespec="seconds"),
        options=tuple(_options(known, run.state, in_the_way)),
    )


async def outlook_before_admission(client: Client, tenant: str, intent_id: str) -> Outlook:
    """Tell what an intent waits for that the tables do not know yet. Raises SagaError(INTENT_NOT_FOUND)."""
    envelope = await unadmitted(client, tenant, intent_id)
    run = await run_of(client, intent_id) if envelope.error is None else Run()
    blocked, action, at = _next_of_run(run) if run.state != "none" else (None, None, None)
    stop = Option(command=f"backstay intent cancel {intent_id}", effect="stops it before anything is written")
    again = Option(command="post it again", effect="nothing was claimed: the same post starts anew")
    return Outlook(
        intent_id=intent_id,
        outcome=Outcome.PENDING if envelope.error is None else Outcome.NOT_APPLIED,
        phase=None,
        cause=Cause.NONE if envelope.error is None else Cause.REJECTED,
        error=envelope.error,
        blocked_by=blocked,
        next_action=action,
        next_action_at=at,
        parked=None,
        parked_detail=None,
        run=run.state,
        activities=run.activities,
        deadline_at=None,
        options=(stop,) if run.state == "open" else (again,),
    )


def _next(  # noqa: PLR0911 - one line for each thing to wait for
    known: Known, run: Run, in_the_way: list[Row]
) -> tuple[str | None, str | None, str | None]:
    """Say what blocks it, what happens next by itself, and when."""
    standing = known.standing
    if standing.phase.is_final:
        return None, None, None
    if standing.parked is not None:
        stuck = ", ".join(known.stuck())
        lost = as_object((standing.parked_detail or {}).get("lost"))
        on = f" on {stuck}" if stuck else f" ({lost['message']})" if lost else ""
        return f"parked {standing.parked}{on}: an operator has to act", None, None
    if run.state == "none":
        return "no run carries it (it was ended from outside)", "none; `backstay sweep` starts a run", None
    if standing.lost is not None:
        ends = "it parks" if pivot_landed(known.effects) else "what landed is undone"
        return standing.lost.message, f"its next step or its commit is refused, and {ends}", None
    if known.unknown:
        return _until_known(known, run)
    if known.is_open and not run.activities:
        return "its agent: the next step, commit or abort", "it is undone when nothing comes for too long", None
    if standing.ask.undecided and standing.phase is IntentPhase.ADMITTED:
        asked = ", ".join(standing.ask.undecided)
        ends = "what landed is undone" if known.effects else "nothing is done"
        return f"a decision about {asked}", f"it expires, and {ends}", standing.ask.expires_at
    if in_the_way:
        return "; ".join(map(_locked, in_the_way)), "it asks again within two seconds, and closes in the end", None
    return _next_of_run(run)


def _until_known(known: Known, run: Run) -> tuple[str, str, str | None]:
    """Say what happens while it is not known whether a step landed."""
    names = ", ".join(one.step_id for one in known.unknown)
    blocked = f"the outcome of {names}: whether it landed is not known"
    if run.activities:
        _, action, at = _next_of_run(run)
        return blocked, action, at
    looks = [one.next_look_at for one in known.unknown if one.next_look_at is not None]
    return blocked, "it is looked up again", min(looks, default=None)


def _locked(row: Row) -> str:
    """Say who has an object, or asked for it before."""
    does = f"holds it {row['mode']}" if row["is_held"] else f"asked before, {row['mode']}"
    rests = f", parked {row['parked_reason']}" if row["parked_reason"] else ""
    return f"{row['resource']}: {row['intent_id']} {does} (by {row['agent']} for {row['principal']}{rests})"


def _next_of_run(run: Run) -> tuple[str, str, str | None]:
    """Say the same of an intent that nobody has to decide about."""
    waiting = [activity for activity in run.activities if activity.next_attempt_at is not None]
    if waiting:
        first = min(waiting, key=lambda activity: activity.next_attempt_at or "")
        why = f": {first.last_failure}" if first.last_failure else ""
        action = f"{first.name} is tried again (attempt {first.attempt})"
        return f"{first.name} failed{why}", action, first.next_attempt_at
    if run.activities:
        names = ", ".join(activity.name for activity in run.activities)
        return f"{names} is running or waits for a worker", "it goes on when that answers", None
    if run.workflow_task_attempt >= _FAILING_AFTER_ATTEMPTS:
        failed = f"its workflow task failed {run.workflow_task_attempt - 1} times; see the worker's log"
        return failed, "the task is tried again by the next worker", None
    if run.state == "unknown":
        return "Temporal does not answer", "it goes on when Temporal is back", None
    return "nothing: a worker has it, or will take it next", "its next step runs", None


def _options(known: Known, run: str, in_the_way: list[Row]) -> list[Option]:
    standing = known.standing
    intent_id = standing.intent_id
    if standing.phase.is_final:
        return _options_when_final(known)
    if run == "none":
        return [Option(command="backstay sweep", effect="starts a run, which parks it for you to close or forward")]
    if standing.parked is not None:
        commands = resolve_commands(intent_id, standing, past_pivot=pivot_landed(known.effects))
        effects = _EFFECTS.get(standing.parked, _VERB_EFFECTS)
        return [Option(command=command, effect=effects[verb]) for verb, command in commands]
    options: list[Option] = []
    if standing.phase is IntentPhase.ADMITTED:
        for step_id in standing.ask.undecided:
            options.append(Option(command=f"backstay approve {intent_id} {step_id}", effect="lets the step run"))
            options.append(Option(command=f"backstay deny {intent_id} {step_id}", effect="ends the intent"))
        if known.is_open and standing.lost is None:
            options.append(Option(command=f"backstay intent commit {intent_id}", effect="keeps what was added"))
        for resource in sorted({row["resource"] for row in in_the_way if row["is_held"]}):
            taken = "takes it from its holder, whose next step is refused"
            options.append(Option(command=f"backstay unlock {resource}", effect=taken))
        options.append(Option(command=f"backstay intent cancel {intent_id}", effect="stops it and undoes what landed"))
    return options


def _options_when_final(known: Known) -> list[Option]:
    plan = known.standing.plan
    if plan is not None and plan.opened:
        another = f"backstay intent open NAME --session {plan.session_id}"
        return [Option(command=another, effect="opens another one, under a name that is new in the conversation")]
    left = [step for step in known.report().steps if step.residue is not None]
    if known.standing.phase is IntentPhase.COMMITTED or left:
        following = known.row["occurrence"] + 1
        return [Option(command=f"post it with occurrence {following}", effect="does the same once more, on purpose")]
    return [
        Option(command=f"post it with retry_of {known.standing.intent_id}", effect="tries it again: nothing was left")
    ]
