"""Two attempts at the same thing are alive at once: a worker that is cut off and comes back, two calls with one key.

A frozen worker (SIGSTOP) keeps its connections, its locks and its beliefs. Temporal gives its work to another one
after the time-outs; thawed, it goes on where it was.
"""

import asyncio
from typing import Final

import pytest

from activities.barrier import execute_step
from activities.compensation import compensate_step
from activities.packs.ledger import PACK
from activities.tool import AnyTool, Tool
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.faults.support.books import check_answer, check_books, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import (
    AMOUNT_CENTS,
    CLOSE,
    DEBIT,
    FREEZE,
    SETTLE,
    debit,
    doomed,
    freeze,
    purchase,
)
from tests.faults.support.world import World, until

FREEZE_UNDONE: Final = f"{FREEZE}.compensate"
DEBIT_UNDONE: Final = f"{DEBIT}.compensate"


def frozen(activity: str, point: Point, late: str, *, forward: bool = True, cancelled: str = "") -> Scenario:
    """Freeze a worker at a point until another one has brought the saga to its end; thaw it; nothing changes.

    `late`: how the thawed attempt ends: cancelled by its own worker, or else, where it is stubborn, refused with a
    reason, or answered with what is stored.
    `cancelled`: what the other worker's way back has compensated, after a cancel that came in the meantime.
    """

    async def scenario(world: World) -> None:
        account = world.account()
        posting = world.posting(purchase(account) if forward else doomed(account))
        rule = world.arm(activity, point, "stop", posting, stubborn=late != "cancelled")
        first = await world.start_worker()
        posted = await world.post(posting)
        await posted.until_fired(rule)
        if cancelled:
            await posted.cancel("signal")
        await world.start_worker()
        envelope = await posted.answer(seconds=60)
        outcome = "COMMITTED" if forward and not cancelled else "COMPENSATED"
        undone = cancelled.split() if forward else ["debit", "freeze"]
        assert check_answer(posted, envelope) == outcome
        assert posted.compensated() == undone
        before = world.all("select * from backstay.audit_log where intent_key = %s", posted.intent_key)

        first.thaw()

        def ended() -> list[str]:
            return [
                entry.detail or entry.what
                for entry in posted.journal(name=activity)
                if entry.pid == first.pid and entry.what in ("answered", "refused", "cancelled")
            ]

        await until(lambda: f"the thawed attempt to end; {posted.journal()}", ended)
        assert ended()[-1] == late
        assert posted.compensated() == undone
        check_purchase(posted, account, outcome, AMOUNT_CENTS)
        assert posted.claimed()["phase"] == outcome
        after = world.all("select * from backstay.audit_log where intent_key = %s", posted.intent_key)
        assert {row["kind"] for row in after if row not in before} <= {"refusal", "compensation_refused"}

    return scenario


async def frozen_in_an_ordinary_activity(world: World) -> None:
    """What was dispatched by Temporal itself is given away after its time-out; the first attempt comes too late."""
    account = world.account()
    posting = world.posting(purchase(account))
    failing = world.arm(FREEZE, "begin", "fail", posting, times=2)  # so that it is no local activity any more
    rule = world.arm(FREEZE, "begin", "stop", posting, stubborn=True)
    first = await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    second = await world.start_worker()

    envelope = await posted.answer(seconds=60)
    first.thaw()
    await until("the thawed attempt", lambda: posted.journal("refused", FREEZE)[-1].detail == "SUPERSEDED")

    assert world.control.fired(failing) == 2
    assert check_answer(posted, envelope) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)
    landed = [entry for entry in posted.journal("committed", FREEZE) if entry.pid == second.pid]
    assert landed[0].attempt == 2
    assert posted.journal("refused", FREEZE)[-1].pid == first.pid


async def one_key_at_the_same_time(world: World) -> None:
    """Of many calls with one key one lands; all others get its answer, byte for byte."""
    account = world.account()
    steps = purchase(account)
    posting = world.posting(steps)
    rule = world.arm(FREEZE, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    call = posted.step_call("freeze", steps[0]["arguments"])

    async with world.database() as one, world.database() as other:
        results = await asyncio.gather(
            *(execute_step(database, tool(FREEZE), call) for database in (one, other) for _ in range(6))
        )
    world.control.release(rule)
    envelope = await posted.answer()

    assert len({result.model_dump_json() for result in results}) == 1
    assert check_answer(posted, envelope) == "COMMITTED"
    told = {step["step_id"]: step for step in (envelope.data or {})["steps"]}
    assert told["freeze"]["output"] == results[0].output, "the saga's own attempt got the same"
    assert world.one("select count(*) as n from ledger.holds where account_id = %s", account) == {"n": 1}
    check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)


async def one_key_with_other_arguments(world: World) -> None:
    """A key that landed never lends its answer to other arguments, and never lands them."""
    account = world.account()
    posting = world.posting(purchase(account))
    rule = world.arm(DEBIT, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    other = freeze(account, AMOUNT_CENTS + 1)["arguments"]

    async with world.database() as database:
        with pytest.raises(SagaError) as refused:
            await execute_step(database, tool(FREEZE), posted.step_call("freeze", other))
    world.control.release(rule)

    assert refused.value.reason in (Reason.KEY_REUSED, Reason.MISMATCH)
    assert check_answer(posted, await posted.answer()) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)


