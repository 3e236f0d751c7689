"""Faults by file: what a test wants to happen inside a worker process, and what did happen there.

A directory is all that test and worker share. A fault that happens leaves a mark there before it does anything, so
that it counts even when it kills the process, and a worker started again with the same directory goes on. Every step
of every activity is also noted in a journal, in one order for all processes.
"""

import contextlib
import glob
import json
import os
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Point = Literal["started", "begin", "written", "committed", "answered"]
"""Where an activity is: taken up; before its transaction; all of it written, nothing committed; committed, and the
workflow does not know; the activity has returned (its process may still die before Temporal hears of it)."""
Action = Literal["pause", "kill", "stop", "delay", "fail", "error"]
ANY = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault. `intents` are intent keys or session ids, empty for any; `times` 0 is without limit.

    `sqlstate`: what the server raises in an `error`, inside the transaction.

    A thawed worker is told by Temporal that its work is given away, and cancels it. A `stubborn` fault lets it be
    finished all the same, as with a call that cannot be taken back.
    """

    name: str
    activity: str
    point: Point
    action: Action
    intents: tuple[str, ...] = ()
    seconds: float = 0.0
    times: int = 1
    is_stubborn: bool = False
    sqlstate: str = ""

    def is_at(self, activity: str, point: Point) -> bool:
        """True when this point of this activity is meant."""
        return self.point == point and self.activity in (ANY, activity)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal; `at` is of the machine's monotonic clock."""

    at: float
    pid: int
    what: str
    name: str
    intent: str | None
    attempt: int = 0
    detail: str = ""


class Control:
    """Both ends of the shared directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory that exists."""
        self.directory = directory
        self._rules = directory / "rules"
        for part in (self._rules / ANY, directory / "fired", directory / "released"):
            part.mkdir(parents=True, exist_ok=True)
        self._journal = directory / "journal"
        self._read_bytes = 0
        self._entries: dict[str | None, list[Entry]] = {}

    # --- the test's end -------------------------------------------------------------------------------------------

    def arm(self, rule: Rule) -> Rule:
        """Let a fault happen from now on, in every worker."""
        for place in rule.intents or (ANY,):
            (self._rules / place).mkdir(exist_ok=True)
            waiting = self.directory / f".{rule.name}"
            waiting.write_text(json.dumps(asdict(rule)))
            waiting.rename(self._rules / place / rule.name)
        return rule

    def disarm(self, rule: Rule) -> None:
        """Let it happen no more."""
        for place in rule.intents or (ANY,):
            (self._rules / place / rule.name).unlink(missing_ok=True)

    def fired(self, rule: Rule) -> int:
        """How often a fault has happened."""
        return len(list((self.directory / "fired").glob(f"{glob.escape(rule.name)}.*")))

    def release(self, rule: Rule) -> None:
        """End a pause, and those to come."""
        (self.directory / "released" / rule.name).touch()

    def journal(self, *intents: str) -> list[Entry]:
        """Read what the workers noted, in order; about these intents, or all of it."""
        with contextlib.suppress(FileNotFoundError), self._journal.open("rb") as journal:
            journal.seek(self._read_bytes)
            whole, end, _ = journal.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(end)
            for line in whole.splitlines():
                entry = Entry(**json.loads(line))
                self._entries.setdefault(entry.intent, []).append(entry)
        wanted: tuple[str | None, ...] = intents or tuple(self._entries)
        return sorted((entry for name in wanted for entry in self._entries.get(name, [])), key=lambda entry: entry.at)

    # --- the worker's end -------------------------------------------------------------------------------------------

    def rules(self, intent: str | None) -> list[Rule]:
        """Read the faults that are armed for an intent, or for any."""
        found: list[Rule] = []
        for place in (ANY, intent):
            if place is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                for path in sorted((self._rules / place).iterdir()):
                    given = json.loads(path.read_text())
                    given["intents"] = tuple(given["intents"])
                    found.append(Rule(**given))
        return found

    def claim(self, rule: Rule) -> bool:
        """Mark that a fault happens now; False when it has happened often enough, in whatever process."""
        marks = self.directory / "fired"
        if rule.times == 0:
            (marks / f"{rule.name}.{uuid.uuid4()}").touch()
            return True
        for number in range(rule.times):
            with contextlib.suppress(FileExistsError):
                (marks / f"{rule.name}.{number}").touch(exist_ok=False)
                return True
        return False

    def is_released(self, rule: Rule) -> bool:
        """True when a pause is to end."""
        return (self.directory / "released" / rule.name).exists()

    def note(self, what: str, name: str, intent: str | None, *, attempt: int = 0, detail: str = "") -> None:
        """Write one line of the journal; short appends by several processes do not mix."""
        entry = Entry(time.monotonic(), os.getpid(), what, name, intent, attempt, detail)
        with self._journal.open("a") as journal:
            journal.write(json.dumps(asdict(entry)) + "\n")
