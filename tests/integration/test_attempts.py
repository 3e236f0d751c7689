"""Attempt rows and lookups on a real PostgreSQL: what is certain, what is not, and what may follow from it."""

from collections.abc import AsyncGenerator

import pytest

from activities.attempts import attempt_of, fence, land
from activities.database import Transaction
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import ParkReason
from tests.support.courier import PACK, Courier, How, courier, parcel
from tests.support.desk import Desk, Desked, at_desk
from worker.check import check


@pytest.fixture
async def office() -> AsyncGenerator[Courier]:
    async with courier() as made:
        yield made


@pytest.fixture
async def desk(office: Courier, database_url: str) -> AsyncGenerator[Desk]:
    del office  # open before a tool looks for it
    async with at_desk(database_url, packs=(PACK,)) as made:
        yield made


async def refused(intent: Desked, step_id: str) -> Reason:
    with pytest.raises(SagaError) as error:
        await intent.send(step_id)
    return error.value.reason


def attempt(desk: Desk) -> dict[str, object]:
    return desk.one("select state, sends from backstay.attempts")


def past_its_window(desk: Desk) -> None:
    desk.rows("update backstay.attempts set in_flight_until = now() - interval '1 second'")


async def broken(desk: Desk) -> set[str]:
    return {one.name.split()[0] for one in (await check(desk.database_url)).checks if not one.ok}


@pytest.mark.situation(6, 14)
async def test_the_attempt_and_the_spent_approval_are_committed_before_the_call(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "drop request")
    intent = await desk.intent(parcel("a", "sign"))
    await intent.decide()

    assert await refused(intent, "a") is Reason.OUTCOME_UNKNOWN

    assert attempt(desk) == {"state": "UNKNOWN", "sends": 1}
    assert desk.count("backstay.approval_consumptions") == 1
    assert intent.noted()[-2:] == ["sent", "outcome_unknown"]


@pytest.mark.situation(14)
async def test_an_approval_is_spent_once_for_all_sendings(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "drop request")
    intent = await desk.intent(parcel("a", "sign"))
    await intent.decide()
    await refused(intent, "a")

    await intent.send("a")

    assert attempt(desk) == {"state": "LANDED", "sends": 2}
    assert desk.count("backstay.approval_consumptions") == 1
    assert await broken(desk) == set()


async def test_without_its_approval_nothing_is_sent(desk: Desk, office: Courier) -> None:
    intent = await desk.intent(parcel("a", "sign"))

    assert await refused(intent, "a") is Reason.APPROVAL_MISSING

    assert office.requests == []
    assert desk.count("backstay.attempts") == 0


async def test_a_repeat_gets_the_stored_answer(desk: Desk, office: Courier) -> None:
    intent = await desk.intent(parcel("a"))

    first, again = await intent.send("a"), await intent.send("a")

    assert first == again
    assert len(office.requests) == 1


@pytest.mark.parametrize("shut", ["kill switch", "deadline", "phase"])
async def test_where_nothing_is_sent_again_an_open_question_stays_one(desk: Desk, office: Courier, shut: str) -> None:
    office.does("send", "a", "drop request")
    office.always("look", "a", "drop request")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")

    match shut:
        case "kill switch":
            desk.rows("insert into backstay.kill_switches values ('all', '', 'stop', 'me')")
        case "deadline":
            desk.rows("update backstay.intents set deadline_at = now() - interval '1 second'")
        case _:
            await intent.close()

    assert await refused(intent, "a") is Reason.OUTCOME_UNKNOWN
    assert len(office.asked("send", "a")) == 1


async def test_a_kill_switch_stops_what_was_never_sent(desk: Desk, office: Courier) -> None:
    intent = await desk.intent(parcel("a"))
    desk.rows("insert into backstay.kill_switches values ('all', '', 'stop', 'me')")

    assert await refused(intent, "a") is Reason.KILL_SWITCH_ON
    assert office.requests == []


