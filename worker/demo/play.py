"""The demo from beginning to end: it starts what it needs, plays the scenes, checks the books, and leaves nothing.

Nothing here decides whether a claim holds: scenes raise as soon as the tables say otherwise, and the last line counts
what the tables hold. The demo has servers of its own on fresh data, so it may be interrupted, run again and run twice
at a time; the keeper of its stack ends everything even when it is killed.
"""

from __future__ import annotations

import asyncio
import signal
import time
import traceback
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import migrate
from activities.catalog import load_packs
from activities.database import ROLE_READONLY, Database
from activities.dispatch import Engine
from worker.demo import accidents, money, people
from worker.demo.claims import DemoFailedError
from worker.demo.faults import Faults
from worker.demo.owner import Owner
from worker.demo.screen import Screen
from worker.demo.tables import Tables
from worker.demo.verdict import close_books
from worker.demo.world import World
from worker.door import Door
from worker.messages import Messages
from worker.settings import Settings
from worker.stack import LocalStack, StackError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import FrameType

    from rich.console import Console

SCENES: Final[tuple[Callable[[World], Awaitable[None]], ...]] = (
    money.commits,
    money.compensates,
    money.repeats,
    money.reuses,
    people.approved,
    people.denied,
    accidents.killed,
    accidents.cancelled,
    accidents.parked,
)
TASK_TIMEOUT_SECONDS: Final = 2.0
INTERRUPTED: Final = 130


def run(console: Console | None = None) -> int:
    """Play the demo; 0 when everything was as promised, 1 when anything was not, 130 when it was interrupted."""
    screen = Screen(console)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up is meant to be nothing
            signal.signal(number, _interrupt)
    try:
        began = time.monotonic()
        screen.opening(
            "Backstay: durable sagas for what agents write",
            "Nine scenes on a real Temporal server and a real PostgreSQL, started for this and gone afterwards. "
            "Every claim is read from the tables, not from the answers.",
        )
        screen.note("Starting PostgreSQL, Temporal and a worker ...")
        with LocalStack.temporary() as stack:
            line = asyncio.run(_play(stack, screen, began))
    except KeyboardInterrupt:
        screen.ending("DEMO INTERRUPTED what it had started is gone; run it again at any time", good=False)
        return INTERRUPTED
    except (DemoFailedError, StackError) as error:
        return _failed(screen, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the last line has to say so
        screen.log("What went wrong:", traceback.format_exc())
        return _failed(screen, f"{type(error).__name__}: {error}")
    screen.ending(line, good=True)
    return 0


def _failed(screen: Screen, why: str) -> int:
    screen.ending(f"DEMO FAILED {' '.join(why.split())}", good=False)
    return 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Treat every wish to end like Ctrl-C, so that everything is taken down in order."""
    signal.raise_signal(signal.SIGINT)


async def _play(stack: LocalStack, screen: Screen, began: float) -> str:
    """Play all scenes and check the books; return the last line. Raises DemoFailedError."""
    settings = _settings(stack)
    url = settings.require_database_url()
    migrate.upgrade(url)
    async with AsyncExitStack() as opened:
        owner, tables = opened.enter_context(Owner(url)), opened.enter_context(Tables(url))
        owner.open_accounts()
        client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
        database = await opened.enter_async_context(Database(url, connections_max=4))
        engine = Engine(database, load_packs())
        world = World(
            stack=stack,
            settings=settings,
            client=client,
            door=await opened.enter_async_context(Door.of(client, engine, settings)),
            messages=Messages(client, database),
            registry=engine.registry,
            looking=await opened.enter_async_context(Database(url, role=ROLE_READONLY, connections_max=2)),
            tables=tables,
            owner=owner,
            screen=screen,
            faults=Faults(stack.directory / "faults"),
        )
        await world.start_worker()
        accounts = tables.number("select count(*) from ledger.accounts")
        screen.note(
            f"Ready in {time.monotonic() - began:.1f} s: the schema, {accounts} accounts,"
            f" the worker in process {world.running.pid}.",
            apart=False,
        )
        try:
            for number, scene in enumerate(SCENES, 1):
                with _named(f"scene {number}"):
                    await scene(world)
            with _named("the books"):
                line = await close_books(world)
        except Exception:
            screen.log("The end of the worker's log:", world.running.log_tail)
            raise
    screen.note(f"All of it took {time.monotonic() - began:.0f} s; what was started is being taken down.")
    return line


@contextmanager
def _named(part: str) -> Generator[None]:
    """Say in which part something was not as promised."""
    try:
        yield
    except DemoFailedError as error:
        raise DemoFailedError(f"{part}: {error}") from error


def _settings(stack: LocalStack) -> Settings:
    """Make settings that nothing of the caller's environment reaches."""
    return Settings.load(
        database_url=stack.database_url,
        task_queue="backstay",
        tenant="demo-bank",
        principal="demo-customer",
        agent="demo-agent",
        approver="demo-approver",
        operator="demo-operator",
        packs=(),
        trace=False,
        workflow_task_timeout_seconds=TASK_TIMEOUT_SECONDS,
        state_dir=stack.directory / "state",
    )
