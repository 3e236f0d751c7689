"""The embedded PostgreSQL: a small starter over the wheel's programs.

The wheel's own starter adds a system user, opens parent directories to everybody and leaves the server running when
its parent is killed. This one listens on a unix socket inside its data directory only, which nobody else may enter.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from worker.stack.binaries import postgres_directory
from worker.stack.layout import check_reachable, make_directory, server_user_id
from worker.stack.processes import ProcessRecord, StackError, group_of, log_tail, spawn, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUPERUSER = "postgres"
PORT = 5432  # no TCP: it only names the socket
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 20.0
SOCKET_PATH_BYTES_MAX = 103  # sun_path is 104 bytes with its NUL on macOS, 108 on Linux
STATUS_LINE_INDEX = 7  # of postmaster.pid, see src/include/utils/pidfile.h

# What the engine's promises rest on is written down here, not left to defaults.
SERVER_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(slots=True)
class PostgresServer:
    """One PostgreSQL server on one data directory.

    `fsync` off is for tests: a killed process loses nothing, only a machine that loses power would.
    """

    directory: Path
    log: Path
    dies_with_parent: bool
    fsync: bool = True
    process: ProcessRecord | None = None
    _programs: Path = field(init=False)
    _user_id: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._user_id = server_user_id()
        self._programs = postgres_directory(self._user_id)
        if len(os.fsencode(self.directory / f".s.PGSQL.{PORT}")) > SOCKET_PATH_BYTES_MAX:
            raise StackError(f"{self.directory} is too long a path for a unix socket; set BACKSTAY_STATE_DIR shorter.")

    def url(self, database: str) -> str:
        """The libpq URL of one database, as the superuser; whole, so that PG* variables of the caller do not matter."""
        where = urlencode({"host": str(self.directory), "port": PORT}, quote_via=quote)
        return f"postgresql://{SUPERUSER}@/{quote(database)}?{where}"

    def start(self) -> None:
        """Have the server running and ready; make its data directory first if there is none."""
        self.begin_start()
        self.finish_start()

    def begin_start(self) -> None:
        """Start the server without waiting until it is ready."""
        if self.process is not None and self.process.is_alive():
            return
        if not (self.directory / "PG_VERSION").exists():
            self._initialise()
        self._forget_dead_predecessor()
        settings = {**SERVER_SETTINGS, "fsync": "on" if self.fsync else "off"}
        options = [item for name, value in settings.items() for item in ("-c", f"{name}={value}")]
        self.process = spawn(
            [str(self._programs / "postgres"), "-D", str(self.directory), "-k", str(self.directory), *options],
            log=self.log,
            dies_with_parent=signal.SIGINT if self.dies_with_parent else None,
            user_id=self._user_id,
            environment=self._environment(),
        )

    def finish_start(self) -> None:
        """Wait until the server takes connections; raise StackError with the end of its log if it does not."""
        process = self._running()
        ready = wait_until(
            lambda: self._status(process) == "ready" or not process.is_alive(), timeout_seconds=START_TIMEOUT_SECONDS
        )
        if not ready or not process.is_alive():
            raise StackError(f"PostgreSQL did not start; the end of {self.log}:\n{log_tail(self.log)}")

    def stop(self) -> None:
        """End the server in order: connections are closed, everything is on disk. Do nothing if it does not run."""
        if self.process is not None:
            self.process.stop(signal.SIGINT, timeout_seconds=STOP_TIMEOUT_SECONDS)
            self.process = None

    def kill(self) -> None:
        """Let the server die as in a power cut of its process: SIGKILL to it and all its backends."""
        self._running().kill_with_children()
        self.process = None

    def _running(self) -> ProcessRecord:
        if self.process is None:
            raise StackError("PostgreSQL does not run; start it first.")
        return self.process

    def _environment(self) -> dict[str, str]:
        # LC_ALL: no message depends on the caller's language. PG* variables of the caller must not reach the server.
        return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

    def _initialise(self) -> None:
        make_directory(self.directory.parent)
        if self._user_id is not None:
            check_reachable(self.directory.parent, self._user_id)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if self._user_id is not None:
            os.chown(self.directory, self._user_id, group_of(self._user_id))
        finished = subprocess.run(  # noqa: S603 - our own program
            [
                self._programs / "initdb",
                *("-D", self.directory, "-U", SUPERUSER, "--auth=trust", "--no-sync", "--encoding=UTF8"),
                *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            ],
            user=self._user_id,
            group=None if self._user_id is None else group_of(self._user_id),
            extra_groups=None if self._user_id is None else [],
            env=self._environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if finished.returncode != 0:
            raise StackError(f"initdb failed in {self.directory}:\n{finished.stdout.decode(errors='replace')}")

    def _pid_file(self) -> list[str]:
        try:
            return (self.directory / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _status(self, process: ProcessRecord) -> str:
        """What the server says of itself, as pg_ctl reads it; empty while it has not written its own file."""
        lines = self._pid_file()
        if len(lines) <= STATUS_LINE_INDEX or lines[0].strip() != str(process.pid):
            return ""
        return lines[STATUS_LINE_INDEX].strip()

    def _forget_dead_predecessor(self) -> None:
        """Remove the pid file of a killed server if its id now belongs to somebody else, else PostgreSQL would wait.

        After a reboot, and above all in containers, low ids come back at once.
        """
        import psutil  # noqa: PLC0415 - only who runs local servers needs it

        lines = self._pid_file()
        if not lines:
            return
        try:
            command = psutil.Process(int(lines[0])).cmdline()
        except (psutil.NoSuchProcess, ValueError):
            return  # PostgreSQL sees by itself that it is gone
        if str(self.directory) not in command:
            (self.directory / "postmaster.pid").unlink(missing_ok=True)
