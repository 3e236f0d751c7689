"""The budget of a two-step intent, counted and not timed: events, workflow tasks, commits, round trips."""

import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.database import Database, check_durability
from tests.support.lockers import ANNA, BORIS, claim, create_books, lockers_pack, trust
from tests.support.sagas import Handle, Sagas, freeze_and_debit, outcome, request, serve
from tests.support.samples import Behaviour, note

EVENTS_MAX = 10
COMMITS = 4
ROUND_TRIPS_MAX = 13
STEPS_MAX = 50
WORDS_MAX = 1_200
"""A body holds no more of them fifty times."""
HISTORY_EVENTS_LIMIT = 51_200
HISTORY_BYTES_LIMIT = 50 * 1024 * 1024
PAYLOAD_BYTES_LIMIT = 2 * 1024 * 1024
"""Where Temporal ends a run, or takes no answer."""
PREPARED_AFTER = 6
"""psycopg prepares a statement when it has met it this often; the budget is that of a worker that has warmed up."""


class Wire:
    """What travels between a pool's connections and the server while the block runs, as libpq itself tells it."""

    def __init__(self, database: Database, directory: Path) -> None:
        """Listen to every connection of the pool, which has to be at rest."""
        self._connections = tuple(database._pool._pool)  # pyright: ignore[reportPrivateUsage]
        self._logs = [directory / f"wire-{number}" for number in range(len(self._connections))]
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Begin to listen."""
        for connection, log in zip(self._connections, self._logs, strict=True):
            connection.pgconn.trace(self._files.enter_context(log.open("wb")).fileno())
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; what was heard is complete now."""
        for connection in self._connections:
            connection.pgconn.untrace()
        self._files.close()

    def _messages(self) -> list[list[list[str]]]:
        """List each connection's messages: time, direction (F to the server, B back), length, kind and contents."""
        return [[line.split("\t") for line in log.read_text("latin-1").splitlines()] for log in self._logs]

    @property
    def round_trips(self) -> int:
        """How often somebody waited: the server's first answer after something was sent."""
        turns = 0
        for messages in self._messages():
            directions = [message[1] for message in messages if len(message) > 1]
            turns += sum(turn == ("F", "B") for turn in pairwise(directions))
        return turns

    @property
    def commits(self) -> int:
        """How many transactions ended well."""
        ends = [message[3:] for messages in self._messages() for message in messages if "B" in message[1:2]]
        return sum('"COMMIT"' in " ".join(end) for end in ends)


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


async def _kinds(handle: Handle) -> list[str]:
    return [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in (await handle.fetch_history()).events
    ]


async def test_two_steps_keep_within_the_budget(sagas: Sagas, tmp_path: Path) -> None:
    for _ in range(PREPARED_AFTER):
        await sagas.run(*freeze_and_debit())

    with Wire(sagas.engine.database, tmp_path) as wire:
        handle = await sagas.start(request(*freeze_and_debit()), request_eager_start=True)
        envelope = await sagas.result(handle)
    kinds = await _kinds(handle)

    assert outcome(envelope) == ("COMMITTED", "none")
    assert kinds.count("WORKFLOW_TASK_COMPLETED") == 1
    assert kinds.count("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES") == 1
    assert len(kinds) <= EVENTS_MAX, kinds
    assert wire.commits == COMMITS
    assert wire.round_trips <= ROUND_TRIPS_MAX


async def test_a_plan_that_locks_costs_no_commit_more_and_one_round_trip_for_each_step(
    temporal_client: Client, database_url: str, task_queue: str, tmp_path: Path
) -> None:
    spent: list[tuple[int, int]] = []
    async with serve(temporal_client, database_url, task_queue, packs=(lockers_pack(Behaviour()),)) as sagas:
        create_books(database_url)
        for tool in (trust, claim):
            for _ in range(PREPARED_AFTER):
                await sagas.run(tool("first", ANNA), tool("second", BORIS))
            with Wire(sagas.engine.database, tmp_path) as wire:
                envelope = await sagas.run(tool("first", ANNA), tool("second", BORIS))
            assert outcome(envelope) == ("COMMITTED", "none")
            spent.append((wire.commits, wire.round_trips))

    assert spent[1] == (COMMITS, spent[0][1] + 2)


async def test_the_four_activities_are_local_and_named_after_the_business(sagas: Sagas) -> None:
    handle = await sagas.start(request(*freeze_and_debit()))
    await sagas.result(handle)

    markers = [
        json.loads(event.marker_recorded_event_attributes.details["data"].payloads[0].data)["activity_type"]
        for event in (await handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
    ]

    assert markers == ["admit_intent", "freeze_account_funds@1", "debit_frozen_funds@1", "settle_intent"]


async def test_a_transaction_costs_one_round_trip_more_than_its_reads(database_url: str, tmp_path: Path) -> None:
    async with Database(database_url, connections_max=1) as database:
        for _ in range(PREPARED_AFTER):
            await check_durability(database)

        with Wire(database, tmp_path) as wire:
            await database.run(lambda transaction: transaction.one("select 1 as one"))

    assert (wire.commits, wire.round_trips) == (1, 2)


async def test_a_statement_by_itself_is_one_round_trip(database_url: str, tmp_path: Path) -> None:
    async with Database(database_url, connections_max=1) as database:
        for _ in range(PREPARED_AFTER):
            await database.one("select 1 as one")

        with Wire(database, tmp_path) as wire:
            await database.one("select 1 as one")

    assert (wire.commits, wire.round_trips) == (0, 1)


@pytest.mark.situation(16)
async def test_fifty_of_the_largest_steps_stay_far_from_what_a_history_holds(sagas: Sagas) -> None:
    words = "\U0001f4b6" * WORDS_MAX  # four bytes each, and twelve in an escape
    handle = await sagas.start(request(*(note(f"n{number}", text=words) for number in range(STEPS_MAX))))

    envelope = await sagas.result(handle)
    events = (await handle.fetch_history()).events

    assert outcome(envelope) == ("COMMITTED", "none")
    assert len(sagas.effects(envelope)) == STEPS_MAX
    assert len(events) < HISTORY_EVENTS_LIMIT / 100
    assert max(event.ByteSize() for event in events) < PAYLOAD_BYTES_LIMIT / 2
    assert sum(event.ByteSize() for event in events) < HISTORY_BYTES_LIMIT / 20
