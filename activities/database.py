"""PostgreSQL under us: a pool, and transactions that are run as a whole until they are decided.

Every transaction of ours is write-once by key, so running it again after a lost connection, a deadlock or a
serialisation failure is always right; `Database.run` does that, bounded, and says plainly when it gave up.
Statements travel in libpq's pipeline mode: what is queued goes out with the next read or with the commit, begin and
commit too, so a step costs three round trips (measured; `docs/performance.md`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, LiteralString, Protocol, Self, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from contracts.errors import SagaError
from contracts.reasons import Reason

T = TypeVar("T")
Row = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]

ROLE_APP: Final = "backstay_app"
ROLE_READONLY: Final = "backstay_readonly"
LOCK_TIMEOUT_SECONDS: Final = 2.0
STATEMENT_TIMEOUT_SECONDS: Final = 3.0
TRANSACTION_TIMEOUT_SECONDS: Final = 4.0
"""Of a whole transaction: in a pipeline the server never knows that it is idle, so the idle timeout does nothing."""
POOL_WAIT_SECONDS: Final = 4.0
TRANSACTION_ATTEMPTS_MAX: Final = 3

_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)


class Tracer(Protocol):
    """What telemetry offers for SQL; absent when tracing is off."""

    def __call__(self, statement: str, /) -> AbstractContextManager[Any]:
        """Open a span around one statement."""
        ...


class Transaction:
    """One open transaction; all its statements share one snapshot of `now()`."""

    __slots__ = ("_connection", "_tracer")

    def __init__(self, connection: psycopg.AsyncConnection[Row], tracer: Tracer | None = None) -> None:
        """Wrap a connection, inside a pipeline block where statements are to travel together."""
        self._connection = connection
        self._tracer = tracer

    async def one(self, statement: LiteralString, params: Params = ()) -> Row | None:
        """Run a statement and return its first row, or None."""
        with self._tracer(statement) if self._tracer else nullcontext():
            cursor = await self._connection.execute(statement, params)
            return await cursor.fetchone()

    async def all(self, statement: LiteralString, params: Params = ()) -> list[Row]:
        """Run a statement and return all its rows; the statement bounds how many."""
        with self._tracer(statement) if self._tracer else nullcontext():
            cursor = await self._connection.execute(statement, params)
            return await cursor.fetchall()

    async def ask(self, statement: LiteralString, params: Params = ()) -> "Answer":
        """Queue a statement whose rows are read later: both travel in one round trip."""
        with self._tracer(statement) if self._tracer else nullcontext():
            return Answer(await self._connection.execute(statement, params))

    async def later(self, statement: LiteralString, params: Params = ()) -> None:
        """Queue a statement that returns nothing of interest; it goes out with the next read or the commit."""
        with self._tracer(statement) if self._tracer else nullcontext():
            await self._connection.execute(statement, params)


class Answer:
    """Rows that are on their way."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: psycopg.AsyncCursor[Row]) -> None:
        """Remember the cursor of the queued statement."""
        self._cursor = cursor

    async def one(self) -> Row | None:
        """Return the first row, or None."""
        return await self._cursor.fetchone()

    async def all(self) -> list[Row]:
        """Return all rows."""
        return await self._cursor.fetchall()

    async def columns(self) -> tuple[str, ...]:
        """Name the columns, whether or not there are rows."""
        await self._cursor.fetchall()
        return tuple(column.name for column in self._cursor.description or ())


def _remembering(refusals: deque[str]) -> type[psycopg.AsyncConnection[Row]]:
    """Make a class of connections that notes why the last one failed: the pool itself only says that it waited."""

    class Remembering(psycopg.AsyncConnection[Row]):
        @classmethod
        async def connect(cls, *arguments: Any, **named: Any) -> Self:  # noqa: ANN401 - whatever psycopg takes
            try:
                connection = await super().connect(*arguments, **named)
            except psycopg.Error as error:
                refusals.append(str(error).partition("\n")[0])
                raise
            refusals.clear()
            return connection

    return Remembering


