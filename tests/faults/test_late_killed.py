"""A worker dies by SIGKILL around a late grade: the next one gets the same grade, and people are asked once."""

import pytest

from tests.faults.support.books import check_answer, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.intents import FREEZE, OPENED_CENTS, Steps, debit, freeze
from tests.faults.support.world import Posted, World

GRADE = "grade_step"
POINTS: tuple[tuple[str, Point], ...] = ((GRADE, "committed"), (FREEZE, "begin"))


def emptying(account: str) -> Steps:
    """Read what the account has and take it all."""
    all_of_it = {"$from": "read.available_cents"}
    held, taken = freeze(account), debit()
    held["arguments"]["amount_cents"] = taken["arguments"]["amount_cents"] = all_of_it
    return [{"step_id": "read", "tool": "check_account_balance@1", "arguments": {"account_id": account}}, held, taken]


def grades(posted: Posted) -> dict[str, str]:
    key = posted.claimed()["intent_key"]
    rows = posted.world.all("select step_id, duty from backstay.late_grades where intent_key = %s", key)
    return {row["step_id"]: row["duty"] for row in rows}


@pytest.mark.parametrize(("activity", "point"), [*POINTS, pytest.param(GRADE, "written", marks=pytest.mark.slow)])
async def test_a_late_step_is_graded_once_whoever_dies_between_grade_and_step(
    world: World, activity: str, point: Point
) -> None:
    account = world.account(700)
    posting = world.posting(emptying(account))
    rule = world.arm(activity, point, "kill", posting)
    first = await world.start_worker()

    posted = await world.post(posting)
    await posted.until_fired(rule)
    await first.died()
    await world.start_worker()
    envelope = await posted.answer()

    assert check_answer(posted, envelope) == "COMMITTED"
    assert grades(posted) == {"freeze": "NONE", "debit": "NONE"}
    assert world.standing(account) == (0, 0)
    assert len(posted.audit("graded")) == 2


async def test_who_was_asked_about_a_late_step_is_not_asked_again_by_the_next_worker(world: World) -> None:
    account = world.account()
    posting = world.posting(emptying(account))
    rule = world.arm(GRADE, "committed", "kill", posting)
    first = await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    await first.died()
    assert posted.effects() == {}

    await world.start_worker()
    await posted.until_asked()
    for step_id in ("freeze", "debit"):
        (row,) = world.all(
            "select digest from backstay.late_grades where intent_key = %s and step_id = %s",
            posted.claimed()["intent_key"],
            step_id,
        )
        answer = await posted.decide(step_id=step_id, plan_digest=row["digest"])
        assert answer is not None
        assert answer.accepted
    envelope = await posted.answer()

    assert check_answer(posted, envelope) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", OPENED_CENTS)
