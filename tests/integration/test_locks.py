"""Semantic locks on the real servers: who waits, who goes first, who closes, and that nothing is kept for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from temporalio.client import Client

from activities import locks
from activities.tool import Pack, RemoteTool
from contracts.envelope import Envelope
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.tool import LockMode
from tests.support.courier import SHIP, bring_back, courier, look, ship
from tests.support.lockers import ANNA, BORIS, CHLOE, book_use, claim, create_books, find, found_by, lockers_pack, share
from tests.support.sagas import BOUND_SECONDS, Handle, Sagas, outcome, request, resolution, serve
from tests.support.samples import Behaviour
from worker.door import Door
from worker.settings import Settings
from worker.sweep import Sweep

COMMITTED = ("COMMITTED", "none")
EXCLUSIVES = 5
SHARERS = 4


@asynccontextmanager
async def lockers(
    client: Client, database_url: str, task_queue: str, policy: Policy, *packs: Pack
) -> AsyncGenerator[Sagas]:
    """Serve the pack of books, and others besides; its handlers do what the sagas' behaviour says."""
    behaviour = Behaviour()
    async with serve(client, database_url, task_queue, policy, packs=(lockers_pack(behaviour), *packs)) as served:
        create_books(database_url)
        served.behaviour = behaviour
        yield served


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with lockers(temporal_client, database_url, task_queue, Policy()) as served:
        yield served


