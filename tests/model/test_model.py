"""All ways of small sagas keep the promises, random ones too; builds with one rule taken out are caught.

The table of all seeded bugs is run in `make slow`; here, in this process, those that DESIGN.md names.
"""

# A build with one rule taken out replaces what is private.
# pyright: reportPrivateUsage=false

from collections.abc import Iterator

import pytest

from contracts.envelope import Cause
from contracts.saga import Cancellation, IntentPhase
from tests.model.bugs import BUGS, Bug
from tests.model.cases import EVERYDAY, LONG, STORMY
from tests.model.database import FakeDatabase
from tests.model.exploration import Exploration
from tests.model.exploring import STATES_MAX
from tests.model.rows import Answer, Database, Flight, Outcome
from tests.model.sensitivity import ROOT, layers_that_catch, table
from tests.model.simulation import RUNS, regressions, simulate
from tests.model.worlds import Case
from tests.support.plans import chain
from workflows import moves, reducer
from workflows.state import Stage, State

SEED = 20_261_130


@pytest.mark.parametrize("case", EVERYDAY, ids=lambda case: case.name)
def test_every_way_of_a_small_saga_keeps_the_promises(case: Case) -> None:
    found = Exploration(case).run(STATES_MAX)

    assert found.violations == []
    assert found.complete
    assert found.finals > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_every_way_of_a_larger_saga_keeps_the_promises(case: Case) -> None:
    found = Exploration(case).run(STATES_MAX)

    assert found.violations == []


def test_random_sagas_in_random_weather_keep_the_promises() -> None:
    failures = [failure for seed in range(SEED, SEED + 200) if (failure := simulate(seed))]

    assert failures == []


def test_seeds_that_once_failed_keep_the_promises() -> None:
    failures = [failure for seed in regressions() if (failure := simulate(seed))]

    assert failures == []


@pytest.mark.slow
def test_thousands_of_random_sagas_keep_the_promises() -> None:
    failures = [failure for seed in range(RUNS) if (failure := simulate(seed))]

    assert failures == []


class WithoutClose(FakeDatabase):
    """Nobody tells the saga what really landed, and nobody looks at the end."""

    def seen(self, database: Database) -> Answer:
        """List nothing."""
        del database
        return ()

    def settle(self, database: Database, flight: Flight) -> Iterator[Outcome]:
        """Believe the saga on the way back."""
        if database.phase is not IntentPhase.CLOSING:
            yield from super().settle(database, flight)
            return
        believed = database._replace(phase=IntentPhase.COMPENSATED)
        yield Outcome("settle", believed, self.standing(believed))


def test_a_build_without_close_intent_breaks_the_promises() -> None:
    found = Exploration(Case("", chain("a", "b"), STORMY), WithoutClose).run(STATES_MAX)

    assert found.violations


def test_a_violation_is_told_with_the_shortest_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cancels = reducer._cancel

    def hasty(state: State, cancellation: Cancellation) -> reducer.Advance:
        return moves.close(state, Cause.CANCELLED) if state.stage is Stage.FORWARD else cancels(state, cancellation)

    monkeypatch.setattr(reducer, "_cancel", hasty)

    found = Exploration(Case("", chain("a"), crashes=False)).run(STATES_MAX)

    assert found.violations[0] == "close cancelled while execute runs\n    1. admit"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_caught_by_each_layer_that_the_table_names(bug: Bug) -> None:
    assert list(bug.caught_by) == layers_that_catch(bug)


def test_each_seeded_bug_replaces_a_text_that_stands_there_once() -> None:
    strays = [
        (bug.name, patch.path)
        for bug in BUGS
        for patch in bug.patches
        if (ROOT / patch.path).read_text().count(patch.old) != 1
    ]

    assert strays == []


def test_the_documentation_shows_the_table_of_seeded_bugs_as_it_is() -> None:
    assert table() in (ROOT / "docs" / "model.md").read_text()
