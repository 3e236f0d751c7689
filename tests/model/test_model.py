"""All ways of small sagas keep the promises; a build with one rule taken out is caught."""

# A mutant replaces one rule, and rules are private.
# pyright: reportPrivateUsage=false

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from contracts.envelope import Cause
from contracts.plan import Plan
from contracts.saga import Closed, IntentPhase, Standing, StepResult
from tests.model.cases import EVERYDAY, LONG
from tests.model.database import Claim, Database, FakeDatabase
from tests.model.exploration import Case, Exploration
from tests.support.plans import chain
from workflows import backward, moves, reducer
from workflows import commands as do
from workflows import events as on
from workflows import forward as ways
from workflows.state import Stage, State

STATES_MAX = 200_000


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


class WithoutClose(FakeDatabase):
    """Nobody tells the saga what really landed, and nobody looks at the end."""

    def close(self, database: Database, claim: Claim, cause: Cause) -> tuple[Database, Closed]:
        """Set CLOSING and list nothing."""
        after, closed = super().close(database, claim, cause)
        return after, closed.model_copy(update={"effects": ()})

    def settle(self, database: Database, claim: Claim) -> tuple[Database, Standing]:
        """Believe the saga on the way back."""
        if database.phase is not IntentPhase.CLOSING:
            return super().settle(database, claim)
        believed = replace(database, phase=IntentPhase.COMPENSATED)
        return believed, self.standing(believed)


class WithoutFence(FakeDatabase):
    """A step may land whatever the phase is."""

    def execute(
        self,
        database: Database,
        claim: Claim,
        step_id: str,
        argument: str = "",
        *,
        refuse: bool = False,
        read: str = "",
    ) -> tuple[Database, StepResult]:
        """Land as if the intent were ADMITTED."""
        unfenced = replace(database, phase=IntentPhase.ADMITTED)
        after, result = super().execute(unfenced, claim, step_id, argument, refuse=refuse, read=read)
        return replace(after, phase=database.phase), result


def _without_order(patch: pytest.MonkeyPatch) -> None:
    def no_blockers(plan: Plan, _state: State) -> dict[str, set[str]]:
        return {step.step_id: set() for step in plan.steps}

    patch.setattr(backward, "_blockers", no_blockers)


def _without_waiting(patch: pytest.MonkeyPatch) -> None:
    went_on = reducer._go_on

    def hasty(state: State) -> reducer.Advance:
        if state.stage is Stage.FORWARD and state.cause is not Cause.NONE and not state.past_pivot:
            return moves.close(state, state.cause)
        return went_on(state)

    patch.setattr(reducer, "_go_on", hasty)


def _without_planning_again(patch: pytest.MonkeyPatch) -> None:
    def start(state: State) -> reducer.Advance:
        if state.ask.denied:
            return moves.close(state, Cause.DENIED)
        going = replace(state, stage=Stage.FORWARD)
        ready = [step for step in going.known_plan.steps if ways._is_ready(going, step)]
        commands = tuple(do.Execute(step_id=step.step_id, arguments={}) for step in ready[:1])
        return going, commands

    patch.setattr(reducer, "_start", start)


def _without_asking_again(patch: pytest.MonkeyPatch) -> None:
    def silent(state: State) -> reducer.Advance:
        return state, moves.NOTHING

    patch.setattr(reducer, "_admit_again", silent)


def _resting_for_ever(patch: pytest.MonkeyPatch) -> None:
    advance = reducer.advance

    def deaf(state: State, event: on.Event) -> reducer.Advance:
        return (state, moves.NOTHING) if isinstance(event, on.RunDoubted) else advance(state, event)

    patch.setattr(reducer, "advance", deaf)


def _as_it_is(_patch: pytest.MonkeyPatch) -> None:
    """Only the database is changed."""


@dataclass(frozen=True)
class Mutant:
    """One rule less, and the case that shows it."""

    name: str
    case: Case
    patch: Callable[[pytest.MonkeyPatch], None] = _as_it_is
    database: Callable[[Plan], FakeDatabase] = FakeDatabase


MUTANTS = (
    Mutant("without close_intent's list", Case("", chain("a", "b"), undo_refusals=False), database=WithoutClose),
    Mutant("without the fence", Case("", chain("a"), late=1, undo_refusals=False), database=WithoutFence),
    Mutant("compensating in any order", Case("", chain("a", "b"), crashes=False), _without_order),
    Mutant("closing while a step runs", Case("", chain("a")), _without_waiting),
    Mutant("not planning refused steps again", Case("", chain("a", "b", pivots=["a"])), _without_planning_again),
    Mutant("a stale run that does not ask again", Case("", chain("a"), ends=1), _without_asking_again),
    Mutant("a reset run that rests for ever", Case("", chain("a"), ends=1, crashes=False), _resting_for_ever),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_exploration_catches_a_build(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)

    found = Exploration(mutant.case, mutant.database).run(STATES_MAX)

    assert found.violations
