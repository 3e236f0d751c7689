"""What people are told of a step that may have landed: all that is known of it, and never that nothing was sent."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.client import Client

from activities.tool import OutcomeUnknownError
from contracts.envelope import Envelope
from contracts.saga import ParkReason
from tests.support.courier import PACK, Courier, courier, parcel
from tests.support.desk import Desk, Desked, at_desk
from tests.support.house import until
from tests.support.opened import opened
from tests.support.sagas import CALLER, Handle, Sagas, cancellation, outcome, request, serve, states
from worker import listings
from worker.answers import Known, find
from worker.cli import views
from worker.cli.render import plain
from worker.outlook import Outlook, outlook_of


@pytest.fixture
async def office() -> AsyncGenerator[Courier]:
    async with courier() as made:
        yield made


@pytest.fixture
async def desk(office: Courier, database_url: str) -> AsyncGenerator[Desk]:
    del office  # open before a tool looks for it
    async with at_desk(database_url, packs=(PACK,)) as made:
        yield made


@pytest.fixture
async def sagas(office: Courier, temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    del office  # as above
    async with serve(temporal_client, database_url, task_queue, packs=(PACK,)) as served:
        yield served


async def unsure(desk: Desk, office: Courier, *, looked: bool = True) -> Desked:
    """A parcel that went out, of which nobody can say so."""
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    intent = await desk.intent(parcel("a", "carry"))
    with pytest.raises(OutcomeUnknownError):
        await intent.send("a")
    if looked:
        await intent.look("a")
    return intent


async def known_of(desk: Desk, intent: Desked) -> Known:
    return await find(desk.database, CALLER.tenant, intent.standing.intent_id)


async def between_looks(sagas: Sagas, handle: Handle) -> tuple[Known, Outlook]:
    """How an intent stands once its step was looked up in vain."""
    rows = await until(
        lambda: sagas.rows(
            "select intent_id from backstay.attempts join backstay.intents using (intent_key)"
            " where workflow_id = %s and known like '%%next_look_at%%'",
            handle.id,
        )
    )
    known = await find(sagas.engine.database, CALLER.tenant, rows[0]["intent_id"])
    return known, await outlook_of(sagas.client, known, [])


def text(view: Any, envelope: Envelope) -> str:  # noqa: ANN401 - a function of views
    return "".join(plain(one) for one in view(envelope))


async def test_between_two_lookups_an_outcome_is_shown_as_unknown_with_all_that_is_known(
    sagas: Sagas, office: Courier
) -> None:
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    handle = await sagas.start(request(parcel("a", "carry")))

    known, outlook = await between_looks(sagas, handle)
    shown = known.envelope()
    office.always("look", "a", None)

    attempt = sagas.one("select remote_key, in_flight_until from backstay.attempts")
    (step,) = (shown.data or {})["steps"]
    (question,) = outlook.unknown
    assert (step["state"], step["error"]["code"]) == ("UNKNOWN", "OUTCOME_UNKNOWN")
    assert f"sent once to courier under {attempt['remote_key']}" in step["error"]["message"]
    assert (shown.data or {})["waiting_for"] == "the outcome of a: whether it landed is not known"
    assert shown.meta.settles_at == attempt["in_flight_until"].isoformat(timespec="seconds")
    assert outlook.blocked_by == "the outcome of a: whether it landed is not known"
    assert (question.remote_key, question.sends) == (attempt["remote_key"], 1)
    assert question.next_look_at is not None
    assert question.patience_until > question.first_sent_at
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")
    assert office.told() == [("sent", "a")]


async def test_an_open_intent_waits_for_an_outcome_and_not_for_its_agent(sagas: Sagas, office: Courier) -> None:
    intent = await opened(sagas)
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    await intent.begin_adding(parcel("a", "carry"))

    known, outlook = await between_looks(sagas, intent.handle)
    office.always("look", "a", None)

    assert states(known.envelope()) == {"a": "UNKNOWN"}
    assert not known.is_at_rest
    assert outlook.blocked_by == "the outcome of a: whether it landed is not known"
    assert (await intent.commit()).outcome == "COMMITTED"


async def test_what_is_on_its_way_for_the_first_time_is_executing(desk: Desk, office: Courier) -> None:
    intent = await unsure(desk, office, looked=False)
    desk.rows("update backstay.attempts set state = 'SENT', in_flight_until = now() + interval '1 hour'")

    known = await known_of(desk, intent)

    assert states(known.envelope()) == {"a": "EXECUTING"}
    assert (known.unknown, known.envelope().meta.settles_at) == ((), None)


async def test_what_was_sent_by_a_worker_that_died_is_unknown_once_it_should_have_landed(
    desk: Desk, office: Courier
) -> None:
    intent = await unsure(desk, office, looked=False)
    desk.rows("update backstay.attempts set state = 'SENT', in_flight_until = now() - interval '1 second'")

    assert states((await known_of(desk, intent)).envelope()) == {"a": "UNKNOWN"}


async def test_a_parked_outcome_is_shown_with_its_key_and_what_was_seen(desk: Desk, office: Courier) -> None:
    intent = await unsure(desk, office)
    await intent.park(ParkReason.OUTCOME_UNKNOWN, "a")
    desk.rows("update backstay.intents set workflow_id = 'ended'")

    listed = text(views.parked, await listings.parked(desk.database, CALLER.tenant))

    key = office.asked("send", "a")[0]
    for told in (f"a may have landed: sent once to courier under {key}", "may land until", "the courier did not"):
        assert told in listed
    assert "next look" not in listed
    assert states((await known_of(desk, intent)).envelope()) == {"a": "UNKNOWN"}


async def test_what_an_operators_look_has_found_is_shown_as_landed(desk: Desk, office: Courier) -> None:
    intent = await unsure(desk, office)
    await intent.park(ParkReason.OUTCOME_UNKNOWN, "a")
    office.always("look", "a", None)
    await intent.resolve("skip", "a")

    known = await known_of(desk, intent)

    assert states(known.envelope()) == {"a": "DONE"}
    assert known.unknown == ()


async def test_what_was_skipped_is_shown_with_its_residue_before_the_intent_is_over(
    desk: Desk, office: Courier
) -> None:
    intent = await unsure(desk, office)
    await intent.park(ParkReason.OUTCOME_UNKNOWN, "a")
    await intent.resolve("skip", "a")

    envelope = (await known_of(desk, intent)).envelope()

    (step,) = (envelope.data or {})["steps"]
    assert step["state"] == "SUPERSEDED"
    assert step["residue"].startswith("may have landed: sent once to courier")


async def test_why_draws_all_that_is_known(sagas: Sagas, office: Courier) -> None:
    office.does("send", "a", "drop reply")
    office.always("look", "a", "drop request")
    handle = await sagas.start(request(parcel("a", "carry")))

    _, outlook = await between_looks(sagas, handle)
    drawn = text(views.outlook, listings.answer(outlook.model_dump(mode="json")))
    office.always("look", "a", None)
    await sagas.update(handle, "cancel", cancellation())

    for told in ("a may have landed: sent once to courier under", "next look: ", "patience until: "):
        assert told in drawn
    await sagas.result(handle)
