"""`make up` and `make down`: a stack that outlives the command that started it.

Both may be repeated and interrupted: what is started is noted before anything is waited for, what runs is left alone,
and `down` ends only processes that `up` started, told by id and start time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from worker.stack.layout import backstay_root, make_directory
from worker.stack.local import DATABASE
from worker.stack.postgres import PostgresServer
from worker.stack.processes import ProcessRecord, StackError, log_tail, spawn, wait_until
from worker.stack.state import StackState
from worker.stack.temporal import HOST, NAMESPACE, TemporalServer

if TYPE_CHECKING:
    from collections.abc import Generator

    from worker.settings import Settings

EXAMPLE_ACCOUNTS = Path(__file__).parents[2] / "examples" / "accounts.sql"
WORKER_START_TIMEOUT_SECONDS = 60.0
WORKER_STOP_TIMEOUT_SECONDS = 30.0
WORKER_COMMAND = (sys.executable, "-c", "from worker.cli import main; main()", "worker")
BANK_START_TIMEOUT_SECONDS = 20.0
BANK_COMMAND = (sys.executable, "-m", "worker.bank")


def up(settings: Settings) -> StackState:
    """Have PostgreSQL, Temporal, a bank and a worker running, the database migrated.

    Raises: StackError with the end of the log of what did not start; what did start runs on, and `down` ends it.
    """
    with _locked(settings.state_dir):
        return _Up(settings).run()


def down(settings: Settings) -> list[str]:
    """End what `up` started, worker first, and list it. Data and logs stay. Nothing to end is no error."""
    ended: list[str] = []
    if not settings.state_dir.exists():
        return ended
    with _locked(settings.state_dir):
        state = StackState.load(settings.state_dir)
        if state is None:
            return ended
        ways = {
            "worker": (signal.SIGTERM, WORKER_STOP_TIMEOUT_SECONDS),
            "bank": (signal.SIGTERM, 10.0),
            "temporal": (signal.SIGTERM, 10.0),
            "postgres": (signal.SIGINT, 20.0),
        }
        for name, (number, timeout_seconds) in ways.items():
            if state.is_running(name):
                state.processes[name].stop(number, timeout_seconds=timeout_seconds)
                ended.append(name)
            state.processes.pop(name, None)
            state.save(settings.state_dir)
    return ended


class _Up:
    """One run of `up`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.directory = settings.state_dir
        self.state = StackState.load(self.directory) or StackState()
        self.postgres = PostgresServer(
            self.directory / "postgres",
            self.log("postgres"),
            dies_with_parent=False,
            process=self._running("postgres"),
        )
        self._bank_said_bytes: int | None = None
        """What its log held before this run started it; None: it was running."""
        temporal = self._running("temporal")
        self.temporal = TemporalServer(
            self.directory / "temporal.db",
            self.log("temporal"),
            dies_with_parent=False,
            port=settings.temporal_port,
            ui_port=settings.temporal_ui_port,
            process=temporal,
            http_port=self.state.temporal_http_port if temporal else 0,
        )

    def run(self) -> StackState:
        self.temporal.begin_start()
        self._note("temporal", self.temporal.process)
        self.postgres.begin_start()
        self._note("postgres", self.postgres.process)
        if not self.state.is_running("bank"):
            self._begin_bank()
        self.postgres.finish_start()
        self._migrate()
        self.temporal.finish_start()
        self._finish_bank()
        if not self.state.is_running("worker"):
            self._start_worker()
        return self.state

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _running(self, name: str) -> ProcessRecord | None:
        return self.state.processes.get(name) if self.state.is_running(name) else None

    def _note(self, name: str, process: ProcessRecord | None) -> None:
        assert process is not None  # noqa: S101 - it was just started
        self.state.processes[name] = process
        self.state.database_url = self.postgres.url(DATABASE)
        self.state.temporal_address = self.temporal.address
        self.state.temporal_http_port = self.temporal.http_port
        self.state.ui_url = self.temporal.ui_url
        self.state.save(self.directory)

    def _migrate(self) -> None:
        import psycopg  # noqa: PLC0415 - heavy

        from activities import migrate  # noqa: PLC0415 - heavy

        with psycopg.connect(self.postgres.url("postgres"), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone() is None:
                connection.execute(f"create database {DATABASE}")
        migrate.upgrade(self.state.database_url)
        self._open_example_accounts()

    def _open_example_accounts(self) -> None:
        """Open the accounts that examples/intents name, on a ledger without any: an example has to work at once."""
        import psycopg  # noqa: PLC0415 - heavy

        if not EXAMPLE_ACCOUNTS.exists():
            return
        with psycopg.connect(self.state.database_url, autocommit=True) as owner:
            owner.execute("set role backstay_owner")
            if owner.execute("select 1 from ledger.accounts limit 1").fetchone() is None:
                owner.execute(EXAMPLE_ACCOUNTS.read_bytes())

    def _begin_bank(self) -> None:
        port = self.settings.bank_port
        log = self.log("bank")
        self._bank_said_bytes = log.stat().st_size if log.exists() else 0
        process = spawn(
            (*BANK_COMMAND, "--port", str(port), "--book", str(self.directory / "bank.jsonl")),
            log=log,
            dies_with_parent=None,
            cwd=str(Path(__file__).resolve().parents[2]),
        )
        self.state.bank_url = f"http://{HOST}:{port}"
        self._note("bank", process)

    def _finish_bank(self) -> None:
        """Wait until the bank says that it listens: another program may have its port."""
        process, log = self.state.processes["bank"], self.log("bank")
        if self._bank_said_bytes is None:
            return  # it ran before

        def listens() -> bool:
            return b"listens at" in log.read_bytes()[self._bank_said_bytes :]

        wait_until(lambda: listens() or not process.is_alive(), timeout_seconds=BANK_START_TIMEOUT_SECONDS)
        if not process.is_alive() or not listens():
            raise StackError(
                f"The bank did not start; set BACKSTAY_BANK_PORT if {self.settings.bank_port} is taken. The end of"
                f" {log}:\n{log_tail(log)}"
            )

    def _start_worker(self) -> None:
        since = datetime.now(UTC)
        # Another system's Temporal in the caller's environment must not get this database's worker.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        environment |= {
            "TEMPORAL_ADDRESS": self.state.temporal_address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "DATABASE_URL": self.state.database_url,
            "BACKSTAY_STATE_DIR": str(self.directory),
            "BACKSTAY_BANK_URL": self.settings.bank_url or self.state.bank_url,
        }
        environment.pop("BACKSTAY_DATABASE_URL", None)
        process = spawn(
            WORKER_COMMAND,
            log=self.log("worker"),
            dies_with_parent=None,
            environment=environment,
            cwd=str(Path(__file__).resolve().parents[2]),
        )
        self._note("worker", process)
        queue = self.settings.task_queue
        wait_until(
            lambda: self.temporal.is_polled(queue, since=since) or not process.is_alive(),
            timeout_seconds=WORKER_START_TIMEOUT_SECONDS,
        )
        if not process.is_alive() or not self.temporal.is_polled(queue, since=since):
            log = self.log("worker")
            raise StackError(f"The worker did not start; the end of {log}:\n{log_tail(log)}")


@contextlib.contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Let one `up` or `down` at a time work on a state directory."""
    backstay_root()  # refuses a stranger's directory under our name
    make_directory(directory)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
