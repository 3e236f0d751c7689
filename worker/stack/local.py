"""The local stack: a real PostgreSQL and a real Temporal server on this machine, without Docker."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from worker.stack.keeper import OWNER, bury, make_run_directory, read_records, start_keeper, write_records
from worker.stack.postgres import PostgresServer
from worker.stack.processes import ProcessRecord, StackError
from worker.stack.state import StackState
from worker.stack.temporal import TemporalServer

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from psycopg.sql import SQL, Composed

    from worker.settings import Settings

DATABASE = "backstay"


class LocalStack:
    """A PostgreSQL and a Temporal server of our own, that can be stopped, killed and started again on the same data.

    All methods block (starting takes 0.2 s for Temporal, 1 s for a first PostgreSQL); a test may call them from a
    coroutine when it wants everything else to stand still meanwhile.
    """

    def __init__(self, directory: Path, postgres: PostgresServer, temporal: TemporalServer) -> None:
        self.directory = directory
        self.postgres = postgres
        self.temporal = temporal
        self._adopted: dict[str, ProcessRecord] = {}

    @classmethod
    def at(cls, directory: Path) -> LocalStack:
        """Speak of the stack in `directory`, which somebody else has started: only its databases are ours to make."""
        postgres = PostgresServer(directory / "postgres", directory / "postgres.log", dies_with_parent=False)
        temporal = TemporalServer(directory / "temporal.db", directory / "temporal.log", dies_with_parent=False)
        return cls(directory, postgres, temporal)

    @classmethod
    @contextlib.contextmanager
    def temporary(cls, *, temporal: bool = True, ui: bool = False, fsync: bool = True) -> Generator[LocalStack]:
        """Run a stack on fresh data until the block ends; servers and data are gone then, even if we are killed.

        Args:
            temporal: False starts PostgreSQL alone; `start_temporal()` adds the other later.
            ui: also serve Temporal's Web UI.
            fsync: False is for tests; see PostgresServer.
        """
        directory = make_run_directory()
        keeper = start_keeper(directory)
        try:
            stack = cls(
                directory,
                PostgresServer(directory / "postgres", directory / "postgres.log", dies_with_parent=True, fsync=fsync),
                TemporalServer(
                    directory / "temporal.db",
                    directory / "temporal.log",
                    dies_with_parent=True,
                    ui_port=0 if ui else None,
                ),
            )
            stack._start(with_temporal=temporal)
            yield stack
        finally:
            bury(directory)
            keeper.kill()
            keeper.communicate()

    def _start(self, *, with_temporal: bool) -> None:
        """Start the servers side by side."""
        if with_temporal:
            self.temporal.begin_start()
            self._note_processes()
        self.start_postgres()
        if with_temporal:
            self.start_temporal()
        self.create_database(DATABASE)

    @staticmethod
    def up(settings: Settings) -> StackState:
        """Have a stack with a worker running that outlives us; see worker.stack.detached."""
        from worker.stack import detached  # noqa: PLC0415 - it builds on this module

        return detached.up(settings)

    @staticmethod
    def down(settings: Settings) -> list[str]:
        """End what up() started, and list it."""
        from worker.stack import detached  # noqa: PLC0415 - it builds on this module

        return detached.down(settings)

    @staticmethod
    def status(settings: Settings) -> StackState | None:
        """Tell what up() started; None if it never did."""
        return StackState.load(settings.state_dir)

    @property
    def database_url(self) -> str:
        """The URL of the database named backstay: empty at first, never migrated by the stack itself."""
        return self.postgres.url(DATABASE)

    @property
    def temporal_address(self) -> str:
        """Host and port of the Temporal server; the same through its restarts."""
        if self.temporal.port == 0:
            raise StackError("This stack has no Temporal server yet; call start_temporal().")
        return self.temporal.address

    @property
    def postgres_pid(self) -> int:
        """The process id of PostgreSQL's postmaster."""
        return _pid(self.postgres.process, "PostgreSQL")

    @property
    def temporal_pid(self) -> int:
        """The process id of the Temporal server."""
        return _pid(self.temporal.process, "The Temporal server")

    def start_postgres(self) -> None:
        """Have PostgreSQL running, on the data that is there."""
        self.postgres.begin_start()
        self._note_processes()
        self.postgres.finish_start()

    def stop_postgres(self) -> None:
        """End PostgreSQL in order."""
        self.postgres.stop()
        self._note_processes()

    def kill_postgres(self) -> None:
        """Let PostgreSQL and all its backends die at once."""
        self.postgres.kill()
        self._note_processes()

    def start_temporal(self) -> None:
        """Have the Temporal server running, at its old address and on the data that is there."""
        self.temporal.begin_start()
        self._note_processes()
        self.temporal.finish_start()
        self._note_processes()

    def stop_temporal(self) -> None:
        """End the Temporal server in order."""
        self.temporal.stop()
        self._note_processes()

    def kill_temporal(self) -> None:
        """Let the Temporal server die at once."""
        self.temporal.kill()
        self._note_processes()

    def adopt(self, name: str, process: ProcessRecord) -> None:
        """Have another process end with this stack, also if we are killed; it replaces the last one of that name."""
        self._adopted[name] = process
        self._note_processes()

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """Make a database and return its URL.

        Args:
            name: its name; chosen when it is not given.
            template: the name of a database to copy, which nobody may be connected to.
        """
        from psycopg import sql  # noqa: PLC0415 - starting a stack needs no client

        name = name or f"t{secrets.token_hex(6)}"
        copy = sql.SQL(" template {}").format(sql.Identifier(template)) if template else sql.SQL("")
        self._administer(sql.SQL("create database {}{}").format(sql.Identifier(name), copy))
        return self.postgres.url(name)

    def drop_database(self, database_url: str) -> None:
        """Remove a database, and end the sessions that still use it. Do nothing if it is gone."""
        from psycopg import sql  # noqa: PLC0415 - as above

        name = sql.Identifier(database_name(database_url))
        self._administer(sql.SQL("drop database if exists {} with (force)").format(name))

    def _administer(self, statement: SQL | Composed) -> None:
        import psycopg  # noqa: PLC0415 - as above

        with psycopg.connect(self.postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def _note_processes(self) -> None:
        """Tell the keeper which servers there are now."""
        servers = {**self._adopted, "postgres": self.postgres.process, "temporal": self.temporal.process}
        owner = read_records(self.directory)[OWNER]
        write_records(self.directory, {OWNER: owner, **{name: p for name, p in servers.items() if p is not None}})


def database_name(database_url: str) -> str:
    """The name of the database in a URL that PostgresServer.url() made."""
    return urlsplit(database_url).path.removeprefix("/")


def _pid(process: ProcessRecord | None, what: str) -> int:
    if process is None:
        raise StackError(f"{what} does not run; start it first.")
    return process.pid
