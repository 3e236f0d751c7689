"""The processes of the demo: a worker that can be killed, and `backstay` commands as a person would type them.

They see only the demo's servers, whatever the caller's environment names, and none outlives the demo.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from worker.demo.claims import DemoFailedError, hold
from worker.stack.processes import ProcessRecord, bind_to_parent, log_tail, spawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker.stack import LocalStack

ROOT: Final = Path(__file__).resolve().parents[2]
BACKSTAY: Final = (sys.executable, "-c", "from worker.cli import main; main()")
WORKER_START_SECONDS_MAX: Final = 60.0
COMMAND_SECONDS_MAX: Final = 60.0
LOOK_EVERY_SECONDS: Final = 0.05
LOG_LINES_MAX: Final = 4
LOG_LINE_SHOWN: Final = (200, 400)


def environment(stack: LocalStack, database_url: str, **extra: str) -> dict[str, str]:
    """Make an environment in which `backstay` finds the demo's servers and nobody else's."""
    ours = ("BACKSTAY_", "TEMPORAL_", "DATABASE_URL", "PG", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "DATABASE_URL": database_url,
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "TEMPORAL_NAMESPACE": "default",
        "BACKSTAY_STATE_DIR": str(stack.directory / "state"),
        "PYTHONWARNINGS": "ignore",
        **extra,
    }


class WorkerProcess:
    """One worker in a process of its own."""

    def __init__(self, process: ProcessRecord, log: Path) -> None:
        """Remember what was started."""
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, stack: LocalStack, task_queue: str, env: Mapping[str, str]) -> WorkerProcess:
        """Start `backstay worker` and wait until it serves. Raises DemoFailedError with the end of its log."""
        since = datetime.now(UTC)
        log = stack.directory / "worker.log"
        process = spawn((*BACKSTAY, "worker"), log=log, dies_with_parent=signal.SIGKILL, environment=env, cwd=str(ROOT))
        stack.adopt("worker", process)
        worker = cls(process, log)
        deadline = asyncio.get_running_loop().time() + WORKER_START_SECONDS_MAX
        while not await asyncio.to_thread(stack.temporal.is_polled, task_queue, since=since):
            if not process.is_alive() or asyncio.get_running_loop().time() > deadline:
                raise DemoFailedError(f"the worker did not start; its log ends: {worker.log_tail}")
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        return worker

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def log_tail(self) -> str:
        """The end of its log; long lines keep their beginning and their end."""
        return "\n".join(_shortened(line) for line in log_tail(self._log).splitlines()[-LOG_LINES_MAX:])

    def kill(self) -> None:
        """End it with SIGKILL: no handler runs, nothing is finished."""
        self._process.kill_with_children()


def _shortened(line: str) -> str:
    begin, end = LOG_LINE_SHOWN
    return line if len(line) <= begin + end else f"{line[:begin]} ... {line[-end:]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed."""

    command: str
    output: str


async def run_command(env: Mapping[str, str], *arguments: str) -> Answer:
    """Run `backstay` with arguments. Raises DemoFailedError if its exit code is not 0 or it does not end."""
    shown = " ".join(("backstay", *(f'"{a}"' if " " in a else a for a in arguments)))
    process = await asyncio.create_subprocess_exec(
        *BACKSTAY,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env),
        cwd=ROOT,
        preexec_fn=bind_to_parent(signal.SIGKILL),
    )
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            output, _ = await process.communicate()
    except TimeoutError:
        raise DemoFailedError(f"`{shown}` did not end within {COMMAND_SECONDS_MAX:.0f} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
    said = output.decode(errors="replace").rstrip()
    hold(f"exit code of `{shown}`, which said {said[-400:]!r}", 0, process.returncode)
    return Answer(shown, said)
