"""Fixtures of the tests of doors and commands: one house for a module, so that a test costs a post and not a start."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.support.house import House, house
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
