"""What people say to sagas, and what they are told about them: definite answers before, during and after."""

import json

import pytest

from contracts.envelope import Envelope, Status
from contracts.errors import Phase, SagaError
from contracts.reasons import Reason
from contracts.saga import ParkReason
from tests.support.house import (
    ANNA,
    ANNAS,
    GATED_CENTS,
    OTHER_BANK,
    POOR,
    TENANT,
    House,
    freeze_and_debit,
    session,
    until,
)
from worker import listings, messages
from worker.answers import find
from worker.outlook import Outlook
from worker.sweep import Sweep


async def waiting(home: House) -> str:
    """Post an intent that waits for two decisions, and return its id."""
    answer = await home.door.post(freeze_and_debit(session(), amount_cents=GATED_CENTS), ANNA)
    assert answer.status_code == 202
    return str(answer.meta.intent_id)


async def ended(home: House, intent_id: str) -> Envelope:
    """Wait until an intent is over, and return its envelope."""
    await until(
        lambda: home.rows("select 1 from backstay.intents where intent_id = %s and final_at is not null", intent_id)
    )
    return await home.door.show(TENANT, intent_id)


def outcome_of(envelope: Envelope) -> str | None:
    return (envelope.data or {}).get("outcome")


def refused(error: pytest.ExceptionInfo[SagaError]) -> Reason:
    return error.value.reason


async def test_approving_lets_the_saga_run_and_saying_it_twice_is_once(home: House) -> None:
    intent_id = await waiting(home)

    one = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl", step_id="freeze")
    same = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl", step_id="freeze")
    rest = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl")
    final = await ended(home, intent_id)
    late = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl")

    assert {answer.status for answer in (one, same, rest, late)} == {Status.SUCCESS}
    assert outcome_of(final) == "COMMITTED"
    assert (late.data or {})["outcome"] == "COMMITTED"
    assert (
        len(
            home.rows(
                "select 1 from backstay.decisions join backstay.intents using (intent_key) where intent_id = %s",
                intent_id,
            )
        )
        == 2
    )


async def test_denying_ends_the_intent_and_comes_too_late_afterwards(home: House) -> None:
    intent_id = await waiting(home)

    await home.door.messages.decide(TENANT, intent_id, "deny", approver="carl", reason="not his money")
    final = await ended(home, intent_id)

    assert (outcome_of(final), (final.data or {})["cause"]) == ("NOT_APPLIED", "denied")
    with pytest.raises(SagaError) as late:
        await home.door.messages.decide(TENANT, intent_id, "approve", approver="dora")
    assert refused(late) is Reason.DECISION_LATE


async def test_a_decision_about_another_plan_or_of_the_agent_changes_nothing(home: House) -> None:
    intent_id = await waiting(home)

    other = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl", plan_digest="0" * 64)
    agents = await home.door.messages.decide(TENANT, intent_id, "approve", approver=ANNA.agent)
    step = await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl", step_id="refund")

    assert [answer.error and answer.error.code for answer in (other, agents, step)] == [
        Reason.DECISION_INVALID,
        Reason.NOT_ALLOWED,
        Reason.DECISION_INVALID,
    ]
    assert (await home.door.show(TENANT, intent_id)).status_code == 202


@pytest.mark.parametrize("approver", ["robot", "Robot", "ROBOT"])
async def test_the_agent_in_other_letters_is_the_agent(home: House, approver: str) -> None:
    intent_id = await waiting(home)

    answer = await home.door.messages.decide(TENANT, intent_id, "approve", approver=approver)

    assert answer.error is not None
    assert (answer.error.code, answer.error.phase) == (Reason.NOT_ALLOWED, Phase.APPROVAL)
    assert not home.rows(
        "select 1 from backstay.decisions join backstay.intents using (intent_key) where intent_id = %s", intent_id
    )


async def test_a_denial_is_told_with_who_and_why_to_everybody_who_asks(home: House) -> None:
    body = freeze_and_debit(session(), amount_cents=GATED_CENTS)
    intent_id = str((await home.door.post(body, ANNA)).meta.intent_id)
    await home.door.messages.decide(TENANT, intent_id, "deny", approver="carl", step_id="debit", reason="not our shop")

    shown = await ended(home, intent_id)
    posted = await home.door.post(body, ANNA)

    for answer in (shown, posted):
        assert answer.error is not None
        assert (answer.error.code, answer.error.message) == (
            Reason.APPROVAL_DENIED,
            "carl denied debit: not our shop",
        )
        assert answer.error.details == {"approver": "carl", "step_id": "debit", "reason": "not our shop"}


