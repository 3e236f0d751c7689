"""What admission answers: a plan once and the same bytes for ever, or one named reason; on a real PostgreSQL.

Adoption, windows, occurrences and attempts are in test_admission.py.
"""

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from contracts.base import JsonObject
from contracts.envelope import Cause
from contracts.errors import Phase, SagaError
from contracts.intent import Caller
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.saga import IntentPhase, ParkReason
from tests.support.desk import Desk, at_desk, same_bytes
from tests.support.sagas import freeze_and_debit, request
from tests.support.samples import look, note


def freeze(account_id: str = "A00000001", amount_cents: int = 500, currency: str = "EUR", **more: Any) -> JsonObject:  # noqa: ANN401
    return {
        "step_id": "freeze",
        "tool": "freeze_account_funds",
        "arguments": {
            "account_id": account_id,
            "amount_cents": amount_cents,
            "currency": currency,
            "reason_code": "PURCHASE",
        },
        **more,
    }


async def refusal(desk: Desk, body: Any, **asking: str) -> SagaError:  # noqa: ANN401
    with pytest.raises(SagaError) as error:
        await desk.admit(body, **asking)
    return error.value


# --- once --------------------------------------------------------------------------------------------------------


async def test_a_repeat_by_the_same_run_gets_the_same_bytes_whatever_has_changed_since(desk: Desk) -> None:
    body = request(*freeze_and_debit())
    first = await desk.admit(body)
    desk.rows("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")
    desk.rows("update ledger.accounts set state = 'FROZEN' where account_id = 'A00000001'")

    again = await desk.admit(body)

    assert same_bytes(first, again)
    assert desk.count("backstay.intents") == 1
    assert desk.count("backstay.audit_log") == 1


async def test_the_plan_that_is_stored_is_the_plan_that_is_answered(desk: Desk) -> None:
    standing = await desk.admit(request(*freeze_and_debit()))

    row = desk.one("select plan, plan_digest from backstay.intents")
    assert standing.plan is not None
    assert row == {"plan": standing.plan.model_dump_json(), "plan_digest": standing.plan.digest}


async def test_the_proof_is_stored_with_the_plan_that_names_it_and_is_in_no_answer(desk: Desk) -> None:
    standing = await desk.admit(request(*freeze_and_debit()))

    row = desk.one("select proof, proof_digest from backstay.intents")
    assert standing.plan is not None
    assert (row["proof_digest"], sha256(row["proof"].encode()).hexdigest()) == (standing.plan.proof_digest,) * 2
    assert "prefixes" in row["proof"]
    assert "prefixes" not in standing.model_dump_json()


async def test_of_many_starts_at_once_one_claims_and_the_others_are_duplicates(desk: Desk) -> None:
    body = request(note("a"))

    standings = await asyncio.gather(
        *(desk.admit(body, workflow=f"w{number}", run=f"r{number}") for number in range(10))
    )

    assert sorted(standing.duplicate for standing in standings) == [False] + [True] * 9
    assert desk.count("backstay.intents") == 1


async def test_another_workflow_is_told_whose_it_is_and_writes_nothing(desk: Desk) -> None:
    body = request(note("a", "guard"))
    first = await desk.admit(body)
    before = (desk.rows("select * from backstay.intents"), desk.count("backstay.audit_log"))

    second = await desk.admit(body, workflow="other", run="run-9")

    assert (second.duplicate, second.intent_id) == (True, first.intent_id)
    assert (desk.rows("select * from backstay.intents"), desk.count("backstay.audit_log")) == before


async def test_a_new_run_of_the_workflow_adopts_and_parks_and_the_former_never_adopts_back(desk: Desk) -> None:
    body = request(note("a"))
    first = await desk.admit(body)

    adopted = await desk.admit(body, run="run-2")
    back = await desk.admit(body, run="run-1")

    assert (adopted.epoch, adopted.parked) == (first.epoch + 1, ParkReason.INTERRUPTED)
    assert back.duplicate
    assert desk.one("select run_id, former_run_ids from backstay.intents") == {
        "run_id": "run-2",
        "former_run_ids": ["run-1"],
    }


async def test_the_same_explicit_key_for_another_intent_is_refused(desk: Desk) -> None:
    await desk.admit(request(note("a"), idempotency_key="k-1"))

    error = await refusal(desk, request(note("b"), idempotency_key="k-1"), workflow="other")

    assert error.reason is Reason.KEY_REUSED
    assert desk.count("backstay.intents") == 1


