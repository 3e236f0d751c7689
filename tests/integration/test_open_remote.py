"""Open intents whose steps happen elsewhere: an add is answered when it is known what became of it, and not before."""

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from tests.support.courier import PACK, Courier, courier, parcel
from tests.support.opened import opened
from tests.support.sagas import Sagas, outcome, serve
from tests.support.samples import note
from worker.check import check


@pytest.fixture
async def office() -> AsyncGenerator[Courier]:
    async with courier() as made:
        yield made


@pytest.fixture
async def sagas(office: Courier, temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    del office  # open before a tool looks for it
    async with serve(temporal_client, database_url, task_queue, packs=(PACK,)) as served:
        yield served


async def test_a_step_whose_reply_was_lost_is_answered_once_it_is_known_and_the_next_one_follows(
    sagas: Sagas, office: Courier
) -> None:
    intent = await opened(sagas)
    office.does("send", "a", "drop reply")

    sent = await intent.add(parcel("a"))
    after = await intent.add(note("n"))
    done = await intent.commit()

    assert (sent.accepted, after.accepted, done.outcome) == (True, True, "COMMITTED")
    assert len(office.book) == 1
    assert [found.name for found in (await check(sagas.database_url)).checks if not found.ok] == []


async def test_an_abort_takes_back_what_was_done_elsewhere(sagas: Sagas, office: Courier) -> None:
    intent = await opened(sagas)
    await intent.add(parcel("a"))
    await intent.add(note("n"))

    await intent.abort()

    assert outcome(await intent.result()) == ("COMPENSATED", "cancelled")
    assert intent.undone() == ["n", "a"]
    assert [doing for doing, _, _ in office.requests][-1] == "return"