async def compensation_before_its_step(world: World) -> None:
    """A compensation of what never ran touches nothing, and the step that comes after it never lands."""
    account = world.account()
    into_itself = debit(step_id="refused", hold="one")
    into_itself["arguments"]["credit_account_id"] = account
    never = debit(step_id="never", hold="two")
    steps = [*purchase(account), freeze(account, step_id="one"), freeze(account, step_id="two"), into_itself, never]
    posting = world.posting(steps)
    rule = world.arm(FREEZE_UNDONE, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    standing = world.standing(account), posted.movements()
    hold = world.one(
        "select hold_id from ledger.holds where account_id = %s and step_key like '%%/two/execute'", account
    )
    assert hold is not None
    arguments = never["arguments"] | {"hold_id": hold["hold_id"]}

    async with world.database() as database:
        undone = [await compensate_step(database, tool(DEBIT), posted.compensate_call("never")) for _ in range(2)]
        with pytest.raises(SagaError) as late:
            await execute_step(database, tool(DEBIT), posted.step_call("never", arguments))

    assert [one.undone for one in undone] == [False, False]
    assert undone[0] == undone[1]
    assert late.value.reason is Reason.SUPERSEDED
    assert posted.effects()["never"] == "TOMBSTONE"
    assert (world.standing(account), posted.movements()) == standing
    world.control.release(rule)
    assert check_answer(posted, await posted.answer()) == "COMPENSATED"
    check_purchase(posted, account, "COMPENSATED", AMOUNT_CENTS)


async def locked_by_another_session(world: World) -> None:
    """A lock that somebody else holds is waited for, within bounds and again and again; then the step lands once."""
    account = world.account()
    posting = world.posting(purchase(account))
    await world.start_worker()
    with world.session() as other:
        other.execute("select 1 from ledger.accounts where account_id = %s for update", (account,))
        posted = await world.post(posting)
        await until("the step to wait in vain", lambda: len(posted.journal("refused", FREEZE)) >= 3)
        other.execute("rollback")

    envelope = await posted.answer()

    assert {entry.detail for entry in posted.journal("refused", FREEZE)} == {"IN_PROGRESS"}
    assert check_answer(posted, envelope) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", AMOUNT_CENTS)
    assert posted.audit("refusal") == [], "nothing was decided, so nothing is noted"


async def two_sagas_on_one_account(world: World) -> None:
    """What one saga holds no other can spend; once it is freed, the same post goes through under the same id."""
    account = world.account(AMOUNT_CENTS + 100)
    holding = world.posting(purchase(account))
    rule = world.arm(DEBIT, "begin", "pause", holding)
    await world.start_worker()
    first = await world.post(holding)
    await first.until_fired(rule)
    second = world.posting(purchase(account))

    refused = await (await world.post(second)).answer()
    await first.cancel("temporal")
    world.control.release(rule)
    freed = await first.answer()
    again = await world.post(second)
    envelope = await again.answer()

    assert refused.error is not None
    assert (refused.error.code, refused.error.outcome) == ("FUNDS_INSUFFICIENT", "not_applied")
    assert check_answer(first, freed) in ("COMPENSATED", "COMMITTED")
    if check_answer(first, freed) == "COMPENSATED":
        assert check_answer(again, envelope) == "COMMITTED"
        assert world.standing(account) == (100, 0)
        assert len(again.audit("admitted")) == 1


def tool(name: str) -> AnyTool:
    """A tool of the ledger."""
    return next(tool for tool in PACK.tools if isinstance(tool, Tool) and tool.contract.wire_name == name)


SCENARIOS: Final[dict[str, Scenario]] = {
    "frozen before a step": frozen(FREEZE, "begin", "SUPERSEDED"),
    "frozen inside a step's transaction": frozen(DEBIT, "written", "SUPERSEDED"),
    "frozen inside a step's transaction, and obedient": frozen(DEBIT, "written", "cancelled"),
    "frozen after a step's commit": frozen(DEBIT, "committed", "answered"),
    "frozen before a step, cancelled meanwhile": frozen(DEBIT, "begin", "SUPERSEDED", cancelled="freeze"),
    "frozen before settling": frozen(SETTLE, "begin", "answered"),
    "frozen before settling, cancelled meanwhile": frozen(SETTLE, "begin", "answered", cancelled="debit freeze"),
    "frozen inside settling": frozen(SETTLE, "written", "answered"),
    "frozen before closing": frozen(CLOSE, "begin", "answered", forward=False),
    "frozen before a compensation": frozen(FREEZE_UNDONE, "begin", "answered", forward=False),
    "frozen inside a compensation": frozen(DEBIT_UNDONE, "written", "answered", forward=False),
    "frozen in an ordinary activity": frozen_in_an_ordinary_activity,
    "one key at the same time": one_key_at_the_same_time,
    "one key with other arguments": one_key_with_other_arguments,
    "a compensation before its step": compensation_before_its_step,
    "a lock held by another session": locked_by_another_session,
    "two sagas on one account": two_sagas_on_one_account,
}

SLOW: Final = frozenset(
    {
        "frozen after a step's commit",
        "frozen inside a step's transaction, and obedient",
        "frozen inside settling",
        "frozen before closing",
        "frozen before a compensation",
        "frozen in an ordinary activity",
    }
)


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World) -> Grid:
    """How the scenarios ended."""
    return await run_grid(module_world, selected(request, SCENARIOS))


@pytest.mark.situation(2, "F41", claims=["a compensation before its step"])
@pytest.mark.situation(3, "F40", claims=["frozen before a step, cancelled meanwhile"])
@pytest.mark.situation(4, claims=["one key at the same time"])
@pytest.mark.situation(5, claims=["one key with other arguments"])
@pytest.mark.situation(18, claims=["two sagas on one account"])
@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_of_two_attempts_one_counts(claim: str, grid: Grid) -> None:
    grid.hold(claim)


def test_the_books_are_right_after_all_double_attempts(grid: Grid, module_world: World) -> None:
    del grid  # it has run

    check_books(module_world)
