"""A process that has imported everything and forks workers: real processes, ready in a tenth of the time.

It has no threads and no connections, so a fork of it is as good as a fresh start; each child is a session of its own
with its own environment and log, and dies with the nursery, which dies with the test process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from worker.stack.processes import ProcessRecord, bind_to_parent

ROOT: Final = Path(__file__).resolve().parents[3]


class Nursery:
    """The test's end. Use as a context manager."""

    def __init__(self) -> None:
        """Start it; it is ready when the first child is asked for."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        """Return the nursery."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and with it whatever child is left."""
        with self._process:
            self._process.kill()

    def fork(self, environment: Mapping[str, str], log: Path) -> ProcessRecord:
        """Start a worker."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"environment": dict(environment), "log": str(log)}), file=self._process.stdin, flush=True)
        return ProcessRecord.of(int(self._process.stdout.readline()))


def main() -> None:
    """Fork a worker for each line that comes in."""
    from activities.catalog import load_packs  # noqa: PLC0415 - the test's end must not pay for it
    from tests.faults.support import hooked_worker  # noqa: PLC0415 - as above

    load_packs(())
    assert threading.active_count() == 1, "a fork of a process with threads may hang"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that ended leave no zombie
    bind = bind_to_parent(signal.SIGKILL)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child:
            sys.stdout.write(f"{child}\n")
            sys.stdout.flush()
            continue
        try:
            os.setsid()
            if bind is not None:
                bind()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with Path(asked["log"]).open("ab") as log, Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.environ.clear()
            os.environ.update(asked["environment"])
            hooked_worker.main()
        except BaseException:  # noqa: BLE001 - whatever it was, it goes into the log
            import traceback  # noqa: PLC0415 - the process ends here

            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(1)


if __name__ == "__main__":
    main()
