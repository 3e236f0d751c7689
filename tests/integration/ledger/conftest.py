"""A bank for every test of the ledger, and the invariants after it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.ledger import Bank, open_bank, wipe
from worker.stack import LocalStack


@pytest.fixture(scope="module")
def books_url(stack: LocalStack, empty_template: str) -> Iterator[str]:
    """One database for a module; each test finds it empty."""
    url = stack.create_database(template=empty_template)
    yield url
    stack.drop_database(url)


@pytest.fixture
async def bank(books_url: str) -> AsyncIterator[Bank]:
    """A bank whose books are asked every invariant when the test is over."""
    wipe(books_url)
    async with open_bank(books_url) as opened:
        yield opened
        opened.settle()
        assert opened.violations() == {}
