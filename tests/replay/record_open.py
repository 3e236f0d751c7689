"""Records histories of open intents: `.venv/bin/python -m tests.replay.record_open`; as `record`, for scenes of theirs.

They lie in a directory of their own, since the independent reader does not read updates that grow a plan.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import migrate
from contracts.risk import Policy
from tests.replay.record import store
from tests.support.opened import Opened, debit, freeze, opened
from tests.support.sagas import Handle, Sagas, resolution, serve
from tests.support.samples import note
from worker.settings import Settings
from worker.stack import LocalStack
from worker.sweep import Sweep

HISTORIES: Final = Path(__file__).parent / "open_histories"
POLICIES: Final = {"undone_when_nothing_came": Policy(open_inactivity_seconds=1)}


async def committed_by_two_clients(sagas: Sagas) -> Handle:
    """Bindings, a refused step, a step said twice, and a last one that cannot be undone."""
    intent = await opened(sagas)
    other = Opened(sagas, sagas.client.get_workflow_handle(intent.handle.id))
    await intent.add(freeze())
    await asyncio.gather(intent.add(debit()), other.add(note("n")), other.add(note("n")), other.add(note("g", "guard")))
    await intent.commit(note("seal", "seal"))
    return intent.handle


async def aborted(sagas: Sagas) -> Handle:
    """Undone in reverse."""
    intent = await opened(sagas)
    for step in (note("one"), note("two", "keep"), freeze()):
        await intent.add(step)
    await intent.abort()
    return intent.handle


async def cancelled_over_a_running_step(sagas: Sagas) -> Handle:
    """A signal meets a step that runs."""
    intent = await opened(sagas)
    await intent.add(note("one"))
    gate = sagas.behaviour.hold("two")
    adding = asyncio.create_task(intent.add(note("two")))
    await gate.arrived()
    await intent.handle.signal("cancel", {})
    gate.open()
    await adding
    await intent.result()
    return intent.handle


async def undone_when_nothing_came(sagas: Sagas) -> Handle:
    """Its time ran out."""
    intent = await opened(sagas)
    await intent.add(note("one"))
    await intent.result()
    return intent.handle


async def refused_by_a_tool(sagas: Sagas) -> Handle:
    """A step that was taken says no."""
    intent = await opened(sagas)
    await intent.add(note("one"))
    sagas.behaviour.refuse("two")
    await intent.add(note("two"))
    return intent.handle


async def adopted_and_forwarded(sagas: Sagas) -> Handle:
    """Another run goes on with it."""
    intent = await opened(sagas)
    await intent.add(note("one"))
    await intent.handle.terminate("a scene")
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    await Sweep(sagas.client, sagas.engine.database, settings).run()
    again = Opened(sagas, sagas.client.get_workflow_handle(intent.handle.id))
    await sagas.waiting(again.handle)
    await sagas.update(again.handle, "resolve", resolution("forward"))
    await again.add(note("two"))
    await again.commit()
    return again.handle


SCENES: Final[tuple[Callable[[Sagas], Awaitable[Handle]], ...]] = (
    committed_by_two_clients,
    aborted,
    cancelled_over_a_running_step,
    undone_when_nothing_came,
    refused_by_a_tool,
    adopted_and_forwarded,
)


async def record(stack: LocalStack) -> None:
    """Run each scene whose file is missing on a fresh database, and store its history."""
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    await asyncio.to_thread(migrate.upgrade, stack.create_database("recorded"))
    for scene in SCENES:
        name = getattr(scene, "__name__", "")
        if (HISTORIES / f"{name}.json").exists():
            continue
        url = stack.create_database(template="recorded")
        async with serve(client, url, "backstay", POLICIES.get(name)) as sagas:
            handle = await scene(sagas)
            await sagas.result(handle)
            store(name, (await handle.fetch_history()).to_json(), HISTORIES)
        sys.stdout.write(f"recorded {name}\n")


if __name__ == "__main__":
    with LocalStack.temporary() as local:
        asyncio.run(record(local))
    sys.stdout.flush()
    os._exit(0)  # as in `record`