async def test_an_explicit_key_is_each_principals_own(desk: Desk) -> None:
    await desk.admit(request(note("a"), idempotency_key="k-1"))
    other = Caller(tenant="bank", principal="somebody-else", agent="agent")

    standing = await desk.admit(request(note("b"), caller=other, idempotency_key="k-1"), workflow="other")

    assert not standing.duplicate
    assert desk.count("backstay.intent_aliases") == 2


async def test_of_two_intents_that_claim_one_explicit_key_at_once_one_wins(desk: Desk) -> None:
    async def claim(name: str) -> str:
        try:
            standing = await desk.admit(request(note(name), idempotency_key="k-1"), workflow=name)
        except SagaError as error:
            return error.reason.value
        return standing.phase.value

    answers = await asyncio.gather(*(claim(f"a{number}") for number in range(6)))

    assert answers.count("ADMITTED") == 1
    assert set(answers) <= {"ADMITTED", "KEY_REUSED", "IN_PROGRESS"}
    assert desk.count("backstay.intents") == 1


# --- rejections that claim nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (request(freeze(amount_cents=10**9)), Reason.FUNDS_INSUFFICIENT),
        (request(freeze("A00000003", amount_cents=1_001)), Reason.LIMIT_EXCEEDED),
        (request(note("a"), attempt=2), Reason.RETRY_NOT_ALLOWED),
        (request(note("a"), intent={"occurrence": 2}), Reason.OCCURRENCE_NOT_READY),
        (request({"step_id": "a", "tool": "nothing_like_this", "arguments": {}}), Reason.TOOL_UNKNOWN),
        (request(note("a", more=1)), Reason.ARGUMENTS_INVALID),
        (request(note("a", "seal"), note("b")), Reason.PLAN_UNSOUND),
        ([], Reason.ARGUMENTS_INVALID),
        (None, Reason.ARGUMENTS_INVALID),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
async def test_a_rejection_that_may_be_mended_or_retried_claims_nothing(
    desk: Desk,
    body: Any,  # noqa: ANN401
    reason: Reason,
) -> None:
    error = await refusal(desk, body)

    assert error.reason is reason
    assert desk.count("backstay.intents") == 0


async def test_funds_are_counted_over_all_steps_of_the_plan(desk: Desk) -> None:
    steps = [freeze("A00000003", amount_cents=900) | {"step_id": f"s{number}"} for number in range(6)]

    error = await refusal(desk, request(*steps))

    assert error.reason is Reason.FUNDS_INSUFFICIENT
    assert error.info.details["step_id"] == "s5"
    assert error.info.details["available_cents"] == 500


@pytest.mark.parametrize(
    ("scope", "subject"), [("all", ""), ("tenant", "bank"), ("agent", "agent"), ("tool", "write_sample_note")]
)
async def test_a_kill_switch_rejects_and_claims_nothing(desk: Desk, scope: str, subject: str) -> None:
    desk.rows("insert into backstay.kill_switches values (%s, %s, 'drill', 'tester')", scope, subject)

    error = await refusal(desk, request(note("a")))

    assert (error.reason, error.info.phase) == (Reason.KILL_SWITCH_ON, Phase.AUTHORIZATION)
    assert desk.count("backstay.intents") == 0


async def test_a_kill_switch_of_a_tool_lets_readings_and_other_tools_pass(desk: Desk) -> None:
    desk.rows("insert into backstay.kill_switches values ('tool', 'seal_sample_note', 'drill', 'tester')")

    standing = await desk.admit(request(look("r"), note("a")))

    assert standing.phase is IntentPhase.ADMITTED


# --- rejections that are final -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "reason", "phase"),
    [
        (freeze("A99999999"), Reason.OBJECT_NOT_FOUND, Phase.EXECUTION),
        (freeze("A00000009"), Reason.OBJECT_NOT_FOUND, Phase.EXECUTION),
        (freeze("A00000002"), Reason.NOT_OWNER, Phase.AUTHORIZATION),
        (freeze(currency="USD"), Reason.CURRENCY_MISMATCH, Phase.EXECUTION),
        (note("a", book_id="B00000005"), Reason.WRONG_STATE, Phase.EXECUTION),
    ],
    ids=["invented", "of another tenant", "of another principal", "currency", "state"],
)
async def test_a_rejection_that_nothing_can_mend_is_claimed_and_final(
    desk: Desk, step: JsonObject, reason: Reason, phase: Phase
) -> None:
    body = request(step)

    standing = await desk.admit(body)
    again = await desk.admit(body, workflow="other")

    assert (standing.phase, standing.cause) == (IntentPhase.NOT_APPLIED, Cause.REJECTED)
    assert standing.error is not None
    assert standing.error.code is reason
    assert standing.error.phase is phase
    assert (again.phase, again.error, again.duplicate) == (standing.phase, standing.error, True)
    assert desk.one("select phase, plan from backstay.intents") == {"phase": "NOT_APPLIED", "plan": None}