class Database:
    """A pool of connections under one role; use as an async context manager."""

    def __init__(
        self, url: str, *, role: str = ROLE_APP, connections_max: int = 20, tracer: Tracer | None = None
    ) -> None:
        """Prepare the pool; nothing connects before `async with`."""
        options = (
            f"-c role={role} -c lock_timeout={int(LOCK_TIMEOUT_SECONDS * 1000)}"
            f" -c statement_timeout={int(STATEMENT_TIMEOUT_SECONDS * 1000)}"
            f" -c transaction_timeout={int(TRANSACTION_TIMEOUT_SECONDS * 1000)}"
            " -c plan_cache_mode=force_generic_plan"  # every statement finds its rows by key: planned once is enough
        )
        self._tracer = tracer
        self._refusals = deque[str](maxlen=1)
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Row]] = AsyncConnectionPool(
            url,
            connection_class=_remembering(self._refusals),
            kwargs={
                "row_factory": dict_row,
                "options": options,
                "application_name": "backstay",
                "autocommit": True,  # `run` says begin and commit itself: psycopg would wait for an answer to each
            },
            min_size=1,
            max_size=connections_max,
            timeout=POOL_WAIT_SECONDS,
            open=False,
        )

    async def __aenter__(self) -> Self:
        """Open the pool; the first connection is made in the background."""
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._pool.close()

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in one transaction and commit; on an exception roll back.

        Deadlocks, serialisation failures and lost connections run the whole transaction again, at most
        three times in all: `work` must be write-once by key and touch nothing but the transaction.
        Raises SagaError: IN_PROGRESS (a lock was not had in time), DEPENDENCY_DOWN (database not reachable
        or too slow). What `work` raises passes through.
        """

        async def whole(connection: psycopg.AsyncConnection[Row]) -> T:
            async with connection.pipeline():
                await connection.execute("begin")
                result = await work(Transaction(connection, self._tracer))
                ended = await connection.execute("commit")
            # Leaving the pipeline sent what was queued and read every answer.
            if ended.statusmessage != "COMMIT":
                raise AssertionError(f"the transaction ended with {ended.statusmessage}: an error was swallowed")
            return result

        return await self._decided(whole)

    async def _decided(self, work: Callable[[psycopg.AsyncConnection[Row]], Awaitable[T]]) -> T:
        """Work on a connection until it is decided; bounded, and raising as `run` says."""
        for attempt in range(1, TRANSACTION_ATTEMPTS_MAX + 1):
            last = attempt == TRANSACTION_ATTEMPTS_MAX
            try:
                async with self._pool.connection() as connection:
                    return await work(connection)
            except errors.LockNotAvailable as error:
                raise SagaError(
                    Reason.IN_PROGRESS, "Another transaction holds what this one needs; it is tried again."
                ) from error
            except _AGAIN as error:
                if last:
                    raise self._down(error) from error
            except (psycopg.OperationalError, errors.TransactionTimeout, PoolTimeout) as error:
                if last or isinstance(error, (errors.QueryCanceled, errors.TransactionTimeout, PoolTimeout)):
                    raise self._down(error) from error
            await asyncio.sleep(0.02 * attempt)
        raise AssertionError("unreachable")  # pragma: no cover

    def _down(self, error: Exception) -> SagaError:
        """Say that the database did not answer, and why none could be reached, if that is known."""
        cause = self._refusals[0] if isinstance(error, PoolTimeout) and self._refusals else type(error).__name__
        return SagaError(
            Reason.DEPENDENCY_DOWN,
            f"The database did not answer ({cause}).",
            details={"error": type(error).__name__, "cause": cause},
        )

    async def one(self, statement: LiteralString, params: Params = ()) -> Row | None:
        """Read one row; a statement by itself is a transaction of its own, in one round trip."""
        return await self._decided(lambda connection: Transaction(connection, self._tracer).one(statement, params))

    async def all(self, statement: LiteralString, params: Params = ()) -> list[Row]:
        """Read rows; a statement by itself is a transaction of its own, in one round trip."""
        return await self._decided(lambda connection: Transaction(connection, self._tracer).all(statement, params))

    async def columns(self, statement: LiteralString, params: Params = ()) -> tuple[str, ...]:
        """Run a statement in a transaction of its own and name the columns that it gives."""

        async def work(transaction: Transaction) -> tuple[str, ...]:
            return await (await transaction.ask(statement, params)).columns()

        return await self.run(work)


async def check_durability(database: Database) -> None:
    """Refuse to work on a database that may forget a commit. Raises SagaError(DEPENDENCY_DOWN)."""
    row = await database.one("select current_setting('synchronous_commit') as value, current_setting('fsync') as fsync")
    settings = cast("Row", row)
    if settings["value"] not in {"on", "remote_apply", "remote_write"} or settings["fsync"] != "on":
        raise SagaError(
            Reason.DEPENDENCY_DOWN,
            f"The database runs with synchronous_commit={settings['value']} and fsync={settings['fsync']};"
            " set both on: the database is the commit point.",
            details=settings,
        )
