"""A worker dies by SIGKILL around a step that is added to an open intent: it lands once, whoever still listens."""

import asyncio
import uuid
from datetime import timedelta

import pytest

from contracts.base import JsonObject
from contracts.opening import ADMIT_STEP, OpenAnswer
from contracts.proposal import propose
from tests.faults.support.books import check_answer
from tests.faults.support.control import Point
from tests.faults.support.intents import AMOUNT_CENTS, FREEZE, OPENED_CENTS, debit, freeze
from tests.faults.support.world import CALLER, WAIT_SECONDS, Posted, Posting, World

POINTS: tuple[tuple[str, Point], ...] = (
    (ADMIT_STEP, "committed"),
    (FREEZE, "committed"),
)
POINTS_TOO: tuple[tuple[str, Point], ...] = (
    (ADMIT_STEP, "written"),
    (ADMIT_STEP, "answered"),
    (FREEZE, "begin"),
    (FREEZE, "written"),
    (FREEZE, "answered"),
)


def opening(world: World) -> Posting:
    session_id = f"s-{uuid.uuid4()}"
    intent = {"protocol": 1, "session_id": session_id, "open": "trip"}
    proposal = propose(intent, CALLER, world.registry)
    return Posting(session_id, proposal.intent_key, proposal.intent_id, intent)


async def say(posted: Posted, update: str, message: JsonObject) -> OpenAnswer:
    answer: OpenAnswer = await posted.handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
        update, message, result_type=OpenAnswer, rpc_timeout=timedelta(seconds=WAIT_SECONDS)
    )
    return answer


@pytest.mark.parametrize(
    ("activity", "point"), [*POINTS, *(pytest.param(*point, marks=pytest.mark.slow) for point in POINTS_TOO)]
)
async def test_an_added_step_lands_once_and_is_answered_whoever_dies_around_it(
    world: World, activity: str, point: Point
) -> None:
    account = world.account()
    posting = opening(world)
    rule = world.arm(activity, point, "kill", posting)
    first = await world.start_worker()
    posted = await world.post(posting)
    adding = asyncio.create_task(say(posted, "add_step", {"step": freeze(account)}))
    await posted.until_fired(rule)
    await first.died()

    await world.start_worker()
    added = await adding
    captured = await say(posted, "add_step", {"step": debit()})
    await say(posted, "commit", {})
    envelope = await posted.answer()

    assert (added.accepted, captured.accepted) == (True, True)
    assert check_answer(posted, envelope) == "COMMITTED"
    assert posted.effects() == {"freeze": "LANDED", "debit": "LANDED"}
    assert world.standing(account) == (OPENED_CENTS - AMOUNT_CENTS, 0)
    assert len(posted.audit("step_added")) == 2


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize(("activity", "point"), [(ADMIT_STEP, "committed"), (FREEZE, "committed")])
async def test_nothing_is_lost_when_the_worker_dies_and_whoever_added_goes_away(
    world: World, activity: str, point: Point, end: str
) -> None:
    account = world.account()
    posting = opening(world)
    rule = world.arm(activity, point, "kill", posting)
    first = await world.start_worker()
    posted = await world.post(posting)
    adding = asyncio.create_task(say(posted, "add_step", {"step": freeze(account)}))
    await posted.until_fired(rule)
    await first.died()
    adding.cancel()
    await asyncio.wait({adding})

    await world.start_worker()
    ended = await say(posted, end, {})
    envelope = await posted.answer()

    assert ended.outcome == check_answer(posted, envelope)
    assert ended.outcome in ({"COMMITTED"} if end == "commit" else {"COMPENSATED", "NOT_APPLIED"})
    assert world.standing(account) == (OPENED_CENTS, AMOUNT_CENTS if end == "commit" else 0)
