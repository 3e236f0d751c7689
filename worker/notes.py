"""Notes of refusals: one audit row for each, written after the answer, bounded, and dropped rather than queued."""

import asyncio
from typing import Final

import structlog

from activities import audit
from activities.database import Database
from contracts.errors import ErrorInfo, SagaError
from contracts.intent import Caller

NOTES_MAX: Final = 200
NOTES_SECONDS_MAX: Final = 10.0
_FIELDS_NOTED_MAX: Final = 20

log = structlog.get_logger(__name__)


class Notes:
    """The notes of one door that are on their way."""

    def __init__(self, database: Database) -> None:
        """Write into `database`."""
        self._database = database
        self._tasks: set[asyncio.Task[None]] = set()
        self._noting = asyncio.Lock()

    def add(self, caller: Caller, error: ErrorInfo, request_id: str) -> None:
        """Note a refusal once the answer is ready; a flood of them is dropped, not queued without end."""
        if len(self._tasks) < NOTES_MAX:
            task = asyncio.create_task(self._write(caller, error, request_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait, not for ever, until all are written."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=NOTES_SECONDS_MAX)

    async def _write(self, caller: Caller, error: ErrorInfo, request_id: str) -> None:
        told = {
            "request_id": request_id,
            "code": error.code.value,
            "fields": [{"path": field.path, "code": field.code} for field in error.fields[:_FIELDS_NOTED_MAX]],
        }
        try:
            async with self._noting:  # one after the other: notes at the same time would not see each other's cap
                await self._database.run(lambda transaction: audit.door_refused(transaction, caller, told))
        except SagaError as failure:
            log.warning("a refusal was not noted", request_id=request_id, code=error.code.value, why=str(failure))