@pytest.fixture
async def impatient(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with lockers(temporal_client, database_url, task_queue, Policy(lock_wait_seconds=1)) as served:
        yield served


async def waiting(sagas: Sagas, count: int) -> None:
    """Come back when so many intents stand in a queue."""
    query = "select count(distinct intent_key) as n from backstay.counting_locks where not is_held"
    async with asyncio.timeout(BOUND_SECONDS):
        while sagas.one(query)["n"] != count:  # noqa: ASYNC110 - rows tell, no event does
            await asyncio.sleep(0.02)


def held(sagas: Sagas) -> dict[str, list[str]]:
    """The locks that count: the modes in which each book is held."""
    rows = sagas.rows(
        "select resource, mode from backstay.counting_locks where is_held order by resource, mode, ticket"
    )
    modes: dict[str, list[str]] = {}
    for row in rows:
        modes.setdefault(row["resource"].removeprefix("book:"), []).append(row["mode"])
    return modes


def landed(sagas: Sagas) -> list[str]:
    """Names of the steps that wrote, in the order in which they did."""
    return [row["text"] for row in sagas.rows("select text from samples.notes order by note_number")]


def error(envelope: Envelope) -> Reason | None:
    return envelope.error.code if envelope.error else None


async def holder(sagas: Sagas, *books: str, step_id: str = "hold") -> tuple[Handle, asyncio.Event]:
    """Start a saga that has claimed these books and does not go on before the event is set."""
    gate = sagas.behaviour.hold(step_id)
    claims = [claim(f"{step_id}_{number}", book) for number, book in enumerate(books)]
    handle = await sagas.start(request(*claims, find(step_id, ANNA)))
    await gate.arrived()
    return handle, gate.opened


@pytest.mark.situation(18)
async def test_who_comes_second_waits_and_goes_on_when_the_first_has_ended(sagas: Sagas) -> None:
    first, release = await holder(sagas, ANNA)
    second = await sagas.start(request(claim("second", ANNA)))
    await waiting(sagas, 1)

    assert landed(sagas) == ["hold_0"]
    release.set()

    assert outcome(await sagas.result(first)) == outcome(await sagas.result(second)) == COMMITTED
    assert landed(sagas) == ["hold_0", "second"]
    assert held(sagas) == {}


async def test_exclusive_requests_are_served_in_the_order_in_which_they_came(sagas: Sagas) -> None:
    first, release = await holder(sagas, ANNA)
    handles = [first]
    for number in range(EXCLUSIVES):
        handles.append(await sagas.start(request(claim(f"turn_{number}", ANNA))))
        await waiting(sagas, number + 1)

    release.set()

    assert [outcome(await sagas.result(handle)) for handle in handles] == [COMMITTED] * (EXCLUSIVES + 1)
    assert landed(sagas) == ["hold_0", *(f"turn_{number}" for number in range(EXCLUSIVES))]


async def test_a_stream_of_sharers_does_not_starve_the_one_that_needs_it_alone(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("hold")
    reader = await sagas.start(request(share("reader", ANNA), find("hold", ANNA)))
    await gate.arrived()
    writer = await sagas.start(request(claim("writer", ANNA)))
    await waiting(sagas, 1)
    later: list[Handle] = []
    for number in range(SHARERS):
        later.append(await sagas.start(request(share(f"later_{number}", ANNA))))
        await waiting(sagas, number + 2)

    assert landed(sagas) == ["reader"]
    gate.open()

    ends = [outcome(await sagas.result(handle)) for handle in (reader, writer, *later)]
    assert ends == [COMMITTED] * (SHARERS + 2)
    assert landed(sagas)[:2] == ["reader", "writer"]


async def test_sharers_go_together(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("hold")
    first = await sagas.start(request(share("first", ANNA), find("hold", ANNA)))
    await gate.arrived()

    assert outcome(await sagas.run(share("second", ANNA))) == COMMITTED
    assert held(sagas) == {ANNA: ["SHARED"]}

    gate.open()
    assert outcome(await sagas.result(first)) == COMMITTED


@pytest.mark.situation(18)
async def test_of_two_sagas_that_want_each_others_book_the_older_commits_and_the_younger_closes(sagas: Sagas) -> None:
    gates = [sagas.behaviour.hold(name) for name in ("find_older", "find_younger")]
    older = await sagas.start(
        request(claim("own", ANNA), find("find_older", BORIS), claim("late", ANNA, other_id=found_by("find_older")))
    )
    await gates[0].arrived()
    younger = await sagas.start(
        request(
            claim("mine", BORIS), find("find_younger", ANNA), claim("never", BORIS, other_id=found_by("find_younger"))
        )
    )
    await gates[1].arrived()

    gates[0].open()
    await waiting(sagas, 1)
    gates[1].open()
    envelope = await sagas.result(younger)

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert (envelope.status_code, error(envelope)) == (423, Reason.RESOURCE_LOCKED)
    assert envelope.error is not None
    assert envelope.error.details["held_by"] == (await sagas.result(older)).meta.intent_id
    assert outcome(await sagas.result(older)) == COMMITTED
    assert "never" not in landed(sagas)


async def test_the_younger_closes_at_once_although_the_older_does_not_want_anything_of_it(sagas: Sagas) -> None:
    older, release = await holder(sagas, ANNA)

    envelope = await sagas.run(
        claim("mine", BORIS), find("seek", ANNA), claim("never", BORIS, other_id=found_by("seek"))
    )
    release.set()

    assert (outcome(envelope), error(envelope)) == (("COMPENSATED", "refused"), Reason.RESOURCE_LOCKED)
    assert outcome(await sagas.result(older)) == COMMITTED


async def test_many_sagas_over_the_same_books_in_every_order_all_end(sagas: Sagas) -> None:
    books = (ANNA, BORIS, CHLOE)
    handles: list[Handle] = []
    for number in range(12):
        one, other, third = (books[(number + turn) % 3] for turn in (0, 1 + number % 2, 2 - number % 2))
        handles.append(
            await sagas.start(
                request(
                    claim(f"own_{number}", one),
                    find(f"seek_{number}", other),
                    claim(f"late_{number}", one, other_id=found_by(f"seek_{number}")),
                    find(f"again_{number}", third),
                    share(f"last_{number}", one, other_id=found_by(f"again_{number}")),
                )
            )
        )

    ends = [await sagas.result(handle) for handle in handles]

    assert {outcome(end) for end in ends} <= {COMMITTED, ("COMPENSATED", "refused"), ("NOT_APPLIED", "refused")}
    assert {error(end) for end in ends} <= {None, Reason.RESOURCE_LOCKED}
    assert COMMITTED in {outcome(end) for end in ends}
    assert held(sagas) == {}


async def test_whoever_waits_longer_than_it_may_closes_with_423_and_has_written_nothing(impatient: Sagas) -> None:
    first, release = await holder(impatient, ANNA)

    envelope = await impatient.run(claim("second", ANNA))
    release.set()

    assert outcome(envelope) == ("NOT_APPLIED", "refused")
    assert (envelope.status_code, error(envelope)) == (423, Reason.RESOURCE_LOCKED)
    assert outcome(await impatient.result(first)) == COMMITTED
    assert landed(impatient) == ["hold_0"]
    kinds = [row["kind"] for row in impatient.rows("select kind from backstay.audit_log where step_id = 'second'")]
    assert kinds == ["refusal"]


async def test_all_that_is_named_outright_is_held_before_the_first_write(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("first")
    handle = await sagas.start(request(claim("first", ANNA), share("second", BORIS), claim("third", CHLOE)))
    await gate.arrived()
    gate.open()
    await sagas.result(handle)
    _, release = await holder(sagas, CHLOE)

    blocked = await sagas.start(request(claim("fourth", BORIS), claim("fifth", CHLOE)))
    await waiting(sagas, 1)

    assert "fourth" not in landed(sagas)
    release.set()
    assert outcome(await sagas.result(blocked)) == COMMITTED


@pytest.mark.situation(18)
@pytest.mark.parametrize("end", ["COMMITTED", "COMPENSATED", "NOT_APPLIED"])
async def test_whatever_the_end_the_book_is_free_at_once(sagas: Sagas, end: str) -> None:
    if end != "COMMITTED":
        sagas.behaviour.refuse("first" if end == "NOT_APPLIED" else "second")
    envelope = await sagas.run(claim("first", ANNA), claim("second", BORIS))

    assert outcome(envelope)[0] == end
    assert held(sagas) == {}
    assert outcome(await sagas.run(claim("next", ANNA, other_id=BORIS))) == COMMITTED


async def test_a_parked_intent_keeps_what_it_may_have_changed_and_gives_the_rest_up(impatient: Sagas) -> None:
    impatient.behaviour.refuse("no")
    impatient.behaviour.refuse("undo:changed")
    handle = await impatient.start(request(claim("changed", ANNA), share("seen", BORIS), claim("no", CHLOE)))
    await impatient.waiting(handle)

    assert held(impatient) == {ANNA: ["EXCLUSIVE"]}
    assert error(await impatient.run(claim("taken", ANNA))) is Reason.RESOURCE_LOCKED
    assert outcome(await impatient.run(claim("other", BORIS, other_id=CHLOE))) == COMMITTED

    assert (await impatient.update(handle, "resolve", resolution("skip", "changed"))).accepted
    assert outcome(await impatient.result(handle))[0] == "COMPENSATED"
    assert outcome(await impatient.run(claim("taken", ANNA))) == COMMITTED


async def test_what_is_taken_from_a_parked_intent_is_free_and_its_operator_is_heard_as_before(sagas: Sagas) -> None:
    sagas.behaviour.refuse("no")
    sagas.behaviour.refuse("undo:changed")
    handle = await sagas.start(request(claim("changed", ANNA), claim("no", CHLOE)))
    await sagas.waiting(handle)

    await locks.unlock(sagas.engine.database, f"book:{ANNA}", tenant="bank", operator="operator", reason="")

    assert outcome(await sagas.run(claim("taken", ANNA))) == COMMITTED
    assert (await sagas.update(handle, "resolve", resolution("skip", "changed"))).accepted
    assert outcome(await sagas.result(handle))[0] == "COMPENSATED"


async def test_a_run_that_is_ended_from_outside_holds_its_books_until_its_intent_has_ended(impatient: Sagas) -> None:
    sagas = impatient
    gate = sagas.behaviour.hold("hold")
    handle = await sagas.start(request(claim("changed", ANNA), find("hold", ANNA), claim("planned", BORIS)))
    await gate.arrived()
    await handle.terminate("a test")

    assert held(sagas) == {ANNA: ["EXCLUSIVE"], BORIS: ["EXCLUSIVE"]}
    assert error(await sagas.run(claim("blocked", BORIS))) is Reason.RESOURCE_LOCKED
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    swept = await Sweep(sagas.client, sagas.engine.database, settings).run()
    gate.open()
    assert len(swept.adopted) == 1
    assert held(sagas) == {ANNA: ["EXCLUSIVE"]}

    again: Handle = sagas.client.get_workflow_handle(handle.id)
    sagas.handles.append(again)
    await sagas.waiting(again)
    assert (await sagas.update(again, "resolve", resolution("close"))).accepted
    assert outcome(await sagas.result(again)) == ("COMPENSATED", "interrupted")
    assert held(sagas) == {}


async def test_an_adopted_intent_that_goes_forward_takes_again_what_it_gave_up(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("hold")
    handle = await sagas.start(request(claim("changed", ANNA), find("hold", ANNA), claim("planned", BORIS)))
    await gate.arrived()
    await handle.terminate("a test")
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    await Sweep(sagas.client, sagas.engine.database, settings).run()
    gate.open()
    again: Handle = sagas.client.get_workflow_handle(handle.id)
    sagas.handles.append(again)
    await sagas.waiting(again)

    assert (await sagas.update(again, "resolve", resolution("forward"))).accepted
    assert outcome(await sagas.result(again)) == COMMITTED


async def test_a_cancelled_intent_gives_its_place_up(sagas: Sagas) -> None:
    first, release = await holder(sagas, ANNA)
    second = await sagas.start(request(claim("second", ANNA)))
    await waiting(sagas, 1)

    await second.cancel()
    envelope = await sagas.result(second)

    assert outcome(envelope) == ("NOT_APPLIED", "cancelled")
    await waiting(sagas, 0)
    release.set()
    assert outcome(await sagas.result(first)) == COMMITTED


async def test_what_an_operator_takes_away_is_free_and_its_holder_is_refused_at_its_next_step(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("hold")
    handle = await sagas.start(request(claim("changed", ANNA), find("hold", ANNA), claim("next", BORIS)))
    await gate.arrived()
    waits = await sagas.start(request(claim("waits", ANNA)))
    await waiting(sagas, 1)

    taken = await locks.unlock(
        sagas.engine.database, f"book:{ANNA}", tenant="bank", operator="operator", reason="it hangs"
    )

    assert outcome(await sagas.result(waits)) == COMMITTED
    gate.open()
    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert error(envelope) is Reason.RESOURCE_LOCKED
    assert [(row["intent_id"], row["epoch"]) for row in taken] == [(envelope.meta.intent_id, 2)]
    assert "next" not in landed(sagas)
    assert sagas.one("select actor from backstay.audit_log where kind = 'unlocked'")["actor"] == "operator"


async def test_unlocking_what_nobody_holds_or_another_tenants_changes_nothing(sagas: Sagas) -> None:
    handle, release = await holder(sagas, ANNA)

    for resource, tenant in ((f"book:{ANNA}", "other-bank"), (f"book:{BORIS}", "bank")):
        assert await locks.unlock(sagas.engine.database, resource, tenant=tenant, operator="o", reason="") == []

    release.set()
    assert outcome(await sagas.result(handle)) == COMMITTED


async def test_why_shows_who_holds_what_and_the_command_that_takes_it_away(sagas: Sagas) -> None:
    first, release = await holder(sagas, ANNA)
    second = await sagas.start(request(claim("second", ANNA)))
    await waiting(sagas, 1)
    third = await sagas.start(request(claim("third", ANNA)))
    await waiting(sagas, 2)
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)
    ids = [(await sagas.status(handle)).meta.intent_id or "" for handle in (second, third)]

    async with Door.of(sagas.client, sagas.engine, settings) as door:
        outlooks = [await door.why("bank", intent_id) for intent_id in ids]

    release.set()
    holding = (await sagas.result(first)).meta.intent_id
    has_it = f"book:{ANNA}: {holding} holds it EXCLUSIVE (by agent for customer)"
    asked = f"book:{ANNA}: {ids[0]} asked before, EXCLUSIVE (by agent for customer)"
    assert [outlook.blocked_by for outlook in outlooks] == [has_it, f"{has_it}; {asked}"]
    assert f"backstay unlock book:{ANNA}" in [option.command for option in outlooks[0].options]
    assert [outcome(await sagas.result(handle)) for handle in (second, third)] == [COMMITTED] * 2


async def test_nothing_is_sent_anywhere_before_its_lock_is_had(
    temporal_client: Client, database_url: str, task_queue: str
) -> None:
    hand = RemoteTool(
        contract=replace(SHIP, name="hand_sample_parcel", resources=(book_use("book_id", LockMode.EXCLUSIVE),)),
        execute=ship,
        lookup=look,
        compensate=bring_back,
    )
    pack = Pack(name="hands", tools=(hand,))
    arguments = {"receiver": "hand", "weight_grams": 500, "book_id": ANNA}
    async with courier() as office, lockers(temporal_client, database_url, task_queue, Policy(), pack) as sagas:
        first, release = await holder(sagas, ANNA)
        second = await sagas.start(request({"step_id": "hand", "tool": "hand_sample_parcel", "arguments": arguments}))
        await waiting(sagas, 1)

        assert office.asked("send", "hand") == []
        assert sagas.rows("select 1 from backstay.attempts") == []
        release.set()

        assert outcome(await sagas.result(first)) == outcome(await sagas.result(second)) == COMMITTED
        assert len(office.asked("send", "hand")) == 1
