"""A worker dies by SIGKILL, at every point that matters; another goes on, and every effect is there once."""

from typing import Final

import pytest

from tests.faults.support.books import check_answer, check_books, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import ADMIT, AMOUNT_CENTS, CLOSE, DEBIT, FREEZE, SETTLE, doomed, purchase
from tests.faults.support.world import World, until

FORWARD: Final[tuple[tuple[str, Point], ...]] = (
    (ADMIT, "written"),
    (ADMIT, "committed"),
    (FREEZE, "begin"),
    (FREEZE, "written"),
    (FREEZE, "committed"),
    (DEBIT, "written"),
    (DEBIT, "committed"),
    (SETTLE, "begin"),
    (SETTLE, "written"),
    (SETTLE, "committed"),
)
BACKWARD: Final[tuple[tuple[str, Point], ...]] = (
    (CLOSE, "begin"),
    (CLOSE, "written"),
    (CLOSE, "committed"),
    (f"{DEBIT}.compensate", "written"),
    (f"{DEBIT}.compensate", "committed"),
    (f"{FREEZE}.compensate", "begin"),
    (f"{FREEZE}.compensate", "written"),
    (f"{FREEZE}.compensate", "committed"),
    (SETTLE, "begin"),
    (SETTLE, "written"),
    (SETTLE, "committed"),
)


def killed(activity: str, point: Point, *, forward: bool) -> Scenario:
    """Kill the only worker at a point; a new one brings the saga to the end that it would have had anyway."""

    async def scenario(world: World) -> None:
        account = world.account()
        posting = world.posting(purchase(account) if forward else doomed(account))
        rule = world.arm(activity, point, "kill", posting)
        first = await world.start_worker()

        posted = await world.post(posting)
        await posted.until_fired(rule)
        await first.died()
        landed_before = posted.effects() if posted.row() else {}
        await world.start_worker()
        envelope = await posted.answer()

        outcome = "COMMITTED" if forward else "COMPENSATED"
        assert check_answer(posted, envelope) == outcome
        check_purchase(posted, account, outcome, AMOUNT_CENTS)
        assert posted.compensated() == ([] if forward else ["debit", "freeze"])
        assert world.control.fired(rule) == 1
        assert len({entry.pid for entry in posted.journal("started", ADMIT)}) == 2, "two processes carried it"
        if point == "written" and activity in (FREEZE, DEBIT):
            step_id = "freeze" if activity == FREEZE else "debit"
            assert step_id not in landed_before, "what was not committed is gone"
        if point == "committed" and activity in (FREEZE, DEBIT):
            assert landed_before, "what was committed is there"

    return scenario


SCENARIOS: Final[dict[str, Scenario]] = {
    f"{'forward' if forward else 'backward'}, {activity} {point}": killed(activity, point, forward=forward)
    for forward, points in ((True, FORWARD), (False, BACKWARD))
    for activity, point in points
}

SLOW: Final = frozenset(
    f"{way}, {activity} {point}"
    for way, activity, point in (
        ("forward", ADMIT, "written"),
        ("forward", DEBIT, "written"),
        ("forward", SETTLE, "begin"),
        ("backward", CLOSE, "begin"),
        ("backward", f"{FREEZE}.compensate", "begin"),
        ("backward", f"{FREEZE}.compensate", "written"),
        ("backward", SETTLE, "begin"),
        ("backward", SETTLE, "committed"),
    )
)


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World) -> Grid:
    """How the scenarios ended."""
    return await run_grid(module_world, selected(request, SCENARIOS))


@pytest.mark.situation(9, 19)
@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_a_killed_workers_saga_ends_as_if_nothing_had_happened(claim: str, grid: Grid) -> None:
    grid.hold(claim)


def test_the_books_are_right_after_all_kills(grid: Grid, module_world: World) -> None:
    del grid  # it has run

    check_books(module_world)


@pytest.mark.slow
async def test_a_saga_whose_workers_die_again_and_again_is_not_put_off_for_minutes(world: World) -> None:
    """By default Temporal waits twice as long after each death, up to 10 minutes; our servers are told not to."""
    account = world.account()
    posting = world.posting(purchase(account))
    deaths = 8
    rule = world.arm(FREEZE, "begin", "kill", posting, times=deaths)
    posted = await world.post(posting)

    for death in range(1, deaths + 1):
        worker = await world.start_worker()
        await until(f"death {death}", lambda: not worker.process.is_alive(), seconds=30)  # noqa: B023 - awaited here
    assert world.control.fired(rule) == deaths
    await world.start_worker()

    assert check_answer(posted, await posted.answer(seconds=30)) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)
