"""A saga is stopped at every point inside a running workflow task, through every door: outcome and tables agree.

One worker, one saga per case, all at the same time. A step is held at its point until the wish to stop has been
sent (`late`: Temporal delivers it when the task ends) or has reached the workflow (`early`: at the task's heartbeat,
while the step still runs); then the step goes on.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import pytest
from _pytest.mark import ParameterSet

from contracts.envelope import Envelope
from contracts.saga import MessageAnswer
from tests.faults.support.books import check_answer, check_books, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.grid import wanted
from tests.faults.support.intents import (
    ADMIT,
    AMOUNT_CENTS,
    CLOSE,
    DEBIT,
    FREEZE,
    SETTLE,
    doomed,
    purchase,
)
from tests.faults.support.world import Posted, World, until

SIDE_BY_SIDE: Final = 12
PLAYS_MAX: Final = 3
DOORS: Final = ("update", "signal", "temporal")
FORWARD: Final[tuple[tuple[str, Point], ...]] = (
    (ADMIT, "begin"),
    (ADMIT, "committed"),
    (FREEZE, "begin"),
    (FREEZE, "written"),
    (FREEZE, "committed"),
    (DEBIT, "begin"),
    (DEBIT, "written"),
    (DEBIT, "committed"),
    (SETTLE, "begin"),
    (SETTLE, "committed"),
)
BACKWARD: Final[tuple[tuple[str, Point], ...]] = (
    (CLOSE, "begin"),
    (CLOSE, "committed"),
    (f"{DEBIT}.compensate", "begin"),
    (f"{DEBIT}.compensate", "committed"),
    (f"{FREEZE}.compensate", "written"),
    (SETTLE, "begin"),
)
When = Literal["early", "late"]


@dataclass(frozen=True)
class Case:
    """One saga that is stopped once or more."""

    activity: str
    point: Point
    doors: tuple[str, ...]
    when: When
    forward: bool

    @property
    def claim(self) -> str:
        """Its name as a test."""
        way = "forward" if self.forward else "backward"
        return f"{way}, {'+'.join(self.doors)} {self.when}, {self.activity} {self.point}"

    @property
    def is_slow(self) -> bool:
        """True for what only fills the grid."""
        return (self.when == "late" and self.point != "committed") or (not self.forward and self.doors == ("signal",))


@dataclass
class Ended:
    """How it went."""

    posted: Posted
    account: str
    envelope: Envelope
    answers: list[MessageAnswer | None]

    @property
    def is_exact(self) -> bool:
        """True when the step was held in its only attempt: on a slow machine it may have been tried again."""
        return len(self.posted.journal("started", ADMIT)) == 1


FORWARD_CASES: Final = [
    Case(activity, point, (door,), when, forward=True)
    for activity, point in FORWARD
    for door in DOORS
    for when in ("early", "late")
]
BACKWARD_CASES: Final = [
    Case(activity, point, (door,), "early", forward=False) for activity, point in BACKWARD for door in DOORS
]
TWICE_CASES: Final = [
    Case(FREEZE, "committed", doors, "early", forward=True)
    for doors in (("update", "update"), ("signal", "temporal"), ("temporal", "temporal"), ("temporal", "update"))
] + [Case(f"{DEBIT}.compensate", "committed", ("temporal", "update"), "early", forward=False)]


def named(cases: Iterable[Case]) -> list[ParameterSet]:
    """Name the cases as parameters."""
    return [pytest.param(case, id=case.claim, marks=[pytest.mark.slow] if case.is_slow else []) for case in cases]


async def play(world: World, case: Case, places: asyncio.Semaphore) -> Ended:
    """Hold the step, ask to stop, let the step go on, wait for the end; again if the machine was too slow for it."""
    async with places:
        for _ in range(PLAYS_MAX - 1):
            ended = await _play(world, case)
            if ended.is_exact:
                return ended
        return await _play(world, case)


async def _play(world: World, case: Case) -> Ended:
    account = world.account()
    posting = world.posting(purchase(account) if case.forward else doomed(account))
    rule = world.arm(case.activity, case.point, "pause", posting)
    posted = await world.post(posting)
    await posted.until_fired(rule)

    asking = [asyncio.create_task(posted.cancel(door, by=f"person-{n}")) for n, door in enumerate(case.doors)]
    await asyncio.wait(asking, timeout=0.3)  # a signal is acknowledged at once, an update only when it is answered
    if case.when == "early":
        await until(
            lambda: f"{case.claim} to arrive; {[(e.what, e.name, e.detail) for e in posted.journal()]}",
            lambda: any(e.name in ("CancelAsked", "CancelRequested") for e in posted.journal("took")),
        )
    world.control.release(rule)
    answers = list(await asyncio.gather(*asking))
    return Ended(posted, account, await posted.answer(), answers)


class Played:
    """All cases, played side by side."""

    def __init__(self, world: World, ended: dict[str, Ended | BaseException]) -> None:
        """Remember how they ended."""
        self.world = world
        self._ended = ended

    def __getitem__(self, case: Case) -> Ended:
        """How a case ended; raises what went wrong."""
        ended = self._ended[case.claim]
        if isinstance(ended, BaseException):
            raise ended
        return ended


@pytest.fixture(scope="module")
async def played(request: pytest.FixtureRequest, module_world: World) -> Played:
    """Play every case whose test is going to run."""
    cases = [
        case for case in (*FORWARD_CASES, *BACKWARD_CASES, *TWICE_CASES) if case in wanted(request, parameter="case")
    ]
    await module_world.start_worker()
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    ended = await asyncio.gather(*(play(module_world, case, places) for case in cases), return_exceptions=True)
    return Played(module_world, {case.claim: one for case, one in zip(cases, ended, strict=True)})


def was_accepted(ended: Ended) -> bool:
    """True when somebody was told that the intent is being stopped."""
    return any(answer is not None and answer.accepted for answer in ended.answers)


@pytest.mark.parametrize("case", named(FORWARD_CASES))
def test_a_cancel_going_forward_ends_as_the_tables_say(case: Case, played: Played) -> None:
    ended = played[case]

    outcome = check_answer(ended.posted, ended.envelope)
    check_purchase(ended.posted, ended.account, outcome, AMOUNT_CENTS)
    cause = (ended.envelope.data or {})["cause"]
    assert cause == ("none" if outcome == "COMMITTED" else "cancelled")
    assert ended.posted.compensated() in ([], ["freeze"], ["debit", "freeze"])
    if was_accepted(ended):
        assert outcome != "COMMITTED", "who was told that it is stopped must not find it done"


@pytest.mark.situation(8)
@pytest.mark.parametrize("case", named(case for case in FORWARD_CASES if case.when == "early"))
def test_a_cancel_that_arrives_while_a_step_runs_waits_for_it_then_undoes_all(case: Case, played: Played) -> None:
    ended = played[case]
    if not ended.is_exact:
        pytest.skip("this machine was too slow to hold the step in one workflow task")

    outcome = check_answer(ended.posted, ended.envelope)

    expected: dict[str, tuple[str, list[str]]] = {
        ADMIT: ("NOT_APPLIED", []),
        FREEZE: ("COMPENSATED", ["freeze"]),
        DEBIT: ("COMPENSATED", ["debit", "freeze"]),
    }
    assert expected.get(case.activity, ("COMMITTED", [])) == (outcome, ended.posted.compensated())
    if case.doors == ("update",):
        assert was_accepted(ended) == (case.activity != SETTLE)
    began = [(entry.what, entry.name) for entry in ended.posted.journal() if entry.what in ("started", "answered")]
    if case.activity in (FREEZE, DEBIT):
        assert began.index(("answered", case.activity)) < began.index(("started", CLOSE)), "awaited, then closed"


@pytest.mark.situation(9)
@pytest.mark.parametrize("case", named(BACKWARD_CASES))
def test_no_cancel_reaches_the_way_back(case: Case, played: Played) -> None:
    ended = played[case]

    assert check_answer(ended.posted, ended.envelope) == "COMPENSATED"
    check_purchase(ended.posted, ended.account, "COMPENSATED", AMOUNT_CENTS)
    assert ended.posted.compensated() == ["debit", "freeze"]
    assert ended.envelope.error is not None
    if ended.is_exact:
        assert (ended.envelope.data or {})["cause"] == "refused"
        assert ended.envelope.error.code == "WRONG_STATE"
        assert not was_accepted(ended)


@pytest.mark.situation(9)
@pytest.mark.parametrize("case", named(TWICE_CASES))
def test_a_second_cancel_changes_nothing(case: Case, played: Played) -> None:
    ended = played[case]

    assert check_answer(ended.posted, ended.envelope) == "COMPENSATED"
    check_purchase(ended.posted, ended.account, "COMPENSATED", AMOUNT_CENTS)
    assert len(ended.posted.audit("closed")) == 1
    assert ended.posted.compensated() == (["freeze"] if case.forward else ["debit", "freeze"])


def test_the_books_are_right_after_all_cancels(played: Played) -> None:
    check_books(played.world)
