"""A worker dies by SIGKILL around a call to somewhere else: the courier's book says that everything happened once."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from activities.catalog import load_packs
from contracts.registry import Registry
from tests.faults.support import courier_pack
from tests.faults.support.books import check_books
from tests.faults.support.control import Point
from tests.faults.support.world import Posted, WorkerProcess, World, until
from tests.support.courier import Courier, courier, parcel

SHIP: Final = "ship_sample_parcel@1"
PACKS: Final = {"BACKSTAY_PACKS": courier_pack.__name__}
SECONDS: Final = 60.0


@pytest.fixture
async def office() -> AsyncIterator[Courier]:
    async with courier() as made:
        yield made


@pytest.fixture
def delivering(office: Courier, world: World) -> World:
    """A world whose workers know the courier."""
    del office
    packs = [*load_packs(()), courier_pack.PACK]
    world.registry = Registry.of([tool.contract for pack in packs for tool in pack.tools])
    return world


async def worker(world: World) -> WorkerProcess:
    return await world.start_worker(extra=PACKS, fresh=True)


def sendings(posted: Posted) -> dict[str, tuple[str, int]]:
    """State and number of sendings of each attempt."""
    rows = posted.world.all(
        "select step_id, direction, state, sends from backstay.attempts where intent_key = %s", posted.intent_key
    )
    return {f"{row['direction']} {row['step_id']}": (row["state"], row["sends"]) for row in rows}


@pytest.mark.situation(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("begin", marks=pytest.mark.slow),
        pytest.param("written", marks=pytest.mark.slow),
        "committed",
        pytest.param("answered", marks=pytest.mark.slow),
    ],
)
async def test_killed_around_the_attempts_commit_a_step_is_sent_once(
    delivering: World, office: Courier, point: Point
) -> None:
    """`committed` is between the attempt and the call; `answered` after the effect, before Temporal knows."""
    posting = delivering.posting([parcel("a")])
    rule = delivering.arm(SHIP, point, "kill", posting)
    first = await worker(delivering)

    posted = await delivering.post(posting)
    await posted.until_fired(rule)
    await first.died()
    await worker(delivering)

    assert (await posted.answer(seconds=SECONDS)).exit_code == 0
    assert office.told() == [("sent", "a")]
    assert sendings(posted)["execute a"][0] == "LANDED"


@pytest.mark.situation(6, 19)
@pytest.mark.parametrize("landed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["landed", "not landed"])
async def test_killed_while_the_courier_has_the_request_a_step_lands_once(
    delivering: World, office: Courier, *, landed: bool
) -> None:
    office.does("send", "a", "kill after" if landed else "kill before")
    first = await worker(delivering)
    office.kill = first.kill

    posted = await delivering.post([parcel("a"), parcel("b")])
    await first.died()
    assert sendings(posted) == {"execute a": ("SENT", 1)}
    await worker(delivering)

    assert (await posted.answer(seconds=SECONDS)).exit_code == 0
    assert office.told() == [("sent", "a"), ("sent", "b")]
    assert sendings(posted)["execute a"] == ("LANDED", 1 if landed else 2)


@pytest.mark.slow
@pytest.mark.parametrize("landed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["landed", "not landed"])
async def test_killed_while_the_courier_has_a_fallback_it_lands_once_and_its_step_never(
    delivering: World, office: Courier, *, landed: bool
) -> None:
    office.does("send", "a", "refuse")
    office.does("send", "a.fallback", "kill after" if landed else "kill before")
    first = await worker(delivering)
    office.kill = first.kill
    other = parcel("b")

    posted = await delivering.post([parcel("a", fallback={"tool": other["tool"], "arguments": other["arguments"]})])
    await first.died()
    assert sendings(posted) == {"execute a": ("FENCED", 1), "execute a.fallback": ("SENT", 1)}
    await worker(delivering)

    assert (await posted.answer(seconds=SECONDS)).exit_code == 0
    assert office.told() == [("sent", "b")]
    check_books(delivering)


@pytest.mark.slow
@pytest.mark.parametrize("landed", [True, False], ids=["done", "not done"])
async def test_killed_while_a_compensation_is_on_its_way_it_is_done_once(
    delivering: World, office: Courier, *, landed: bool
) -> None:
    office.does("send", "b", "refuse")
    office.does("return", "a", "kill after" if landed else "kill before")
    first = await worker(delivering)
    office.kill = first.kill

    posted = await delivering.post([parcel("a"), parcel("b")])
    await first.died()
    await worker(delivering)

    assert (await posted.answer(seconds=SECONDS)).exit_code == 1
    assert office.told() == [("sent", "a"), ("returned", "a")]
    assert posted.compensated() == ["a"]


@pytest.mark.slow
async def test_killed_between_attempt_and_call_and_then_cancelled_nothing_is_sent_and_nothing_lost(
    delivering: World, office: Courier
) -> None:
    posting = delivering.posting([parcel("a"), parcel("b")])
    rule = delivering.arm(SHIP, "committed", "kill", posting)
    first = await worker(delivering)
    posted = await delivering.post(posting)
    await posted.until_fired(rule)
    await first.died()

    await posted.handle.signal("cancel", {"reason": "enough", "requested_by": "tester"})
    await worker(delivering)

    assert (await posted.answer(seconds=SECONDS)).exit_code == 1
    assert office.kept() == {}


async def test_a_run_that_was_ended_while_the_outcome_was_unknown_is_adopted_and_closed(
    delivering: World, office: Courier
) -> None:
    office.does("send", "a", "kill after")
    first = await worker(delivering)
    office.kill = first.kill
    posted = await delivering.post([parcel("a"), parcel("b")])
    await first.died()
    await posted.handle.terminate("the test says so")
    await worker(delivering)

    await delivering.sweep()
    adopted = posted.latest()
    await adopted.until_parked("INTERRUPTED")
    await adopted.resolve("close")
    await until("its end", lambda: posted.phase() == "COMPENSATED", seconds=SECONDS)

    assert office.told() == [("sent", "a"), ("returned", "a")]
    check_books(delivering)
