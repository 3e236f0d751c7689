"""`backstay demo`, run as its users run it: a process of its own, watched from outside.

Nothing of the product is bent for these tests: processes are told by their ids and start times, interruptions are
signals, and what breaks an invariant is the database's superuser, over the demo's own socket.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import psutil
import psycopg
import pytest

from worker.stack.keeper import OWNER, RUN_PREFIX, read_records
from worker.stack.layout import backstay_root
from worker.stack.local import DATABASE
from worker.stack.postgres import PostgresServer
from worker.stack.processes import ProcessRecord, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

BACKSTAY = Path(sys.executable).with_name("backstay")
WHOLE_SECONDS_MAX = 240.0
START_SECONDS_MAX = 120.0
GONE_SECONDS_MAX = 20.0
OK = re.compile(
    r"DEMO OK intents=(?P<intents>\d+) committed=(?P<committed>\d+) compensated=(?P<compensated>\d+)"
    r" not_applied=(?P<not_applied>\d+) parked_resolved=(?P<parked_resolved>\d+) duplicates=(?P<duplicates>\d+)"
    r" money_conserved=true"
)
SCENES = 9


class Demo:
    """One run, with every process that it ever started."""

    def __init__(self, **environment: str) -> None:
        """Start it, in a session of its own, with a caller's environment that must not matter."""
        misleading = {
            "DATABASE_URL": "postgresql://nobody@192.0.2.1/elsewhere",
            "PGPORT": "5999",
            "TEMPORAL_ADDRESS": "192.0.2.1:7233",
            "BACKSTAY_TASK_QUEUE": "elsewhere",
            "BACKSTAY_TENANT": "somebody-else",
        }
        self.process = subprocess.Popen(
            [BACKSTAY, "demo"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **misleading, "COLUMNS": "80", **environment},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.started: set[ProcessRecord] = set()
        self._watchers = [threading.Thread(target=work, daemon=True) for work in (self._read, self._look)]
        for watcher in self._watchers:
            watcher.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))

    def _look(self) -> None:
        """Note every descendant; the servers keep being children of the demo, also in sessions of their own."""
        while self.process.poll() is None:
            try:
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    self.started.add(ProcessRecord(child.pid, child.create_time()))
            except psutil.NoSuchProcess:
                continue
            threading.Event().wait(0.02)

    @property
    def directory(self) -> Path | None:
        """Where its servers keep their data."""
        for directory in backstay_root().glob(f"{RUN_PREFIX}*"):
            owner = read_records(directory).get(OWNER)
            if owner is not None and owner.pid == self.process.pid:
                return directory
        return None

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed something."""
        printed = wait_until(lambda: text in self.text or self.has_ended, timeout_seconds=START_SECONDS_MAX)
        assert printed, f"waited in vain for {text!r}:\n{self.text}"
        assert text in self.text, f"ended without {text!r}:\n{self.text}"

    @property
    def has_ended(self) -> bool:
        """True when the process is over."""
        return self.process.poll() is not None

    def end(self, *, timeout_seconds: float = WHOLE_SECONDS_MAX) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        code = self.process.wait(timeout_seconds)
        for watcher in self._watchers:
            watcher.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def survivors(self) -> list[ProcessRecord]:
        """Processes of it that still run, after a moment for those that die when they notice."""
        wait_until(lambda: not any(process.is_alive() for process in self.started), timeout_seconds=GONE_SECONDS_MAX)
        return [process for process in self.started if process.is_alive()]

    def execute(self, statement: LiteralString) -> None:
        """Do something to its database that nothing but a superuser could do."""
        directory = self.directory
        assert directory is not None
        server = PostgresServer(directory / "postgres", directory / "postgres.log", dies_with_parent=False)
        with psycopg.connect(server.url(DATABASE)) as connection:
            connection.execute("set session_replication_role = replica")  # no trigger defends the books
            connection.execute(statement)


def readme_passages() -> list[str]:
    """What the README says that the demo prints, paragraph by paragraph."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"`make demo` prints.*?```\n(.*?)```", readme, re.DOTALL)
    assert shown is not None
    return [passage for passage in shown.group(1).split("\n\n") if passage.strip() != "..."]


def anonymous(text: str) -> str:
    """Leave out what differs from run to run: ids, figures, where lines break."""
    told = re.sub(r"int_[a-z2-7]{26}|[0-9a-f]{8}\.\.|\d+(\.\d+)?", "N", text)
    return " ".join(re.sub(r"─+", "", told).split())