async def test_a_malformed_name_is_refused_with_its_field(home: House) -> None:
    intent_id = await waiting(home)

    with pytest.raises(SagaError) as error:
        await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl smith")

    assert refused(error) is Reason.ARGUMENTS_INVALID
    assert [field.path for field in error.value.info.fields] == ["approver"]


async def test_a_cancel_is_taken_once_and_told_as_taken_afterwards(home: House) -> None:
    intent_id = await waiting(home)

    first = await home.door.messages.cancel(TENANT, intent_id, requested_by="olga", reason="changed her mind")
    final = await ended(home, intent_id)
    again = await home.door.messages.cancel(TENANT, intent_id, requested_by="olga")

    assert (first.status, again.status) == (Status.SUCCESS, Status.SUCCESS)
    assert (outcome_of(final), (final.data or {})["cause"]) == ("NOT_APPLIED", "cancelled")


async def test_a_cancel_of_what_committed_comes_too_late(home: House) -> None:
    done = await home.door.post(freeze_and_debit(session()), ANNA)

    with pytest.raises(SagaError) as late:
        await home.door.messages.cancel(TENANT, str(done.meta.intent_id), requested_by="olga")

    assert refused(late) is Reason.TOO_LATE
    assert late.value.info.details["outcome"] == "COMMITTED"


async def test_nothing_is_said_to_another_tenants_intent(home: House) -> None:
    intent_id = await waiting(home)

    for say in (
        home.door.messages.cancel(OTHER_BANK.tenant, intent_id, requested_by="olga"),
        home.door.messages.decide(OTHER_BANK.tenant, intent_id, "approve", approver="carl"),
        home.door.messages.resolve(OTHER_BANK.tenant, intent_id, "close", operator="olga"),
        home.door.show(OTHER_BANK.tenant, intent_id),
        home.door.why(OTHER_BANK.tenant, intent_id),
    ):
        with pytest.raises(SagaError) as error:
            await say
        assert refused(error) is Reason.INTENT_NOT_FOUND


async def test_an_intent_that_was_cut_off_is_swept_up_by_nobody_but_the_sweep(home: House) -> None:
    intent_id = await waiting(home)
    await home.client.get_workflow_handle(intent_id).terminate("by a test")

    with pytest.raises(SagaError) as error:
        await home.door.messages.cancel(TENANT, intent_id, requested_by="olga")
    outlook = await home.door.why(TENANT, intent_id)

    assert refused(error) is Reason.INTERRUPTED
    assert "sweep" in error.value.info.message
    assert (outlook.run, [option.command for option in outlook.options]) == ("none", ["backstay sweep"])


async def test_a_silent_worker_is_an_unknown_outcome_not_a_refusal(
    idle_home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ANSWER_SECONDS_MAX", 0.3)
    posted = await idle_home.door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)

    with pytest.raises(SagaError) as error:
        await idle_home.door.messages.cancel(TENANT, str(posted.meta.intent_id), requested_by="olga")

    assert refused(error) is Reason.OUTCOME_UNKNOWN


async def test_an_intent_is_shown_and_explained_before_its_admission(idle_home: House) -> None:
    posted = await idle_home.door.post(freeze_and_debit(session()), ANNA, wait_seconds=0)
    intent_id = str(posted.meta.intent_id)

    shown = await idle_home.door.show(TENANT, intent_id)
    outlook = await idle_home.door.why(TENANT, intent_id)

    assert (shown.status_code, outcome_of(shown)) == (202, "PENDING")
    assert (outlook.phase, outlook.run) == (None, "open")
    assert outlook.blocked_by is not None


async def test_a_refusal_that_claimed_nothing_is_still_shown(home: House) -> None:
    refused_post = await home.door.post(freeze_and_debit(session(), account=POOR, amount_cents=900), ANNA)
    intent_id = str(refused_post.meta.intent_id)

    shown = await home.door.show(TENANT, intent_id)
    outlook = await home.door.why(TENANT, intent_id)

    assert shown.error is not None
    assert shown.error.code is Reason.FUNDS_INSUFFICIENT
    assert outlook.error == shown.error
    assert [option.command for option in outlook.options] == ["post it again"]


async def explained(home: House, intent_id: str) -> Outlook:
    return await home.door.why(TENANT, intent_id)


async def test_the_outlook_names_what_blocks_when_it_ends_and_what_to_type(home: House) -> None:
    intent_id = await waiting(home)

    outlook = await explained(home, intent_id)

    assert outlook.blocked_by == "a decision about debit, freeze"
    assert outlook.next_action_at is not None
    assert f"backstay approve {intent_id} freeze" in {option.command for option in outlook.options}