async def test_another_tenants_account_looks_like_one_that_does_not_exist(desk: Desk) -> None:
    invented = await desk.admit(request(freeze("A99999999")))
    foreign = await desk.admit(request(freeze("A00000009")), workflow="other")

    assert invented.error is not None
    assert foreign.error is not None
    assert invented.error.message.replace("A99999999", "A00000009") == foreign.error.message
    assert invented.error.model_dump(exclude={"message", "user_message", "details"}) == foreign.error.model_dump(
        exclude={"message", "user_message", "details"}
    )


# --- risk --------------------------------------------------------------------------------------------------------


async def test_an_amount_over_the_threshold_asks_and_one_at_it_does_not(desk: Desk) -> None:
    over = await desk.admit(request(freeze(amount_cents=1_000_001)))
    at = await desk.admit(request(freeze(amount_cents=1_000_000)), workflow="other")

    assert (over.ask.undecided, at.ask.undecided) == (("freeze",), ())
    assert over.ask.expires_in_seconds == 86_400
    asked = desk.one("select step_id, duty, reason, plan_digest from backstay.approval_requests")
    assert (asked["step_id"], asked["duty"], asked["plan_digest"]) == ("freeze", "ONE", over.plan_digest)
    assert "1000000 cents" in asked["reason"]


async def test_the_policys_thresholds_and_times_are_what_counts(database_url: str) -> None:
    policy = Policy(large_cents={"EUR": 100}, approval_expiry_seconds=60, intent_deadline_seconds=120)
    async with at_desk(database_url, policy) as desk:
        standing = await desk.admit(request(freeze(amount_cents=101)))

        assert standing.ask.expires_in_seconds == 60
        row = desk.one("select extract(epoch from deadline_at - admitted_at)::int as seconds from backstay.intents")
        assert row["seconds"] == 120


async def test_a_plan_that_needs_two_approvers_is_rejected_and_never_lowered(desk_url: str) -> None:
    async with at_desk(desk_url, Policy(large_cents={})) as desk:  # a currency without a threshold needs two
        standing = await desk.admit(request(freeze(amount_cents=5)))

        assert standing.phase is IntentPhase.NOT_APPLIED
        assert standing.error is not None
        assert standing.error.code is Reason.DUTY_NOT_AVAILABLE


async def test_a_second_occurrence_of_moving_money_asks(desk: Desk) -> None:
    body = request(freeze(), session="again")
    first = await desk.admit(body)
    desk.rows("update backstay.intents set phase = 'NOT_APPLIED', final_at = now(), report = '{}'")

    second = await desk.admit(request(freeze(), session="again", intent={"occurrence": 2}), workflow="other")

    assert second.intent_id != first.intent_id
    assert second.ask.undecided == ("freeze",)


# --- what is stored ------------------------------------------------------------------------------------------------


async def test_the_audit_row_of_an_admission_hides_what_is_sensitive(desk: Desk) -> None:
    step = freeze()
    step["arguments"]["memo"] = "very private"

    await desk.admit(request(step))

    row = desk.one("select arguments, principal, agent, policy_digest from backstay.audit_log")
    assert "very private" not in row["arguments"]
    assert (row["principal"], row["agent"], row["policy_digest"]) == ("customer", "agent", desk.policy.digest)


async def test_the_plan_carries_all_that_the_saga_needs(desk: Desk) -> None:
    standing = await desk.admit(request(note("a", "guard", book_id="B00000002"), look("r"), note("b", "keep")))

    assert standing.plan is not None
    told = {
        step.step_id: (step.tool, step.needs, step.may_refuse, step.duty.value, step.writes)
        for step in standing.plan.steps
    }
    assert told == {
        "a": ("guard_sample_note@1", (), True, "ONE", True),
        "r": ("check_sample_book@1", ("a",), True, "NONE", False),
        "b": ("keep_sample_note@1", ("r",), False, "NONE", True),
    }
    assert standing.plan.by_id["a"].resources == ("book:B00000002",)
