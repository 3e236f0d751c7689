"""Running one command: settings, connections that open when they are first used, one answer, the right exit code."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from temporalio.client import Client

    from activities.database import Database
    from activities.dispatch import Engine
    from activities.tool import Pack
    from contracts.envelope import Envelope
    from contracts.intent import Caller
    from contracts.registry import Registry
    from worker.cli.render import View
    from worker.door import Door
    from worker.messages import Messages
    from worker.opening import Openings
    from worker.settings import Settings
    from worker.telemetry import Tracing

T = TypeVar("T")
EXIT_USAGE = 2
EXIT_REFUSED = 1


class Session:
    """What a command may use. Everything is opened when it is first asked for, and closed when the command ends."""

    def __init__(self, settings: "Settings", stack: AsyncExitStack, tracing: "Tracing | None") -> None:
        """Open nothing yet."""
        self.settings = settings
        self._stack = stack
        self._tracing = tracing
        self._database: Database | None = None
        self._client: Client | None = None
        self._door: Door | None = None

    @property
    def tenant(self) -> str:
        """Whose intents are meant."""
        return self.settings.tenant

    @property
    def caller(self) -> "Caller":
        """Who posts, and on whose behalf."""
        from contracts.intent import Caller  # noqa: PLC0415 - pydantic; `--help` must not pay for it

        return Caller(tenant=self.settings.tenant, principal=self.settings.principal, agent=self.settings.agent)

    @cached_property
    def packs(self) -> "tuple[Pack, ...]":
        """The tools of this installation."""
        from activities.catalog import PackError, load_packs  # noqa: PLC0415 - as above
        from worker.settings import SettingsError  # noqa: PLC0415 - as above

        try:
            return load_packs(self.settings.packs, self.settings.downstream_addresses)
        except PackError as error:
            raise SettingsError(str(error)) from error

    @cached_property
    def registry(self) -> "Registry":
        """Their contracts."""
        from contracts.registry import Registry  # noqa: PLC0415 - as above

        return Registry.of([tool.contract for pack in self.packs for tool in pack.tools])

    async def database(self) -> "Database":
        """Connect to PostgreSQL."""
        from activities.database import Database  # noqa: PLC0415 - as above

        if self._database is None:
            tracer = self._tracing.statement if self._tracing else None
            database = Database(self.settings.require_database_url(), connections_max=4, tracer=tracer)
            self._database = await self._stack.enter_async_context(database)
        return self._database

    async def client(self) -> "Client":
        """Connect to Temporal. Raises SagaError(DEPENDENCY_DOWN) when nobody answers, SettingsError."""
        from contracts.errors import SagaError  # noqa: PLC0415 - as above
        from contracts.reasons import EffectOutcome, Reason  # noqa: PLC0415 - as above
        from worker.service import connect  # noqa: PLC0415 - as above
        from worker.settings import SettingsError  # noqa: PLC0415 - as above

        if self._client is None:
            self.settings.temporal_connection()  # what is wrong in the settings is not somebody's silence
            try:
                self._client = await connect(self.settings, [self._tracing.interceptor] if self._tracing else [])
            except SettingsError as error:
                raise SagaError(Reason.DEPENDENCY_DOWN, str(error), outcome=EffectOutcome.NOT_APPLIED) from error
        return self._client

    async def engine(self) -> "Engine":
        """Put database and tools together."""
        from activities.dispatch import Engine  # noqa: PLC0415 - as above

        return Engine(await self.database(), self.packs)

    async def door(self) -> "Door":
        """Open the front door."""
        import structlog  # noqa: PLC0415 - as above

        from worker.door import Door  # noqa: PLC0415 - as above

        if self._door is None:
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
            door = Door.of(await self.client(), await self.engine(), self.settings)
            self._door = await self._stack.enter_async_context(door)
        return self._door

    async def openings(self) -> "Openings":
        """Open the door to open intents."""
        from worker.opening import Openings  # noqa: PLC0415 - as above

        return Openings(await self.door(), await self.database())

    async def messages(self) -> "Messages":
        """Speak to running sagas."""
        from worker.messages import Messages  # noqa: PLC0415 - as above

        return Messages(await self.client(), await self.database())


def answer(
    work: "Callable[[Session], Awaitable[Envelope]]",
    view: "Callable[[Envelope], Iterable[View]]",
    *,
    as_json: bool,
    **given: str | None,
) -> NoReturn:
    """Do `work`, print its envelope and end with the envelope's exit code; `given` are settings from options.

    What comes back as an error is printed as one: a sentence on standard error, or the envelope with `--json`.
    """
    from contracts.envelope import error_envelope  # noqa: PLC0415 - as above
    from contracts.errors import SagaError  # noqa: PLC0415 - as above
    from worker.cli import render  # noqa: PLC0415 - as above

    quiet()
    settings = load_settings(**given)

    async def run() -> "Envelope":
        try:
            return await _in_session(settings, work)
        except SagaError as error:
            return error_envelope(error.info)

    envelope = run_async(run())
    if as_json:
        sys.stdout.write(envelope.model_dump_json(indent=2) + "\n")
    elif envelope.error is not None and envelope.data is None:
        sys.stderr.write(render.plain(render.problem(envelope)))
    else:
        render.show(view(envelope))
    raise typer.Exit(envelope.exit_code)


async def _in_session(settings: "Settings", work: "Callable[[Session], Awaitable[Envelope]]") -> "Envelope":
    tracing = None
    if settings.trace:
        from worker.service import tracing_of  # noqa: PLC0415 - only when switched on

        tracing = tracing_of(settings)
    async with AsyncExitStack() as stack:
        session = Session(settings, stack, tracing)
        if tracing is None:
            return await work(session)
        stack.callback(tracing.close)
        with tracing.command(_command_name(sys.argv[1:])):
            return await work(session)


def _command_name(arguments: list[str]) -> str:
    """Name a command without its arguments: a trace's name tells no ids."""
    words = 2 if arguments[:1] in (["intent"], ["db"]) else 1
    return " ".join(["backstay", *arguments[:words]])


def load_settings(**given: str | None) -> "Settings":
    """Read the settings. Ends the process with a sentence when they are wrong."""
    from worker.settings import Settings, SettingsError  # noqa: PLC0415 - as above

    try:
        return Settings.load(**given)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Ends the process with a sentence when settings or packs are wrong."""
    from worker.settings import SettingsError  # noqa: PLC0415 - as above

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(work)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - as above
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop


def quiet() -> None:
    """Keep libraries from writing between the lines of an answer: what matters arrives as an error."""
    import logging  # noqa: PLC0415 - as above

    import structlog  # noqa: PLC0415 - as above

    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    if not structlog.is_configured():  # the worker has logs of its own
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def read_body(file: str) -> bytes:
    """Read an intent's bytes as they are. Raises BadParameter, a usage error, when there is no such file."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}.") from error


def write_text(file: Path, text: str) -> None:
    """Write a file. Raises BadParameter, a usage error, where that cannot be."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}.") from error


def fail(text: str, code: int) -> NoReturn:
    """End with a sentence on standard error."""
    sys.stderr.write(f"{text}\n")
    raise typer.Exit(code)
