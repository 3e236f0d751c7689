"""Many scenarios side by side, each with workers of its own, and each a test with a name of its own.

What takes long in a fault is waiting for time-outs; so the scenarios of a module run together, a few at a time, and
the tests read off how theirs ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

from tests.faults.support.books import check_books
from tests.faults.support.world import World

Scenario = Callable[[World], Awaitable[None]]
SIDE_BY_SIDE: Final = 8
SCENARIO_SECONDS_MAX: Final = 90.0


class Grid:
    """How each scenario ended."""

    def __init__(self, ended: Mapping[str, BaseException | None]) -> None:
        """Remember what came of the scenarios that ran."""
        self._ended = ended

    def hold(self, claim: str) -> None:
        """Raise what made a scenario fail; do nothing when it held."""
        error = self._ended[claim]
        if error is not None:
            raise error


async def run_grid(world: World, scenarios: Mapping[str, Scenario], *, template: str | None = None) -> Grid:
    """Run scenarios, each in a part of the world; with a `template`, each on a database of its own."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run(number: int, scenario: Scenario) -> None:
        async with places, asyncio.timeout(SCENARIO_SECONDS_MAX):
            url = world.stack.create_database(template=template) if template else None
            part = world.part(f"{number:02}", database_url=url)
            try:
                if url is not None:
                    part.open_bank()
                await scenario(part)
                if url is not None:
                    check_books(part)
            finally:
                part.close()
                if url is not None:
                    world.stack.drop_database(url)

    ended = await asyncio.gather(
        *(run(number, scenario) for number, scenario in enumerate(scenarios.values())), return_exceptions=True
    )
    return Grid(dict(zip(scenarios, ended, strict=True)))


def claims(scenarios: Mapping[str, Scenario], slow: Collection[str] = ()) -> list[ParameterSet]:
    """Name the scenarios as parameters; those that only fill the grid are left to `make slow`."""
    assert set(slow) <= set(scenarios), sorted(set(slow) - set(scenarios))
    return [pytest.param(claim, marks=[pytest.mark.slow] if claim in slow else []) for claim in scenarios]


def wanted(request: pytest.FixtureRequest, *, parameter: str) -> list[Any]:
    """Values of a parameter for which tests of this module are going to run."""
    return [
        item.callspec.params[parameter]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
        and parameter in item.callspec.params
    ]


def selected(request: pytest.FixtureRequest, scenarios: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Those scenarios of this module whose tests are going to run."""
    chosen = wanted(request, parameter="claim")
    return {claim: scenario for claim, scenario in scenarios.items() if claim in chosen}
