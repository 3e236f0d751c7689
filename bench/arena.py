"""The arena: one fresh Temporal server, one PostgreSQL, one process per contender; and what each of them uses up."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from activities import migrate
from bench.world import furnish
from worker.stack import LocalStack

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from bench.scenarios import Order

ROOT = Path(__file__).resolve().parent.parent


class BenchError(RuntimeError):
    """A batch did not do what it should: there is no figure."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds used up to now, or in between."""

    server: float
    worker: float
    database: float

    def since(self, before: Cpu) -> Cpu:
        """What was used after `before`."""
        return Cpu(self.server - before.server, self.worker - before.worker, self.database - before.database)

    @property
    def total(self) -> float:
        """All three."""
        return self.server + self.worker + self.database


@dataclass(slots=True)
class Corner:
    """A contender's process and its database."""

    name: str
    database_url: str
    process: subprocess.Popen[str]

    def ask(self, **asked: object) -> dict[str, Any]:
        """Send one request and wait for the answer. Raises BenchError."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self.hear()
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return answer

    def hear(self) -> dict[str, Any]:
        """Wait for a line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"The process of {self.name} ended with {self.process.wait()}.")
        return dict(json.loads(line))


@dataclass(slots=True)
class Arena:
    """Everything that runs."""

    stack: LocalStack
    corners: dict[str, Corner]

    def cpu(self, corner: Corner) -> Cpu:
        """CPU seconds of exactly the processes that we started."""
        return Cpu(
            server=_used(self.stack.temporal_pid),
            worker=_used(corner.process.pid),
            database=_used(self.stack.postgres_pid, children=True),
        )

    def memory_mb(self, corner: Corner) -> tuple[float, float]:
        """Resident megabytes of the Temporal server and of a contender's process."""
        pids = (self.stack.temporal_pid, corner.process.pid)
        server, worker = (psutil.Process(pid).memory_info().rss / 1e6 for pid in pids)
        return server, worker


def _used(pid: int, *, children: bool = False) -> float:
    """Sum user and system time; with children those that live (PostgreSQL's backends) and those that ended."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    used = times.user + times.system
    if children:
        used += times.children_user + times.children_system
        for child in process.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                spent = child.cpu_times()
                used += spent.user + spent.system
    return used


@contextlib.contextmanager
def arena(names: Sequence[str]) -> Generator[Arena]:
    """Start servers and contenders; everything is gone afterwards."""
    with LocalStack.temporary() as stack, contextlib.ExitStack() as processes:
        template = stack.create_database("bench_template")
        migrate.upgrade(template)
        furnish(template)
        corners: dict[str, Corner] = {}
        for name in names:
            url = stack.create_database(f"bench_{name}", template="bench_template")
            corners[name] = Corner(name, url, _start(name, url, stack.temporal_address))
            processes.callback(_stop, corners[name].process)
        for corner in corners.values():
            corner.hear()
        yield Arena(stack, corners)


def _start(name: str, database_url: str, temporal_address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "bench.process", name, database_url, temporal_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TEMPORAL_ADDRESS": temporal_address},
    )


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def as_json(orders: Sequence[Order]) -> list[dict[str, Any]]:
    """Write orders as the process reads them."""
    return [asdict(order) for order in orders]
