"""Fixtures: real servers, started only by the tests that ask for them, one pair for the whole session.

Under xdist each worker process has a pair of its own. Every test gets a fresh, migrated database.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.stack import LocalStack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temporalio.client import Client

TEMPLATE = "migrated"
KEPT_STACK = "BACKSTAY_TEST_STACK"
"""Directory of a stack whose PostgreSQL runs already and has the template: `make mutants` runs many short sessions."""


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    """A PostgreSQL and a Temporal server; fault tests may kill them, and start them again before they end."""
    if kept := os.environ.get(KEPT_STACK):
        yield LocalStack.at(Path(kept))
        return
    with LocalStack.temporary() as running:
        yield running


@pytest.fixture(scope="session")
def empty_template(stack: LocalStack) -> str:
    """The name of a database with the newest schema and no rows."""
    from activities import migrate  # noqa: PLC0415 - pure tests must not pay for it

    if KEPT_STACK not in os.environ:
        migrate.upgrade(stack.create_database(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database_url(stack: LocalStack, empty_template: str) -> Iterator[str]:
    """A fresh database with the newest schema, as its superuser."""
    url = stack.create_database(template=empty_template)
    yield url
    stack.drop_database(url)


@pytest.fixture
def task_queue() -> str:
    """A task queue that no other test uses."""
    return f"test-{uuid.uuid4()}"


@pytest.fixture
async def temporal_client(stack: LocalStack) -> Client:
    """A client that speaks pydantic, like all of ours."""
    from temporalio.client import Client  # noqa: PLC0415 - as above
    from temporalio.contrib.pydantic import pydantic_data_converter  # noqa: PLC0415 - as above

    return await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for a server, however indirectly, so that `-m "not servers"` is instant.

    Their files go first: they take longest, and so processes side by side end together.
    """
    for item in items:
        if "stack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.servers)
    long = {item.path for item in items if item.get_closest_marker("servers") is not None}
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly that what was skipped showed nothing."""
    skipped = len(terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_sep("!", f"{skipped} skipped: these claims were NOT tested; reasons above", yellow=True)


_exit_status: int | None = None


def pytest_sessionfinish(exitstatus: int) -> None:
    """Remember how the session ended."""
    global _exit_status  # noqa: PLW0603 - from one hook to the other
    _exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End the process by itself once all is reported.

    temporalio 1.35 now and then aborts the interpreter while it shuts down (PyGILState_Release), or hangs there for
    ever when a call was still on its way: a suite that passed must end with its own exit code, and must end. The same
    for xdist's workers, whose results have been sent by now; one that hung would keep the whole suite waiting. Sessions
    inside another program, on a stack that was there before, leave the ending to it.
    """
    if _exit_status is not None and "temporalio" in sys.modules and KEPT_STACK not in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_status)
