"""Workers die by SIGKILL between reserving and confirming and inside each; cancels race the last step: one story.

Two reservations and a freeze, or the same with a step that is refused in the end. A killed worker's saga goes on in
another one; nothing is paid twice, and nothing is half paid.
"""

import asyncio
from typing import Final

import pytest

from tests.faults.support.books import check_answer, check_books
from tests.faults.support.control import Point
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import (
    ADMIT,
    CLOSE,
    CONFIRM,
    OPENED_CENTS,
    RESERVE,
    SETTLE,
    Steps,
    debit,
    freeze,
    reserve,
    reverse,
)
from tests.faults.support.world import Posted, World

TRIP_CENTS: Final = 400
FROZEN_CENTS: Final = 100
FORWARD: Final[tuple[tuple[str, Point], ...]] = (
    (RESERVE, "begin"),
    (RESERVE, "written"),
    (RESERVE, "committed"),
    (CONFIRM, "begin"),
    (CONFIRM, "written"),
    (CONFIRM, "committed"),
    (CONFIRM, "answered"),
    (SETTLE, "begin"),
    (SETTLE, "committed"),
)
BACKWARD: Final[tuple[tuple[str, Point], ...]] = (
    (CLOSE, "committed"),
    (f"{RESERVE}.compensate", "begin"),
    (f"{RESERVE}.compensate", "written"),
    (f"{RESERVE}.compensate", "committed"),
)
RACES: Final[tuple[tuple[str, Point], ...]] = (
    (RESERVE, "begin"),
    (RESERVE, "written"),
    (RESERVE, "committed"),
    ("freeze_account_funds@1", "written"),
    ("freeze_account_funds@1", "committed"),
    (CONFIRM, "begin"),
    (CONFIRM, "written"),
    (CONFIRM, "committed"),
)
DOORS: Final = ("update", "signal", "temporal")


def trip(account: str) -> Steps:
    """Two payments that belong together, and a deposit."""
    return [
        reserve(account, TRIP_CENTS, "hotel"),
        reserve(account, TRIP_CENTS + 1, "train"),
        freeze(account, FROZEN_CENTS),
    ]


def doomed_trip(account: str) -> Steps:
    """The same, and a step that the ledger refuses: a capture is refunded, never reversed."""
    return [*trip(account), debit(FROZEN_CENTS), reverse(FROZEN_CENTS)]


def check_trip(world: World, posted: Posted, account: str, outcome: str) -> None:
    """Assert that all of it was paid, or none."""
    if outcome == "COMMITTED":
        assert posted.movements() == [("CAPTURE", TRIP_CENTS), ("CAPTURE", TRIP_CENTS + 1)]
        assert world.standing(account) == (OPENED_CENTS - 2 * TRIP_CENTS - 1, FROZEN_CENTS)
        assert list(posted.effects()) == ["hotel", "train", "freeze", "hotel.confirm", "train.confirm"]
    else:
        assert world.standing(account) == (OPENED_CENTS, 0)
        assert not [step_id for step_id in posted.effects() if step_id.endswith(".confirm")]


def killed(activity: str, point: Point, *, forward: bool) -> Scenario:
    """Kill the only worker at a point; a new one brings the saga to the end that it would have had anyway."""

    async def scenario(world: World) -> None:
        account = world.account()
        posting = world.posting(trip(account) if forward else doomed_trip(account))
        rule = world.arm(activity, point, "kill", posting)
        first = await world.start_worker()

        posted = await world.post(posting)
        await posted.until_fired(rule)
        await first.died()
        landed_before = posted.effects()
        await world.start_worker()
        envelope = await posted.answer()

        outcome = "COMMITTED" if forward else "COMPENSATED"
        assert check_answer(posted, envelope) == outcome
        check_trip(world, posted, account, outcome)
        assert len({entry.pid for entry in posted.journal("started", ADMIT)}) == 2, "two processes carried it"
        if activity == CONFIRM:
            assert list(landed_before)[:3] == ["hotel", "train", "freeze"], "nothing is confirmed before all landed"
            assert ("hotel.confirm" in landed_before) == (point in ("committed", "answered"))

    return scenario


def raced(activity: str, point: Point, door: str) -> Scenario:
    """Hold a step, ask to stop, let it go on: the tables say who won, and the answer says the same."""

    async def scenario(world: World) -> None:
        account = world.account()
        posting = world.posting(trip(account))
        rule = world.arm(activity, point, "pause", posting)
        await world.start_worker()
        posted = await world.post(posting)
        await posted.until_fired(rule)

        asking = asyncio.create_task(posted.cancel(door))
        await asyncio.wait([asking], timeout=0.3)
        world.control.release(rule)
        await asking
        envelope = await posted.answer()

        outcome = check_answer(posted, envelope)
        assert outcome in ("COMMITTED", "COMPENSATED", "NOT_APPLIED")
        check_trip(world, posted, account, outcome)
        if activity == CONFIRM and point == "committed":
            assert outcome == "COMMITTED", "what is confirmed stays"

    return scenario


SCENARIOS: Final[dict[str, Scenario]] = {
    **{f"killed forward, {activity} {point}": killed(activity, point, forward=True) for activity, point in FORWARD},
    **{f"killed backward, {activity} {point}": killed(activity, point, forward=False) for activity, point in BACKWARD},
    **{
        f"cancelled, {door}, {activity} {point}": raced(activity, point, door)
        for activity, point in RACES
        for door in DOORS
    },
}
SLOW: Final = frozenset(
    claim
    for claim in SCENARIOS
    if claim.startswith("cancelled, signal") or claim.endswith(("begin", f"{SETTLE} committed"))
)


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World) -> Grid:
    """How the scenarios ended."""
    return await run_grid(module_world, selected(request, SCENARIOS))


@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_a_trip_is_paid_whole_or_not_at_all(claim: str, grid: Grid) -> None:
    grid.hold(claim)


def test_the_books_are_right_after_all_of_it(grid: Grid, module_world: World) -> None:
    del grid  # it has run

    check_books(module_world)
