"""Steps whose amount, payee or source is bound, on real servers: graded when it is known, and asked about then."""

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from activities.barrier import execute_step
from activities.packs.ledger.holds import FREEZE_ACCOUNT_FUNDS
from contracts.base import JsonObject, JsonValue
from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.saga import Claim, StepCall
from tests.support.sagas import Handle, Sagas, approval, outcome, request, serve, states
from tests.support.samples import note
from worker import listings
from worker.answers import find

MONEY = {"currency": "EUR", "reason_code": "PURCHASE"}
RICH, POOR, OTHER = "A00000001", "A00000003", "A00000002"
"""Of the principal: one with a fortune, one with 5000 cents and a limit of 1000; the third is somebody else's."""


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


def read(account: str, *needs: str) -> JsonObject:
    return {"step_id": "read", "tool": "check_account_balance", "arguments": {"account_id": account}} | {
        "needs": list(needs)
    }


def freeze(amount: JsonValue, account: str = RICH, *needs: str) -> JsonObject:
    arguments = {**MONEY, "account_id": account, "amount_cents": amount}
    return {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": arguments, "needs": list(needs)}


def debit(amount: JsonValue) -> JsonObject:
    more = {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": "S00000002", "amount_cents": amount}
    return {"step_id": "debit", "tool": "debit_frozen_funds", "arguments": {**MONEY, **more}, "needs": ["freeze"]}


def transfer(step_id: str, source: JsonValue, target: JsonValue, amount: JsonValue = 400) -> JsonObject:
    more = {"from_account_id": source, "to_account_id": target, "amount_cents": amount}
    arguments = {"currency": "EUR", "reason_code": "GIFT", **more}
    return {"step_id": step_id, "tool": "transfer_customer_funds", "arguments": arguments}


AVAILABLE: JsonValue = {"$from": "read.available_cents"}
LEFT: JsonValue = {"$from": "freeze.available_cents"}


def grades(sagas: Sagas) -> dict[str, str]:
    return {row["step_id"]: row["duty"] for row in sagas.rows("select step_id, duty from backstay.late_grades")}


def late_card(card: Envelope, sagas: Sagas, step_id: str, verdict: str = "approve") -> dict[str, object]:
    """A decision about a step that was graded late, by its own digest."""
    found = sagas.one(
        "select digest from backstay.late_grades join backstay.intents using (intent_key)"
        " where intent_id = %s and step_id = %s",
        card.meta.intent_id,
        step_id,
    )
    return approval(card, verdict, plan_digest=found["digest"], step_id=step_id, decision_id=f"d-{verdict}-{step_id}")


async def asked(sagas: Sagas, *steps: JsonObject) -> tuple[Handle, Envelope]:
    handle = await sagas.start(request(*steps))
    return handle, await sagas.waiting(handle)


async def test_a_bound_amount_below_the_threshold_runs_and_nobody_is_asked(sagas: Sagas) -> None:
    envelope = await sagas.run(read(POOR), freeze(AVAILABLE, RICH, "read"), debit(AVAILABLE))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert grades(sagas) == {"freeze": "NONE", "debit": "NONE"}
    assert sagas.one("select amount_cents from ledger.captures") == {"amount_cents": 5_000}
    assert sagas.rows("select * from backstay.approval_requests") == []


async def test_a_named_function_of_outputs_is_graded_by_what_it_gives(sagas: Sagas) -> None:
    both = {"$fn": "sum_cents", "of": [AVAILABLE, {"$from": "first.amount_cents"}, 7]}
    first = {**freeze(400), "step_id": "first"}

    envelope = await sagas.run(first, read(POOR), freeze(both, RICH, "first", "read"))

    assert outcome(envelope) == ("COMMITTED", "none")
    assert [row["amount_cents"] for row in sagas.rows("select amount_cents from ledger.holds order by hold_id")] == [
        400,
        5_407,
    ]


async def test_what_reading_alone_tells_is_asked_before_anything_is_written(sagas: Sagas) -> None:
    handle, card = await asked(sagas, {**note("beside"), "needs": []}, read(RICH), freeze(AVAILABLE, RICH, "read"))

    assert sagas.effects(card) == {}
    assert states(card) == {"beside": "PLANNED", "read": "DONE", "freeze": "AWAITING_APPROVAL"}
    await sagas.update(handle, "decide", late_card(card, sagas, "freeze"))

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMMITTED", "none")
    assert set(sagas.effects(envelope)) == {"beside", "freeze"}


async def test_above_the_threshold_nothing_more_is_held_until_a_person_agrees(sagas: Sagas) -> None:
    handle, card = await asked(
        sagas,
        freeze(400),
        {**transfer("move", RICH, POOR, LEFT), "needs": ["freeze"]},
        {**note("n"), "needs": ["freeze"]},
    )

    assert sagas.effects(card) == {"freeze": "LANDED"}
    (shown,) = (await listings.approvals(sagas.engine.database, "bank")).data["approvals"]  # type: ignore[index]
    assert (shown["step_id"], shown["arguments"]["amount_cents"]) == ("move", 99_999_600)
    assert shown["plan_digest"] != (card.data or {})["plan_digest"]
    answer = await sagas.update(handle, "decide", late_card(card, sagas, "move"))

    envelope = await sagas.result(handle)
    assert (answer.accepted, outcome(envelope)) == (True, ("COMMITTED", "none"))
    assert sagas.one("select count(*) as spent from backstay.approval_consumptions")["spent"] == 1


async def test_a_denied_late_step_takes_back_what_landed(sagas: Sagas) -> None:
    handle, card = await asked(sagas, freeze(400), {**transfer("move", RICH, POOR, LEFT), "needs": ["freeze"]})

    await sagas.update(handle, "decide", late_card(card, sagas, "move", "deny"))

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMPENSATED", "denied")
    assert sagas.effects(envelope) == {"freeze": "COMPENSATED"}
    assert sagas.one("select held_cents from ledger.accounts where account_id = %s", RICH)["held_cents"] == 0


async def test_a_decision_that_names_the_plan_alone_says_nothing_about_a_late_step(sagas: Sagas) -> None:
    handle, card = await asked(sagas, read(RICH), freeze(AVAILABLE, RICH, "read"))

    blind = await sagas.update(handle, "decide", approval(card))
    named = await sagas.update(handle, "decide", approval(card, step_id="freeze", decision_id="d-named"))

    assert (blind.accepted, named.accepted) == (False, False)
    assert named.error is not None
    assert named.error.code is Reason.DECISION_INVALID
    assert sagas.effects(card) == {}


@pytest.mark.slow
async def test_a_decision_cannot_come_before_the_grade(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("first")
    handle = await sagas.start(request(note("first"), read(RICH, "first"), freeze(AVAILABLE, RICH, "read")))
    await gate.arrived()
    card = await sagas.waiting(handle, lambda envelope: (envelope.data or {}).get("plan_digest") is not None)

    early = await sagas.update(handle, "decide", approval(card, step_id="freeze"))
    gate.open()

    assert not early.accepted
    assert "AWAITING_APPROVAL" in states(await sagas.waiting(handle)).values()


async def test_what_was_paid_outright_before_is_a_duplicate_once_the_amount_is_known(sagas: Sagas) -> None:
    await sagas.result(await sagas.start(request(freeze(5_000), business_reference=None)))

    handle = await sagas.start(request(read(POOR), freeze(AVAILABLE, RICH, "read"), business_reference=None))
    card = await sagas.waiting(handle)

    known = await find(sagas.engine.database, "bank", card.meta.intent_id or "")
    assert states(card)["freeze"] == "AWAITING_APPROVAL"
    assert [warning.partition(":")[0] for warning in known.warnings()] == ["freeze"]
    assert "POSSIBLE_DUPLICATE" in sagas.one("select reason from backstay.approval_requests")["reason"]


async def test_what_was_paid_by_a_binding_before_is_a_duplicate_of_the_same_said_outright(sagas: Sagas) -> None:
    bound = request(read(POOR), freeze(AVAILABLE, RICH, "read"), business_reference=None)
    assert outcome(await sagas.result(await sagas.start(bound))) == ("COMMITTED", "none")

    card = await sagas.waiting(await sagas.start(request(freeze(5_000), business_reference=None)))

    assert states(card)["freeze"] == "AWAITING_APPROVAL"


async def test_money_of_somebody_else_is_refused_and_what_landed_is_taken_back(sagas: Sagas) -> None:
    handle, card = await asked(
        sagas, transfer("pay", RICH, OTHER), transfer("steal", {"$from": "pay.to_account_id"}, RICH)
    )
    await sagas.update(handle, "decide", approval(card))

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert states(envelope) == {"pay": "COMPENSATED", "steal": "REFUSED"}
    assert envelope.error is not None
    assert envelope.error.code is Reason.NOT_OWNER


async def test_a_bound_payee_who_is_somebody_else_is_asked_about(sagas: Sagas) -> None:
    handle, card = await asked(
        sagas, transfer("one", RICH, OTHER), transfer("two", RICH, {"$from": "one.to_account_id"})
    )
    await sagas.update(handle, "decide", approval(card))

    second = await sagas.waiting(handle, lambda envelope: states(envelope).get("two") == "AWAITING_APPROVAL")
    assert sagas.effects(second) == {"one": "LANDED"}
    await sagas.update(handle, "decide", late_card(second, sagas, "two"))

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_a_late_amount_over_the_accounts_limit_is_refused_and_what_landed_is_taken_back(sagas: Sagas) -> None:
    envelope = await sagas.run(note("first"), read(POOR, "first"), freeze(AVAILABLE, POOR, "read"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert envelope.error is not None
    assert envelope.error.code is Reason.LIMIT_EXCEEDED
    assert sagas.notes() == {"first": False}
    assert grades(sagas) == {}


async def test_a_late_step_that_nobody_decides_about_expires_and_takes_back_what_landed(
    temporal_client: Client, database_url: str, task_queue: str
) -> None:
    async with serve(temporal_client, database_url, task_queue, Policy(approval_expiry_seconds=1)) as sagas:
        envelope = await sagas.run(freeze(400), {**transfer("move", RICH, POOR, LEFT), "needs": ["freeze"]})

    assert outcome(envelope) == ("COMPENSATED", "expired")
    assert sagas.effects(envelope) == {"freeze": "COMPENSATED"}


async def test_a_decision_about_a_late_step_after_its_time_changes_nothing(sagas: Sagas) -> None:
    handle, card = await asked(sagas, freeze(400), {**transfer("move", RICH, POOR, LEFT), "needs": ["freeze"]})

    sagas.rows("update backstay.approval_requests set expires_at = now()")
    answer = await sagas.update(handle, "decide", late_card(card, sagas, "move"))
    await sagas.update(handle, "cancel", {"reason": "too late", "requested_by": "tester"})

    assert not answer.accepted
    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "cancelled")


@pytest.mark.parametrize(
    "damage",
    [
        "update backstay.late_grades set arguments = replace(arguments, '100000000', '5')",
        "delete from backstay.late_grades",
    ],
)
async def test_a_barrier_lets_no_late_step_through_without_the_grade_of_its_very_arguments(
    sagas: Sagas, damage: str
) -> None:
    handle, card = await asked(sagas, read(RICH), freeze(AVAILABLE, RICH, "read"))
    decision = late_card(card, sagas, "freeze")
    await sagas.update(handle, "decide", decision)
    first = await sagas.result(handle)

    step_key = sagas.one("select step_key from backstay.effects")["step_key"]
    sagas.rows("delete from backstay.approval_consumptions")
    sagas.rows("delete from backstay.effects")
    sagas.rows("update backstay.intents set phase = 'ADMITTED', final_at = null, report = null")
    sagas.rows(damage)
    row = sagas.intent(first)
    claim = Claim(
        intent_key=row["intent_key"], workflow_id=row["workflow_id"], run_id=row["run_id"], epoch=row["epoch"]
    )
    arguments = {**MONEY, "account_id": RICH, "amount_cents": 100_000_000}
    call = StepCall(claim=claim, step_id="freeze", arguments=arguments)
    assert call.step_key == step_key
    with pytest.raises(SagaError) as caught:
        await execute_step(sagas.engine.database, FREEZE_ACCOUNT_FUNDS, call)

    assert caught.value.reason is Reason.MISMATCH
    assert sagas.rows("select * from backstay.effects") == []
