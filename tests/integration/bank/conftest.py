"""One bank, one worker and one database for a module; each test looks at its own intents alone."""

from collections.abc import AsyncIterator, Iterator

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.support.trials import Trial, trial
from worker.stack import LocalStack


@pytest.fixture(scope="module")
async def trials(
    stack: LocalStack, empty_template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Trial]:
    """What the module's tests share."""
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    url = stack.create_database(template=empty_template)
    async with trial(client, url, tmp_path_factory.mktemp("bank")) as made:
        yield made
    stack.drop_database(url)


@pytest.fixture
def at(trials: Trial) -> Iterator[Trial]:
    """The same, with every switch off afterwards and the bank up."""
    yield trials
    if not trials.bank.is_up:
        trials.bank.start_again()
    for name in trials.bank.switches():
        trials.bank.switch(name, times=0)