async def test_a_unique_beginning_of_an_id_is_enough_and_an_ambiguous_one_is_not_guessed(home: House) -> None:
    intent_id = await waiting(home)
    database = home.engine.database

    assert (await find(database, TENANT, intent_id[:14])).standing.intent_id == intent_id
    for wrong in ("-", "int_", "int_a", "%", "int_abc%", "int_ABCDEFGH"):
        with pytest.raises(SagaError) as error:
            await find(database, TENANT, wrong)
        assert refused(error) is Reason.ARGUMENTS_INVALID


async def test_lists_show_what_waits_and_only_to_its_tenant(home: House) -> None:
    intent_id = await waiting(home)
    database = home.engine.database

    cards = await listings.approvals(database, TENANT, limit=200)
    mine = await listings.intents(database, TENANT, state="open", limit=200)
    theirs = await listings.intents(database, OTHER_BANK.tenant, limit=200)

    asked = [card for card in (cards.data or {})["approvals"] if card["intent_id"] == intent_id]
    assert {card["step_id"] for card in asked} == {"freeze", "debit"}
    assert (
        asked[0]["plan_digest"]
        == home.rows("select plan_digest from backstay.intents where intent_id = %s", intent_id)[0]["plan_digest"]
    )
    assert intent_id in {line["intent_id"] for line in (mine.data or {})["intents"]}
    assert intent_id not in {line["intent_id"] for line in (theirs.data or {})["intents"]}


async def test_an_account_is_shown_only_to_its_tenant(home: House) -> None:
    page = await listings.account(home.engine.database, TENANT, ANNAS)

    assert (page.data or {})["principal"] == "anna"
    with pytest.raises(SagaError) as error:
        await listings.account(home.engine.database, OTHER_BANK.tenant, ANNAS)
    assert refused(error) is Reason.OBJECT_NOT_FOUND


async def cut_off(home: House) -> str:
    """Have an intent parked: its run is terminated, and the sweep starts one that adopts it."""
    intent_id = await waiting(home)
    await home.client.get_workflow_handle(intent_id).terminate("by a test")
    swept = await Sweep(home.client, home.engine.database, home.settings).run()
    assert intent_id in swept.adopted
    return intent_id


async def test_the_sweep_parks_what_was_cut_off_and_an_operator_closes_it(home: House) -> None:
    intent_id = await cut_off(home)
    outlook = await explained(home, intent_id)

    wrong = await home.door.messages.resolve(TENANT, intent_id, "retry", operator="olga", step_id="debit")
    taken = await home.door.messages.resolve(TENANT, intent_id, "close", operator="olga")
    final = await ended(home, intent_id)
    again = await find(home.engine.database, TENANT, intent_id)

    assert outlook.parked is ParkReason.INTERRUPTED
    assert {option.command for option in outlook.options} == {
        f"backstay resolve {intent_id} close",
        f"backstay resolve {intent_id} forward",
    }
    assert wrong.error is not None
    assert wrong.error.code is Reason.RESOLUTION_INVALID
    assert taken.status is Status.SUCCESS
    assert (outcome_of(final), (final.data or {})["cause"]) == ("NOT_APPLIED", "interrupted")
    assert again.standing.epoch == 2


async def test_an_operator_forwards_what_was_cut_off_and_its_people_are_still_asked(home: House) -> None:
    intent_id = await cut_off(home)

    await home.door.messages.resolve(TENANT, intent_id, "forward", operator="olga")
    shown = await home.door.show(TENANT, intent_id)
    await home.door.messages.decide(TENANT, intent_id, "approve", approver="carl")
    final = await ended(home, intent_id)

    assert shown.status_code == 202
    assert outcome_of(final) == "COMMITTED"


async def test_a_sweep_leaves_alone_what_is_carried(home: House) -> None:
    intent_id = await waiting(home)

    swept = await Sweep(home.client, home.engine.database, home.settings).run()

    assert swept.looked_at >= 1
    assert intent_id not in swept.started
    assert (await find(home.engine.database, TENANT, intent_id)).standing.epoch == 1


async def test_a_sweep_frees_overdue_holds(home: House) -> None:
    only_freeze = freeze_and_debit(session(), amount_cents=500).replace(b'"amount_cents": 500', b'"amount_cents": 700')
    intent = json.loads(only_freeze)
    intent["steps"] = intent["steps"][:1]
    await home.door.post(json.dumps(intent).encode(), ANNA)
    home.rows("update ledger.holds set expires_at = now() - interval '1 minute' where state = 'OPEN'")

    swept = await Sweep(home.client, home.engine.database, home.settings).run()

    assert swept.expired_holds == 1
    assert home.rows("select held_cents from ledger.accounts where account_id = %s", ANNAS) == [{"held_cents": 0}]
