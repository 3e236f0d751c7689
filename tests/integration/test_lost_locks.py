"""A lock that was taken away: whoever held it learns of it in time, and never ends COMMITTED as if it still did."""

from collections.abc import AsyncGenerator
from typing import Final

import pytest
from temporalio.client import Client

from activities import locks
from contracts.envelope import Envelope
from contracts.reasons import Reason
from contracts.saga import IntentPhase, ParkReason
from tests.support.desk import Desk, at_desk
from tests.support.lockers import ANNA, BORIS, claim, create_books, find, lockers_pack
from tests.support.opened import opened
from tests.support.sagas import Handle, Sagas, outcome, request, resolution, serve
from tests.support.samples import Behaviour, note
from worker.check import check
from worker.door import Door
from worker.outlook import Outlook
from worker.settings import Settings
from worker.sweep import Sweep

BOOK: Final = f"book:{ANNA}"


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    behaviour = Behaviour()
    async with serve(temporal_client, database_url, task_queue, packs=(lockers_pack(behaviour),)) as served:
        create_books(database_url)
        served.behaviour = behaviour
        yield served


@pytest.fixture
async def desk(database_url: str) -> AsyncGenerator[Desk]:
    async with at_desk(database_url, packs=(lockers_pack(Behaviour()),)) as found:
        create_books(database_url)
        yield found


async def unlock(served: Sagas | Desk, resource: str = BOOK) -> None:
    database = served.engine.database if isinstance(served, Sagas) else served.database
    assert await locks.unlock(database, resource, tenant="bank", operator="operator", reason="it hangs")


async def why(sagas: Sagas, handle: Handle) -> Outlook:
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    intent_id = (await sagas.status(handle)).meta.intent_id or ""
    async with Door.of(sagas.client, sagas.engine, settings) as door:
        return await door.why("bank", intent_id)


def lost(envelope: Envelope) -> tuple[Reason | None, object]:
    """Its error, and which lock that names."""
    error = envelope.error
    return (error.code, error.details.get("resource")) if error is not None else (None, None)


@pytest.mark.situation(18)
async def test_what_loses_its_lock_after_its_last_write_turns_back_instead_of_committing(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("hold")
    handle = await sagas.start(request(claim("changed", ANNA), find("hold", ANNA)))
    await gate.arrived()

    await unlock(sagas)
    assert outcome(await sagas.run(claim("other", ANNA))) == ("COMMITTED", "none")
    gate.open()
    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert (envelope.status_code, *lost(envelope)) == (423, Reason.RESOURCE_LOCKED, BOOK)
    assert sagas.effects(envelope) == {"changed": "COMPENSATED"}
    report = await check(sagas.database_url)
    assert [found for found in report.checks if not found.ok] == []


async def test_the_commit_of_an_open_intent_that_lost_its_lock_is_refused_and_undoes_it(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(claim("changed", ANNA))

    await unlock(sagas)
    answer = await intent.commit()

    assert not answer.accepted
    assert answer.error is not None
    assert (answer.error.code, answer.outcome) == (Reason.RESOURCE_LOCKED, "COMPENSATED")
    assert lost(await intent.result()) == (Reason.RESOURCE_LOCKED, BOOK)
    assert intent.effects() == {"changed": "COMPENSATED"}


async def test_the_next_step_of_an_open_intent_that_lost_its_lock_is_told_which(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(claim("changed", ANNA))

    await unlock(sagas)
    answer = await intent.add(note("next"))

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["resource"]) == (Reason.RESOURCE_LOCKED, BOOK)
    assert outcome(await intent.result()) == ("COMPENSATED", "refused")
    assert intent.effects() == {"changed": "COMPENSATED"}


async def test_other_locks_of_the_same_intent_do_not_save_it(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(claim("changed", ANNA, other_id=BORIS))

    await unlock(sagas, f"book:{BORIS}")

    assert (await intent.commit()).outcome == "COMPENSATED"


async def test_why_names_the_lost_lock_and_offers_no_commit(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(claim("changed", ANNA))
    assert "commit" in " ".join(option.command for option in (await why(sagas, intent.handle)).options)

    await unlock(sagas)
    outlook = await why(sagas, intent.handle)

    assert BOOK in (outlook.blocked_by or "")
    assert outlook.next_action == "its next step or its commit is refused, and what landed is undone"
    assert "commit" not in " ".join(option.command for option in outlook.options)


@pytest.mark.parametrize("rests", [False, True], ids=["before it rested", "while it rested"])
async def test_what_rested_after_losing_a_lock_does_not_go_forward_over_it(sagas: Sagas, rests: bool) -> None:  # noqa: FBT001 - a case
    gate = sagas.behaviour.hold("hold")
    handle = await sagas.start(request(claim("changed", ANNA), find("hold", ANNA)))
    await gate.arrived()
    await handle.terminate("a test")
    if not rests:
        await unlock(sagas)
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    await Sweep(sagas.client, sagas.engine.database, settings).run()
    gate.open()
    again: Handle = sagas.client.get_workflow_handle(handle.id)
    sagas.handles.append(again)
    await sagas.waiting(again)
    if rests:
        await unlock(sagas)

    assert (await sagas.update(again, "resolve", resolution("forward"))).accepted

    envelope = await sagas.result(again)
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert lost(envelope) == (Reason.RESOURCE_LOCKED, BOOK)


async def test_settling_over_a_lost_lock_writes_nothing_and_says_which(desk: Desk) -> None:
    intent = await desk.intent(claim("a", ANNA))
    await intent.execute("a")
    await unlock(desk)

    standing = await intent.seen_by(epoch=2).settle()

    assert standing.phase is IntentPhase.ADMITTED
    assert standing.lost is not None
    assert standing.lost.details == {"resource": BOOK}
    assert (intent.row()["phase"], intent.row()["final_at"]) == ("ADMITTED", None)


async def test_past_the_pivot_a_lost_lock_parks_and_an_operator_who_has_looked_sends_it_forward(desk: Desk) -> None:
    intent = await desk.intent(claim("a", ANNA), note("b", "seal"))
    await intent.execute("a")
    await intent.execute("b")
    await unlock(desk)
    holder = intent.seen_by(epoch=2)

    parked = await holder.settle()
    await holder.resolve("forward")
    settled = await holder.settle()

    assert parked.parked is ParkReason.STUCK_AFTER_PIVOT
    assert BOOK in str(parked.parked_detail)
    assert settled.phase is IntentPhase.COMMITTED
