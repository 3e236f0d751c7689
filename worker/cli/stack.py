"""What `backstay up`, `down` and `db upgrade` do, as envelopes."""

import asyncio
from typing import TYPE_CHECKING

from contracts.errors import SagaError
from contracts.reasons import Reason
from worker.listings import answer

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.settings import Settings


def start(settings: "Settings") -> "Envelope":
    """Have the local stack running. Raises SagaError(DEPENDENCY_DOWN) saying what did not start."""
    from worker.stack import LocalStack, StackError  # noqa: PLC0415 - only who runs local servers needs it

    try:
        state = LocalStack.up(settings)
    except StackError as error:
        raise SagaError(Reason.DEPENDENCY_DOWN, str(error)) from error
    lines = [
        f"database  {state.database_url}",
        f"temporal  {state.temporal_address}, Web UI {state.ui_url}",
        f"bank      {state.bank_url}",
        f"logs      {settings.state_dir}/*.log",
        "next      backstay tools",
    ]
    running = {name: record.pid for name, record in state.processes.items()}
    data = {
        "database_url": state.database_url,
        "temporal_address": state.temporal_address,
        "ui_url": state.ui_url,
        "bank_url": state.bank_url,
        "processes": running,
        "lines": lines,
    }
    return answer(data)


def stop(settings: "Settings") -> "Envelope":
    """End the local stack. Raises SagaError(DEPENDENCY_DOWN)."""
    from worker.stack import LocalStack, StackError  # noqa: PLC0415 - as above

    try:
        ended = LocalStack.down(settings)
    except StackError as error:
        raise SagaError(Reason.DEPENDENCY_DOWN, str(error)) from error
    lines = [f"stopped: {', '.join(ended)}" if ended else "nothing was running"]
    return answer({"stopped": ended, "lines": lines})


async def upgrade_database(settings: "Settings") -> "Envelope":
    """Apply the migrations that are missing. Raises SagaError(DEPENDENCY_DOWN)."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - heavy, and only for migrations

    from activities import migrate  # noqa: PLC0415 - as above

    url = settings.require_database_url()
    try:
        missing = await asyncio.to_thread(migrate.pending, url)
        await asyncio.to_thread(migrate.upgrade, url)
    except DBAPIError as error:
        raise SagaError(
            Reason.DEPENDENCY_DOWN,
            f"The database could not be upgraded: {str(error.orig).strip().splitlines()[0]}",
            details={"error": type(error.orig).__name__},
        ) from error
    lines = [f"applied {name}" for name in missing] or ["the database has the newest schema"]
    return answer({"applied": missing, "lines": lines})