@pytest.fixture
def demos() -> Generator[deque[Demo]]:
    """Demos to start; whatever a test leaves behind is killed, by its ids."""
    running: deque[Demo] = deque()
    yield running
    for demo in running:
        if not demo.has_ended:
            os.kill(demo.process.pid, signal.SIGKILL)
        demo.end()
        for process in demo.survivors():
            process.kill_with_children()


def test_the_demo_shows_every_promise_counts_from_the_tables_and_leaves_nothing(demos: deque[Demo]) -> None:
    demos.append(demo := Demo())
    demo.wait_for("Ready in")
    directory = demo.directory

    code = demo.end()

    assert code == 0, demo.text
    assert demo.survivors() == []
    assert directory is not None
    assert not directory.exists()
    figures = OK.fullmatch(demo.lines[-1])
    assert figures is not None, demo.lines[-1]
    count = {name: int(value) for name, value in figures.groupdict().items()}
    assert count["intents"] == count["committed"] + count["compensated"] + count["not_applied"]
    assert (count["intents"], count["not_applied"], count["parked_resolved"], count["duplicates"]) == (8, 1, 1, 1)
    assert count["committed"] in (3, 4, 5)  # the two races may end either way
    for number in range(1, SCENES + 1):
        assert re.search(rf"^{number}  \S", demo.text, re.MULTILINE), f"scene {number} is missing"
    assert "VIOLATED" not in demo.text
    assert re.search(r"not yet +7 ", demo.text), "what cannot be checked by SQL has to say so"
    # Readable without a terminal, at 80 columns; only the last line is whole whatever its length.
    assert "\x1b" not in demo.text
    assert [line for line in demo.lines[:-1] if len(line) > 80 or line != line.rstrip()] == []
    for passage in readme_passages():
        assert anonymous(passage) in anonymous(demo.text), f"the README shows what the demo does not print:\n{passage}"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_takes_down_what_it_had_started(demos: deque[Demo], number: signal.Signals) -> None:
    demos.append(demo := Demo())
    demo.wait_for("Freeze, then debit")
    directory = demo.directory

    os.killpg(demo.process.pid, number)  # as a terminal does it: to everything in the foreground

    assert demo.end(timeout_seconds=60) == 130
    assert demo.lines[-1].startswith("DEMO INTERRUPTED")
    assert demo.survivors() == []
    assert directory is not None
    assert not directory.exists()


@pytest.mark.slow
def test_a_killed_demo_leaves_nothing_behind_and_can_be_run_again(demos: deque[Demo]) -> None:
    demos.append(killed := Demo())
    killed.wait_for("The tables agree")
    directory = killed.directory

    os.kill(killed.process.pid, signal.SIGKILL)

    assert killed.end() == -signal.SIGKILL
    assert killed.survivors() == []
    assert directory is not None
    assert wait_until(lambda: not directory.exists(), timeout_seconds=GONE_SECONDS_MAX)
    demos.append(again := Demo())
    again.wait_for("The tables agree")


@pytest.mark.slow
def test_two_demos_at_once_do_not_meet(demos: deque[Demo]) -> None:
    demos.extend((one := Demo(), other := Demo()))

    one.wait_for("The tables agree")
    other.wait_for("The tables agree")

    assert one.directory != other.directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "broken"),
    [
        pytest.param(
            "update ledger.accounts set balance_cents = balance_cents + 1 where account_id = 'A00000003'",
            "1a money_conserved",
            id="a cent from nowhere",
        ),
        pytest.param(
            "delete from backstay.audit_log where kind = 'effect' and audit_id = ("
            "select min(audit_id) from backstay.audit_log where kind = 'effect')",
            "6a effects_have_one_audit_row",
            id="an audit row gone",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_demo_whose_books_are_broken_fails_and_says_which(
    demos: deque[Demo], sabotage: LiteralString, broken: str
) -> None:
    demos.append(demo := Demo())
    demo.wait_for("Too large to go unseen: denied")
    demo.execute(sabotage)

    code = demo.end()

    assert code == 1
    assert demo.lines[-1].startswith("DEMO FAILED"), demo.text
    assert broken in demo.lines[-1]
    assert f"VIOLATED {broken}" in demo.text
    assert "DEMO OK" not in demo.text
    assert demo.survivors() == []


@pytest.mark.slow
def test_a_demo_whose_scene_shows_something_else_fails_at_once(demos: deque[Demo]) -> None:
    demos.append(demo := Demo())
    demo.wait_for("The same intent, posted twice")
    demo.execute("update ledger.accounts set held_cents = 1 where account_id = 'A00000001'")

    code = demo.end()

    assert code == 1
    assert re.fullmatch(r"DEMO FAILED scene \d: .*held.*", demo.lines[-1]), demo.text
    assert demo.survivors() == []
