"""Faults on purpose, for rehearsals and tests: a worker that dies, stops, waits or errs at a named point.

The variable BACKSTAY_FAULTS lists faults, separated by commas. Each is `KIND:ACTIVITY`, where ACTIVITY is the name in
Temporal's history: `debit_frozen_funds@1`, `debit_frozen_funds@1.compensate`, `admit_intent`, `close_intent`,
`settle_intent`, `park_intent`, `admit_decision`, `admit_resolution`; or `*` for every activity.

    pause-before:NAME   wait before the activity has done anything, until the pause is ended
    pause-after:NAME    the same after its commit, before the acknowledgement
    kill-before:NAME    SIGKILL this process before the activity has done anything
    kill-after:NAME     SIGKILL this process after the commit, before the acknowledgement
    stop-before:NAME    SIGSTOP this process: a worker that is cut off, and comes back with SIGCONT
    stop-after:NAME     the same after the commit
    fail-before:NAME    raise DEPENDENCY_DOWN instead of doing anything (the activity is tried again)
    fail-after:NAME     raise DEPENDENCY_DOWN after the commit: the answer is lost
    delay-before:NAME=300ms   wait before every run of the activity; `delay:300ms` is short for `delay-before:*=300ms`
    delay-after:NAME=300ms    wait after its commit

Example: BACKSTAY_FAULTS='pause-after:debit_frozen_funds@1,delay:20ms'

If BACKSTAY_FAULTS_DIR names a directory, every fault but a delay happens once: it first makes the file
`KIND:ACTIVITY` there (`*` is written `all`), which tells a watcher that the point is reached, and does nothing where
the file is. So a worker that is started again with the same variables goes on. Without a directory it happens each
time. A pause ends when its activity is cancelled at shutdown, or when somebody makes the file `KIND:ACTIVITY.end` in
the directory; local activities that pause are tried again after their time-out of 5 seconds, and pause again unless
there is a directory.

A rehearsal must not reach real money by a forgotten variable: a worker whose database is not on this machine (a Unix
socket or a loopback address) refuses to start while BACKSTAY_FAULTS is set.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import structlog
from psycopg.conninfo import conninfo_to_dict
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from contracts.reasons import Reason
from worker.settings import SettingsError

log = structlog.get_logger(__name__)

VARIABLE: Final = "BACKSTAY_FAULTS"
DIRECTORY_VARIABLE: Final = "BACKSTAY_FAULTS_DIR"
DELAY_SECONDS_MAX: Final = 60.0
LOOK_EVERY_SECONDS: Final = 0.02
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_FAULT: Final = re.compile(
    r"(?P<kind>pause|kill|stop|fail|delay)-(?P<when>before|after):(?P<name>\*|[a-z][a-z0-9_]*(@[0-9]+)?(\.compensate)?)"
    r"(=(?P<delay>[0-9]+)ms)?"
)
_SHORT_DELAY: Final = re.compile(r"delay:([0-9]+)ms")
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Kind = Literal["pause", "kill", "stop", "fail", "delay"]
When = Literal["before", "after"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong at one point."""

    kind: Kind
    when: When
    name: str
    delay_seconds: float = 0.0

    @property
    def marker(self) -> str:
        """Name of the file that says that it has happened."""
        return f"{self.kind}-{self.when}:{'all' if self.name == '*' else self.name}"

    def is_at(self, name: str, when: When) -> bool:
        """True when this point of this activity is meant."""
        return self.when == when and self.name in ("*", name)


def parse(text: str) -> tuple[Fault, ...]:
    """Read the variable. Raises SettingsError naming the part that is wrong."""
    found: list[Fault] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _FAULT.fullmatch(_SHORT_DELAY.sub(r"delay-before:*=\1ms", part))
        if match is None or (match["kind"] == "delay") != (match["delay"] is not None):
            raise SettingsError(f"{VARIABLE}: {part[:80]!r} is no fault; worker/faults.py lists what is.")
        delay_seconds = int(match["delay"] or 0) / 1000
        if delay_seconds > DELAY_SECONDS_MAX:
            raise SettingsError(f"{VARIABLE}: {part!r} is over {DELAY_SECONDS_MAX:.0f} seconds; choose less.")
        found.append(Fault(cast("Kind", match["kind"]), cast("When", match["when"]), match["name"], delay_seconds))
    return tuple(found)


def interceptors(database_url: str, environment: Mapping[str, str] | None = None) -> list[Interceptor]:
    """Make what a worker needs to misbehave as the variables say; nothing when they are not set.

    Raises SettingsError: the text is wrong, or the database is not on this machine.
    """
    given = os.environ if environment is None else environment
    if not given.get(VARIABLE):
        return []
    faults = parse(given[VARIABLE])
    if not is_local(database_url):
        raise SettingsError(
            f"{VARIABLE} is set, but the database is not on this machine; unset it, or rehearse on a local stack."
        )
    directory = Path(given[DIRECTORY_VARIABLE]) if given.get(DIRECTORY_VARIABLE) else None
    if directory is not None and not directory.is_dir():
        raise SettingsError(f"{DIRECTORY_VARIABLE}: {directory} is no directory; make it first.")
    log.warning("faults on purpose", faults=[fault.marker for fault in faults], directory=str(directory))
    return [FaultInterceptor(faults, directory)]


def is_local(database_url: str) -> bool:
    """True when every host that the URL names is a Unix socket or a loopback address."""
    known = conninfo_to_dict(database_url)
    named = f"{known.get('host') or os.environ.get('PGHOST', '')},{known.get('hostaddr') or ''}"
    hosts = [host for host in named.split(",") if host]
    return all(host.startswith(("/", "@")) or host in _LOCAL_HOSTS for host in hosts)


class FaultInterceptor(Interceptor):
    """Hangs the faults into every activity of a worker, local ones too."""

    def __init__(self, faults: Sequence[Fault], directory: Path | None = None) -> None:
        """Let `faults` happen; once each if there is a `directory` for their markers."""
        self._faults = tuple(faults)
        self._directory = directory

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Stand before every activity."""
        return _Inbound(next, self)

    async def reach(self, name: str, when: When) -> None:
        """Let happen what is meant for this point."""
        for fault in self._faults:
            if not fault.is_at(name, when):
                continue
            if fault.kind == "delay":
                await asyncio.sleep(fault.delay_seconds)
            elif self._is_first(fault):
                await self._happen(fault)

    async def _happen(self, fault: Fault) -> None:
        log.warning("fault", fault=fault.marker)
        match fault.kind:
            case "pause":
                await self._ended(fault)
            case "fail":
                raise ApplicationError(f"A fault on purpose: {fault.marker}.", type=Reason.DEPENDENCY_DOWN.value)
            case _:
                os.kill(os.getpid(), _SIGNALS[fault.kind])

    async def _ended(self, fault: Fault) -> None:
        """Wait until somebody ends a pause; without a directory for ever."""
        while self._directory is None or not (self._directory / f"{fault.marker}.end").exists():  # noqa: ASYNC110 - a file
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    def _is_first(self, fault: Fault) -> bool:
        if self._directory is None:
            return True
        try:
            (self._directory / fault.marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, faults: FaultInterceptor) -> None:
        super().__init__(following)
        self._faults = faults

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401
        name = activity.info().activity_type
        await self._faults.reach(name, "before")
        result = await super().execute_activity(input)
        await self._faults.reach(name, "after")
        return result