async def test_not_landed_is_certain_only_when_it_was_asked_after_the_window(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a", "carry"))
    await refused(intent, "a")

    early = await intent.look("a")
    past_its_window(desk)
    late = await intent.look("a")

    assert (early.state, early.may_resend) == ("UNKNOWN", False)
    assert (late.state, late.may_resend) == ("NOT_LANDED", True)
    assert attempt(desk) == {"state": "NOT_LANDED", "sends": 1}


async def test_a_step_that_was_never_sent_certainly_did_not_land(desk: Desk, office: Courier) -> None:
    intent = await desk.intent(parcel("a"))

    assert (await intent.look("a")).state == "NOT_LANDED"
    assert office.requests == []


async def test_what_was_certainly_not_sent_is_as_it_was_before(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "busy", "drop request", "busy")
    office.always("look", "a", "drop request")
    intent = await desk.intent(parcel("a"))

    assert await refused(intent, "a") is Reason.DEPENDENCY_DOWN
    assert attempt(desk) == {"state": "NOT_LANDED", "sends": 0}
    assert await refused(intent, "a") is Reason.OUTCOME_UNKNOWN
    assert await refused(intent, "a") is Reason.DEPENDENCY_DOWN

    assert attempt(desk) == {"state": "UNKNOWN", "sends": 1}


async def test_a_refusal_is_stored_and_said_again(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "refuse")
    intent = await desk.intent(parcel("a"))

    assert await refused(intent, "a") is Reason.WRONG_STATE
    assert await refused(intent, "a") is Reason.WRONG_STATE

    assert len(office.requests) == 1
    assert attempt(desk)["state"] == "REFUSED"
    assert (await intent.look("a")).error is not None


async def test_on_the_way_back_what_is_certain_is_fenced(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    closed = await intent.close()
    past_its_window(desk)

    seen = await intent.look("a", closing=True)

    assert closed.unknown == ("a",)
    assert (seen.state, seen.may_resend) == ("NOT_LANDED", False)
    assert intent.effects() == {"a/execute": "TOMBSTONE"}
    assert (await intent.settle()).phase == "NOT_APPLIED"
    assert await broken(desk) == set()


async def test_nothing_is_settled_while_an_outcome_is_unknown(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    await intent.close()

    assert (await intent.settle()).parked is ParkReason.OUTCOME_UNKNOWN


async def test_a_pivot_that_may_have_landed_is_not_closed_over(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a", "gift"))
    await refused(intent, "a")

    closed = await intent.close()

    assert (closed.pivot_unknown, closed.standing.phase) == (True, "ADMITTED")


async def _answer_late(intent: Desked, *, fenced: bool) -> None:
    """Let the call's own answer arrive only now, and before it, if so, a fence."""
    tool, key = intent.remote("a"), intent.call("a").step_key
    output = {"parcel_number": 1, "receiver": "a", "weight_grams": 500}

    async def work(transaction: Transaction, *, landing: bool) -> None:
        row = await transaction.one("select * from backstay.intents where intent_key = %s", (intent.plan.intent_key,))
        found = await attempt_of(transaction, tool.contract, key, lock=True)
        assert row is not None
        assert found is not None
        if landing:
            await land(transaction, tool.contract, row, found, output)
        else:
            await fence(transaction, found)

    if fenced:
        await intent.desk.database.run(lambda transaction: work(transaction, landing=False))
    await intent.desk.database.run(lambda transaction: work(transaction, landing=True))


async def test_what_lands_against_its_tombstone_is_live_and_parks_the_intent(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    await intent.close()

    await _answer_late(intent, fenced=True)

    assert intent.effects() == {"a/execute": "LANDED"}
    assert intent.noted()[-2:] == ["effect", "landed_late"]
    assert (await intent.settle()).parked is ParkReason.MISMATCH


async def test_what_lands_after_its_intent_was_over_is_noted_and_found_by_the_check(
    desk: Desk, office: Courier
) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    await intent.close()
    past_its_window(desk)
    await intent.look("a", closing=True)
    await intent.settle()

    await _answer_late(intent, fenced=False)

    assert intent.row()["phase"] == "NOT_APPLIED"
    assert intent.noted()[-1] == "landed_late"
    assert await broken(desk) == {"3j"}


async def test_an_answer_about_an_earlier_sending_decides_nothing(
    desk: Desk, office: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.does("send", "a", "late")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    past_its_window(desk)
    asked = office.answer

    def sent_again_meanwhile(request: dict[str, object]) -> dict[str, object] | None:
        desk.rows("update backstay.attempts set sends = sends + 1")
        return asked(request)

    monkeypatch.setattr(office, "answer", sent_again_meanwhile)

    assert (await intent.look("a")).state == "UNKNOWN"


async def test_a_compensation_that_is_not_known_to_be_needed_is_refused(desk: Desk, office: Courier) -> None:
    office.does("send", "a", "drop reply")
    intent = await desk.intent(parcel("a"))
    await refused(intent, "a")
    await intent.close()

    with pytest.raises(SagaError) as error:
        await intent.bring_back("a")

    assert error.value.reason is Reason.OUTCOME_UNKNOWN
    assert office.asked("return", "a") == []


async def test_all_intents_share_the_compensations_of_a_downstream(desk: Desk) -> None:
    one, two = await desk.intent(parcel("a", "trickle")), await desk.intent(parcel("b", "trickle"))
    await one.send("a")
    await two.send("b")
    await one.close()
    await two.close()
    await one.bring_back("a")
    desk.rows("update backstay.compensation_rates set minute = minute + interval '1 minute'")  # no minute ends here

    with pytest.raises(SagaError) as error:
        await two.bring_back("b")
    desk.rows("update backstay.compensation_rates set minute = minute - interval '5 minutes'")

    assert error.value.reason is Reason.RATE_LIMITED
    assert 0 < error.value.info.details["retry_after_seconds"] <= 120
    assert (await two.bring_back("b")).undone
    assert desk.one("select sent from backstay.compensation_rates") == {"sent": 1}


async def test_a_repeated_compensation_is_told_and_not_sent(desk: Desk, office: Courier) -> None:
    intent = await desk.intent(parcel("a"))
    await intent.send("a")
    await intent.close()

    first, again = await intent.bring_back("a"), await intent.bring_back("a")

    assert first == again
    assert len(office.asked("return", "a")) == 1
    assert await broken(desk) == set()


async def _unknown_and_parked(desk: Desk, office: Courier, how: How) -> Desked:
    """A parcel that was sent once, of which nobody could say whether it went out."""
    office.does("send", "a", how)
    office.always("look", "a", "drop request")
    intent = await desk.intent(parcel("a", "carry"))
    await refused(intent, "a")
    await intent.park(ParkReason.OUTCOME_UNKNOWN, "a")
    return intent


async def test_what_landed_cannot_be_skipped(desk: Desk, office: Courier) -> None:
    intent = await _unknown_and_parked(desk, office, "drop reply")
    office.always("look", "a", None)

    answers = [await intent.resolve("skip", "a"), await intent.resolve("skip", "a", resolution_id="r2")]
    going_on = await intent.resolve("retry", "a", resolution_id="r3")

    for answer in answers:
        assert not answer.accepted
        assert answer.error is not None
        assert "it has landed as #" in answer.error.message
        assert office.asked("send", "a")[0] in answer.error.message, "the key that the downstream knows"
    assert intent.effects() == {"a/execute": "LANDED"}
    assert office.kept() == {"a": 1}
    assert going_on.accepted
    assert await broken(desk) == set()


@pytest.mark.parametrize("lookups", ["down", "back"])
async def test_what_was_carried_out_otherwise_cannot_be_skipped(desk: Desk, office: Courier, lookups: str) -> None:
    intent = await _unknown_and_parked(desk, office, "wrong")
    if lookups == "back":
        office.always("look", "a", "wrong")

    answer = await intent.resolve("skip", "a")

    assert not answer.accepted
    assert answer.error is not None
    assert "weight_grams: asked 500, answered 501" in answer.error.message
    assert intent.row()["parked_reason"] == "OUTCOME_UNKNOWN"
    assert attempt(desk)["state"] == "UNKNOWN"


async def test_what_certainly_did_not_land_is_skipped_and_fenced_without_residue(desk: Desk, office: Courier) -> None:
    intent = await _unknown_and_parked(desk, office, "drop request")
    office.always("look", "a", None)
    past_its_window(desk)

    answer = await intent.resolve("skip", "a")

    assert (answer.accepted, answer.residue) == (True, None)
    assert intent.effects() == {"a/execute": "TOMBSTONE"}
    assert attempt(desk)["state"] == "FENCED"
    assert await broken(desk) == set()


async def test_what_nobody_can_say_is_skipped_and_its_report_tells_that_it_may_have_landed(
    desk: Desk, office: Courier
) -> None:
    intent = await _unknown_and_parked(desk, office, "drop reply")

    answer = await intent.resolve("skip", "a", evidence="the courier's office is closed for good")
    ended = await intent.settle()

    key = office.asked("send", "a")[0]
    assert answer.accepted
    assert ended.report is not None
    (step,) = ended.report.steps
    assert (ended.phase, step.state) == ("NOT_APPLIED", "SUPERSEDED")
    assert step.residue == answer.residue
    for told in ("may have landed: sent once to courier", key, "may land until", "did not answer", "closed for good"):
        assert told in (step.residue or "")
    noted = desk.one("select result from backstay.audit_log where kind = 'resolution'")["result"]
    assert key in noted
    assert office.kept() == {"a": 1}
    assert await broken(desk) == set()


async def test_what_lands_against_a_skip_is_an_effect_and_its_residue_is_gone(desk: Desk, office: Courier) -> None:
    intent = await _unknown_and_parked(desk, office, "late")
    await intent.resolve("skip", "a")

    await _answer_late(intent, fenced=False)

    assert desk.one("select state, residue from backstay.effects") == {"state": "LANDED", "residue": None}
    assert (await intent.settle()).parked is ParkReason.MISMATCH


@pytest.mark.parametrize("nothing", ["", " \n", " \u200b", "\u2060\ufeff", "\u3164", "\u2800 \u00ad"])
async def test_evidence_of_which_nothing_is_seen_is_none(desk: Desk, office: Courier, nothing: str) -> None:
    intent = await _unknown_and_parked(desk, office, "drop request")

    unsaid = await intent.resolve("skip", "a", evidence=nothing)
    said = await intent.resolve("skip", "a", evidence=f"{nothing}\u4e0d")

    assert (unsaid.accepted, said.accepted) == (False, True)
    assert unsaid.error is not None
    assert "needs --evidence" in unsaid.error.message
