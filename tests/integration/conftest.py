"""Fixtures: one house or one desk's database for a module, so that a test costs a post and not a start."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.support.desk import Desk, at_desk
from tests.support.house import House, house
from tests.support.shell import Shell, open_shell
from worker.stack import LocalStack


@pytest.fixture(scope="module")
async def home(stack: LocalStack, empty_template: str) -> AsyncIterator[House]:
    """A house with a worker."""
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    async with house(stack, client, empty_template) as made:
        yield made


@pytest.fixture(scope="module")
async def idle_home(stack: LocalStack, empty_template: str) -> AsyncIterator[House]:
    """A house whose worker is somewhere else: what is posted stays before admission."""
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    async with house(stack, client, empty_template, has_worker=False) as made:
        yield made


@pytest.fixture(scope="module")
def desk_url(stack: LocalStack, empty_template: str) -> Iterator[str]:
    """A database that each desk finds empty."""
    url = stack.create_database(template=empty_template)
    yield url
    stack.drop_database(url)


@pytest.fixture
async def desk(desk_url: str) -> AsyncGenerator[Desk]:
    """A desk: the engine's activities, called by hand."""
    async with at_desk(desk_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def shell(stack: LocalStack, empty_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a worker."""
    with open_shell(stack, empty_template, tmp_path_factory.mktemp("faults")) as opened:
        yield opened
