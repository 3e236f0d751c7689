"""Processes that we start: they die with us or outlive us on purpose, and are never mistaken for others.

A process id alone names nobody: ids are used again. So each of ours is remembered with its start time, and only
signalled while both still fit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_TIME_TOLERANCE_SECONDS = 2.0  # the boot time that start times are counted from moves with the clock
POLL_SECONDS = 0.01
LOG_TAIL_LINES = 15
KILL_TIMEOUT_SECONDS = 10.0

_libc: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None


class StackError(RuntimeError):
    """A part of the local stack cannot do what was asked; the text says what to do next."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process for good: its id, and the time it started (seconds since the epoch)."""

    pid: int
    started_at: float

    @classmethod
    def of(cls, pid: int) -> ProcessRecord:
        """Record a process that is alive now."""
        import psutil  # noqa: PLC0415 - only who runs local servers needs it

        return cls(pid, psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        """True while this very process runs; a zombie and another process under the same id do not count."""
        import psutil  # noqa: PLC0415 - only who runs local servers needs it

        return self._status() not in {None, psutil.STATUS_ZOMBIE}

    def _status(self) -> str | None:
        """The system's word for what it does; None if it is gone."""
        import psutil  # noqa: PLC0415 - only who runs local servers needs it

        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_at) > START_TIME_TOLERANCE_SECONDS:
                return None
            return str(process.status())
        except psutil.NoSuchProcess:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this very process; do nothing if it is gone."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_with_children(self) -> None:
        """SIGKILL the process first (so that it restarts nothing), then all that it had started."""
        import psutil  # noqa: PLC0415 - only who runs local servers needs it

        if not self.is_alive():
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            children = [
                ProcessRecord(p.pid, p.create_time()) for p in psutil.Process(self.pid).children(recursive=True)
            ]
            os.kill(self.pid, signal.SIGKILL)
            for child in children:
                child.send(signal.SIGKILL)
            for process in (self, *children):
                process.wait(timeout_seconds=KILL_TIMEOUT_SECONDS)

    def wait(self, *, timeout_seconds: float) -> bool:
        """Wait until the process is gone; False if it outlived the timeout."""
        return wait_until(self._is_gone, timeout_seconds=timeout_seconds)

    def _is_gone(self) -> bool:
        if self._status() is None:
            return True
        try:
            # Ours: leave no zombie. Until this succeeds, threads of it may still be ending, and hold files and ports.
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return not self.is_alive()

    def stop(self, number: signal.Signals, *, timeout_seconds: float) -> None:
        """End the process: ask with a signal, and kill it and its children if it does not listen in time."""
        self.send(number)
        if not self.wait(timeout_seconds=timeout_seconds):
            self.kill_with_children()


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    dies_with_parent: signal.Signals | None,
    user_id: int | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: str = "/",
) -> ProcessRecord:
    """Start a process in a session of its own, so that Ctrl-C reaches it only through us.

    `dies_with_parent` is the signal that it gets when we die, however we die; see bind_to_parent() for its limits,
    which the stack's keeper makes up for.
    """
    with open(log, "ab", opener=_open_private) as output:
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(os.environ if environment is None else environment),
            user=user_id,
            group=user_id and group_of(user_id),
            extra_groups=None if user_id is None else [],
            start_new_session=True,
            umask=0o077,
            preexec_fn=bind_to_parent(dies_with_parent) if dies_with_parent else None,  # noqa: PLW1509
        )
    record = ProcessRecord.of(process.pid)
    process.returncode = 0  # it is waited for through its record; spares the "still running" warning
    return record


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def bind_to_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a child runs before exec so that it gets this signal when we die; None where nobody can be asked.

    Linux alone offers it, and sends it when the *thread* that started the child ends: only asked for in the main one.
    """
    libc, parent_pid = _libc, os.getpid()
    if libc is None or threading.current_thread() is not threading.main_thread():
        return None

    def bind() -> None:
        # Runs in the child, after it changed its user (that would clear the setting) and before exec.
        libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent_pid:
            os._exit(1)

    return bind


def group_of(user_id: int) -> int:
    """The main group of a user."""
    import pwd  # noqa: PLC0415 - POSIX only

    return pwd.getpwuid(user_id).pw_gid


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Wait until a condition holds; False if it did not in time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def log_tail(log: Path) -> str:
    """The last lines of a log, for an error text."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return "(no log)"
    return "\n".join(lines)
