"""Fixtures of the fault tests: a world with a database of its own, whose processes are gone when the test is over."""

import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.faults.support.books import check_books
from tests.faults.support.control import Control
from tests.faults.support.nursery import Nursery
from tests.faults.support.world import World
from worker.stack import LocalStack


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where workers come from."""
    with Nursery() as made:
        yield made


@pytest.fixture(scope="session")
async def client(stack: LocalStack) -> Client:
    """A client of the session's Temporal server, through all its deaths."""
    return await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)


GRID_SECONDS_MAX: Final = 300
"""A module's scenarios all run at once, in the set-up of whichever is asked first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a grid of scenarios the time of many tests; what is slow has more than that from the command line."""
    for item in items:
        if "grid" in getattr(item, "fixturenames", ()) and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.timeout(GRID_SECONDS_MAX))


@contextmanager
def opened(stack: LocalStack, client: Client, template: str, nursery: Nursery, directory: Path) -> Generator[World]:
    """Make a world on a fresh database; at the end no process of it is left."""
    url = stack.create_database(template=template)
    world = World(stack, url, client, f"faults-{uuid.uuid4()}", Control(directory), nursery)
    try:
        world.open_bank()
        yield world
    finally:
        world.close()
        stack.drop_database(url)


@pytest.fixture
async def open_world(
    stack: LocalStack, client: Client, empty_template: str, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[World]:
    """A world for one test, whose books nobody checks in the end."""
    with opened(stack, client, empty_template, nursery, tmp_path) as made:
        yield made


@pytest.fixture
def world(open_world: World) -> Iterator[World]:
    """A world for one test; at the end its books are right."""
    yield open_world
    check_books(open_world)


@pytest.fixture(scope="module")
async def module_world(
    stack: LocalStack,
    client: Client,
    empty_template: str,
    nursery: Nursery,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[World]:
    """A world that the tests of a module share; one of them checks its books."""
    with opened(stack, client, empty_template, nursery, tmp_path_factory.mktemp("world")) as made:
        yield made
