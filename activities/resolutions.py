"""What operators say to parked intents, taken in one transaction that also unparks.

Where an outcome is unknown, a person's word is checked by a lookup first, where there is one: `done` about something
that certainly did not land is refused, and so is `skip` about something that landed, or of which something else did.
"""

import asyncio
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, LiteralString

from activities import audit
from activities.attempts import UNDECIDED, attempt_of, fence, known_of, land
from activities.confirmations import land_confirmation
from activities.database import Database, Row, Transaction
from activities.phase import UNPARK, pivot_landed
from activities.questions import question_of
from activities.sightings import look_up_step
from activities.standing import caller_of, locked, standing_of, unknown_steps, without_plan
from activities.tool import AnyRemoteTool
from contracts.base import JsonObject
from contracts.confirmation import confirms
from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.keys import execute_key
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    IntentPhase,
    LookupCall,
    ParkReason,
    ResolutionAnswer,
    ResolutionRequest,
    Sighting,
    Standing,
)

LOOK_SECONDS: Final = 3.0
"""An operator waits for the answer: a downstream that takes longer did not say."""

_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that nothing is seen of: the Hangul fillers and the empty Braille pattern."""

WHOLE_VERBS = {
    ParkReason.INTERRUPTED: {"close", "forward"},
    ParkReason.MISMATCH: {"close", "forward"},
    ParkReason.STUCK_AFTER_PIVOT: {"forward"},
    ParkReason.WORLD_MOVED: {"close", "forward"},
    ParkReason.COMPENSATION_REFUSED: set[str](),
    ParkReason.OUTCOME_UNKNOWN: {"close"},
}


def verbs_for(standing: Standing, *, pivot_landed: bool = False) -> dict[str, list[str]]:
    """What an operator may say: by step id, and for the whole intent under an empty id."""
    if standing.parked is None:
        return {}
    whole = set(WHOLE_VERBS[standing.parked])
    stuck = [step["step_id"] for step in (standing.parked_detail or {}).get("steps", [])]
    unknown = standing.parked is ParkReason.OUTCOME_UNKNOWN
    if standing.phase is IntentPhase.CLOSING:
        whole -= {"close"} if unknown else {"forward"}
    if pivot_landed or (unknown and _is_pivot(standing, stuck)):
        whole -= {"close"}
    verbs = {"": sorted(whole)} if whole else {}
    if standing.parked is ParkReason.COMPENSATION_REFUSED:
        verbs |= {step_id: ["done", "retry", "skip"] for step_id in stuck}
    if standing.parked is ParkReason.STUCK_AFTER_PIVOT:
        verbs |= {one: ["retry"] if confirms(one) is None else ["done", "retry", "skip"] for one in stuck}
    if unknown:
        verbs |= {step_id: ["done", "retry"] if pivot_landed else ["done", "retry", "skip"] for step_id in stuck}
    return verbs


def _is_pivot(standing: Standing, step_ids: list[str]) -> bool:
    steps = standing.plan.by_id if standing.plan else {}
    return any(steps[step_id].is_pivot for step_id in step_ids if step_id in steps)


class _LookFirst(Exception):  # noqa: N818 - leaves a transaction that nothing was written in
    def __init__(self, tool: AnyRemoteTool) -> None:
        super().__init__(tool.contract.wire_name)
        self.tool = tool


@dataclass(frozen=True)
class _Looked:
    """What a lookup said before a word was taken; None when it had no answer in time."""

    sighting: Sighting | None


async def admit_resolution(
    database: Database, request: ResolutionRequest, tools: Mapping[str, AnyRemoteTool] = MappingProxyType({})
) -> ResolutionAnswer:
    """Take an operator's verb for a parked intent, and unpark it in the same transaction.

    `close` sets CLOSING at once and `done` and `skip` of a compensation mark the effect COMPENSATED, with what was
    said as residue for `skip`: should the saga lose the answer, the rows still say how it goes on. Of a step whose
    outcome is unknown `done` writes the effect on the operator's word, `skip` a tombstone, with what is known as its
    residue unless it certainly did not land; `retry` gives it patience.
    Of a confirmation that is stuck both write the effect, and `skip` what is said as its residue.
    Repeating a resolution gives an accepted answer again; its id used for another one is refused.
    Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
    """

    async def work(transaction: Transaction, looked: _Looked | None = None) -> ResolutionAnswer:
        row, asked, effects = await locked(transaction, request.claim)
        standing = standing_of(row, asked)
        resolution = request.resolution
        earlier = await transaction.one(
            "select intent_key, verb, step_id from backstay.resolutions where resolution_id = %s",
            (resolution.resolution_id,),
        )
        if earlier is not None:
            return _said_before(row, standing, request, earlier)
        unknown = await unknown_steps(transaction, standing.plan, row["intent_key"])
        offered = verbs_for(standing, pivot_landed=pivot_landed(effects))
        if any(attempt["is_pivot"] for attempt in unknown):
            offered[""] = [verb for verb in offered.get("", []) if verb != "close"]
        if any(attempt["is_pivot"] and attempt["step_id"] != resolution.step_id for attempt in unknown):
            offered = {step_id: [verb for verb in verbs if verb != "skip"] for step_id, verbs in offered.items()}
        tool = _tool_of(standing.plan, resolution.step_id, tools)
        is_unknown = standing.parked is ParkReason.OUTCOME_UNKNOWN
        seen = await _not_so(transaction, row, request, tool, looked) if is_unknown else None
        refusal = seen or _refusal(row, request, offered)
        if refusal is not None:
            await _note_resolution(transaction, row, request, refused=refusal.reason.value)
            return ResolutionAnswer(accepted=False, error=refusal.info, standing=without_plan(standing))
        if looked is None and is_unknown and resolution.verb in ("done", "skip") and tool is not None:
            raise _LookFirst(tool)
        residue = await _take(transaction, row, standing, request, tool)
        await transaction.later(UNPARK, (row["intent_key"],))
        if resolution.verb in ("forward", "retry") and standing.plan is not None:
            await transaction.later(_EXTEND, (standing.plan.deadline_seconds, row["intent_key"]))
        taken = standing.model_copy(update={"parked": None, "parked_detail": None})
        turns_back = resolution.verb == "close" or (is_unknown and resolution.verb == "skip")
        if turns_back and standing.phase is IntentPhase.ADMITTED:
            await _begin_closing(transaction, row, resolution.operator)
            taken = taken.model_copy(update={"phase": IntentPhase.CLOSING, "cause": Cause.INTERRUPTED})
        return ResolutionAnswer(accepted=True, standing=without_plan(taken), residue=residue)

    try:
        return await database.run(work)
    except _LookFirst as first:
        looked = _Looked(await _look(database, request, first.tool))
    return await database.run(lambda transaction: work(transaction, looked))


def _said_before(row: Row, standing: Standing, request: ResolutionRequest, earlier: Row) -> ResolutionAnswer:
    """Answer a repeat as accepted; an id that was used for another resolution is refused."""
    resolution = request.resolution
    same = (earlier["intent_key"], earlier["verb"], earlier["step_id"]) == (
        row["intent_key"],
        resolution.verb,
        resolution.step_id,
    )
    if same:
        return ResolutionAnswer(accepted=True, standing=without_plan(standing))
    used = _invalid(f"Resolution id {resolution.resolution_id} was used for another resolution; choose a new one.")
    return ResolutionAnswer(accepted=False, error=used.info, standing=without_plan(standing))


def _refusal(row: Row, request: ResolutionRequest, offered: dict[str, list[str]]) -> SagaError | None:
    """Say why a resolution is not taken; None when it is."""
    resolution = request.resolution
    if resolution.intent_id not in (None, row["intent_id"]):
        return _invalid(f"It is about intent {resolution.intent_id}; this is {row['intent_id']}.")
    if resolution.verb not in offered.get(resolution.step_id or "", []):
        return _invalid(f"{resolution.verb!r} is not possible now; possible: {_told(offered)}.", {"offered": offered})
    if resolution.verb in ("done", "skip") and not _is_visible(resolution.evidence):
        return _invalid(f"{resolution.verb!r} needs --evidence: say what was done, or why not.")
    return None


def _is_visible(text: str) -> bool:
    """True when there is something to be read: spaces, controls and zero-width characters are nothing."""
    return any(unicodedata.category(one)[0] in "LNPS" and one not in _BLANK for one in text)


async def _not_so(
    transaction: Transaction, row: Row, request: ResolutionRequest, tool: AnyRemoteTool | None, looked: _Looked | None
) -> SagaError | None:
    """Say what was seen of a step where it is not as the operator says; None when nobody looked, or saw otherwise."""
    step_id = request.resolution.step_id or ""
    if looked is None or tool is None:
        return None
    if request.resolution.verb == "done":
        certain = looked.sighting is not None and looked.sighting.state == "NOT_LANDED"
        told = f"Step {step_id!r} was looked up: it certainly has not landed; say `retry` or `skip`."
        return _invalid(told) if certain else None
    attempt = await attempt_of(transaction, tool.contract, execute_key(row["intent_key"], step_id), lock=True)
    if attempt is None:
        return None
    known = question_of(attempt)
    if attempt["state"] == "LANDED":
        return _invalid(
            f"Step {step_id!r} was looked up: it has landed as #{attempt['transaction_id']} ({known.sent()});"
            " say `retry` and the intent goes on with it.",
            {"known": known_of(attempt)},
        )
    if known.mismatch is not None and attempt["state"] in UNDECIDED:
        return _invalid(
            f"Something else than step {step_id!r} was carried out ({known.text()}); have it put right there and say"
            " `retry`, or `done` to count it as the step.",
            {"known": known_of(attempt)},
        )
    return None


def _invalid(message: str, details: JsonObject | None = None) -> SagaError:
    return SagaError(Reason.RESOLUTION_INVALID, message, details=details)


async def _look(database: Database, request: ResolutionRequest, tool: AnyRemoteTool) -> Sighting | None:
    """Check by a lookup what an operator calls done, or not done; None when there was no answer in time."""
    call = LookupCall(claim=request.claim, step_id=request.resolution.step_id or "")
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await look_up_step(database, tool, call, by_operator=True)
    except TimeoutError:
        return None


def _tool_of(plan: Plan | None, step_id: str | None, tools: Mapping[str, AnyRemoteTool]) -> AnyRemoteTool | None:
    """The tool of a step that was sent somewhere; None for any other step."""
    planned = plan.by_id.get(step_id or "") if plan is not None else None
    return tools.get(planned.tool) if planned is not None else None


_EXTEND: Final[LiteralString] = """
update backstay.intents set deadline_at = greatest(deadline_at, now() + make_interval(secs => %s)) where intent_key = %s
"""
"""An operator who sends an intent forward gives it the time for it; else it would be refused at once."""


async def _begin_closing(transaction: Transaction, row: Row, operator: str) -> None:
    """Shut the way forward here and now: a `close` that the saga forgets must not become a `forward`."""
    await transaction.later(
        "update backstay.intents set phase = 'CLOSING', cause = %s where intent_key = %s",
        (Cause.INTERRUPTED.value, row["intent_key"]),
    )
    await audit.append(
        transaction,
        "closed",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        actor=operator,
        result={"cause": Cause.INTERRUPTED.value},
    )


async def _take(
    transaction: Transaction, row: Row, standing: Standing, request: ResolutionRequest, tool: AnyRemoteTool | None
) -> str | None:
    resolution = request.resolution
    await transaction.later(
        "insert into backstay.resolutions (resolution_id, intent_key, step_id, verb, evidence, operator)"
        " values (%s, %s, %s, %s, %s, %s)",
        (
            resolution.resolution_id,
            row["intent_key"],
            resolution.step_id,
            resolution.verb,
            resolution.evidence,
            resolution.operator,
        ),
    )
    residue = None
    if standing.parked is ParkReason.OUTCOME_UNKNOWN and resolution.step_id is not None:
        if tool is not None:
            step_key = execute_key(row["intent_key"], resolution.step_id)
            residue = await _take_unknown(transaction, row, tool, request, step_key)
    elif resolution.verb in ("forward", "retry"):
        await transaction.later(_REFUSED_AGAIN, (row["intent_key"],))
    elif standing.parked is ParkReason.STUCK_AFTER_PIVOT and standing.plan is not None:
        residue = await land_confirmation(transaction, row, standing.plan, resolution)
    elif resolution.verb in ("done", "skip") and resolution.step_id is not None:
        residue = f"not restored: {resolution.evidence}" if resolution.verb == "skip" else None
        await transaction.later(
            "update backstay.effects set state = 'COMPENSATED', compensated_at = now(), residue = %s"
            " where step_key = %s and state = 'LANDED'",
            (residue, execute_key(row["intent_key"], resolution.step_id)),
        )
    await _note_resolution(transaction, row, request, residue=residue)
    return residue


_REFUSED_AGAIN: Final[LiteralString] = """
update backstay.attempts set state = 'NOT_LANDED' where intent_key = %s and direction = 'execute' and state = 'REFUSED'
"""
"""A refusal is an answer for good, until an operator has the same key asked again."""
_PATIENCE: Final[LiteralString] = """
update backstay.attempts set known = '{}', patience_until = greatest(patience_until, now() + make_interval(secs => %s))
where step_key = %s
"""


async def _take_unknown(
    transaction: Transaction, row: Row, tool: AnyRemoteTool, request: ResolutionRequest, step_key: str
) -> str | None:
    """Write what an operator says of a step whose outcome is not known; a late original meets it in each case.

    Returns the residue of one that is skipped though it may have landed.
    """
    resolution, residue = request.resolution, None
    attempt = await attempt_of(transaction, tool.contract, step_key, lock=True)
    if attempt is None or attempt["state"] not in (*UNDECIDED, "NOT_LANDED"):
        return None
    if resolution.verb == "skip":
        if attempt["state"] in UNDECIDED:
            residue = f"may have landed: {question_of(attempt).text()}; the operator said: {resolution.evidence}"
        await fence(transaction, attempt, residue)
    elif attempt["state"] not in UNDECIDED:
        return None
    elif resolution.verb == "retry":
        await transaction.later(_PATIENCE, (tool.contract.patience_seconds, step_key))
    else:
        await land(transaction, tool.contract, row, attempt, {}, source="operator", actor=resolution.operator)
    return residue


async def _note_resolution(
    transaction: Transaction,
    row: Row,
    request: ResolutionRequest,
    *,
    residue: str | None = None,
    refused: str | None = None,
) -> None:
    resolution = request.resolution
    await audit.append(
        transaction,
        "resolution_refused" if refused else "resolution",
        caller=caller_of(row),
        intent_key=row["intent_key"],
        step_id=resolution.step_id,
        actor=resolution.operator,
        decisions=resolution.resolution_id,
        result={
            "verb": resolution.verb,
            "evidence": resolution.evidence,
            "residue": residue,
            "refused": refused,
        },
    )


def _told(offered: dict[str, list[str]]) -> str:
    """Say in words what is possible; the empty step id stands for the whole intent."""
    said = [f"{', '.join(verbs)} for {step_id or 'the whole intent'}" for step_id, verbs in offered.items() if verbs]
    return "; ".join(said) or "nothing"
