"""The plan check: whose object it is, how much the plan moves in all, and who is asked; pure, with shipped tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.packs.ledger import PACK
from activities.packs.records import PACK as RECORDS
from contracts.base import JsonObject, JsonValue
from contracts.errors import SagaError
from contracts.intent import Caller
from contracts.keys import digest
from contracts.late import late_arguments
from contracts.plan import Plan
from contracts.planning import ObjectState, grade_late, plan_added, plan_for
from contracts.proposal import ProposedStep, propose
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import DEFAULT_POLICY, Grade
from contracts.tool import Duty

ANNA = Caller(tenant="bank", principal="anna", agent="robot")
LEDGER = Registry.of([tool.contract for pack in (PACK, RECORDS) for tool in pack.tools])
MANY = DEFAULT_POLICY.many_rows
LARGE = DEFAULT_POLICY.large_cents["EUR"]


def known(
    name: str,
    principal: str | None,
    *,
    available: int | None = 10**9,
    state: str = "ACTIVE",
    draws_on_tenant: bool = False,
) -> dict[str, ObjectState]:
    """An object in euros, in the bank."""
    return {
        name: ObjectState(
            object_id=name.partition(":")[2],
            tenant="bank",
            principal=principal,
            state=state,
            currency="EUR",
            available_cents=available,
            limit_cents=None,
            draws_on_tenant=draws_on_tenant,
        )
    }


WORLD = {
    **known("account:A00000001", "anna"),
    **known("account:A00000002", "ben"),
    **known("account:S00000001", None, available=None),
    **known("hold:H0000000001", "anna", available=500, state="OPEN"),
    **known("capture:C0000000001", "anna", available=500, state="CAPTURED", draws_on_tenant=True),
    **known("capture:C0000000002", "anna", available=500, state="CAPTURED"),
    **known("movement:M0000000001", "anna", state="POSTED"),
    **known("movement:M0000000002", None, state="POSTED"),
    **known("movement:M0000000003", "ben", state="POSTED"),
    **known("file:F00000001", "anna", state="OPEN"),
}


def call(step_id: str, tool: str, amount: int | None = None, **arguments: JsonValue) -> JsonObject:
    money = {} if amount is None else {"amount_cents": amount, "currency": "EUR"}
    return {"step_id": step_id, "tool": tool, "arguments": {**money, **arguments}}


def freeze(step_id: str, amount: int, **more: JsonValue) -> JsonObject:
    return call(step_id, "freeze_account_funds", amount, account_id="A00000001", **{"reason_code": "PURCHASE", **more})


def debit(step_id: str, amount: int, hold: JsonValue) -> JsonObject:
    more = {"credit_account_id": "S00000001", "reason_code": "PURCHASE"}
    return call(step_id, "debit_frozen_funds", amount, hold_id=hold, **more)


def credit(step_id: str, amount: int, source: JsonValue = "S00000001") -> JsonObject:
    more = {"account_id": "A00000001", "reason_code": "GOODWILL"}
    return call(step_id, "credit_customer_account", amount, funding_account_id=source, **more)


def transfer(step_id: str, amount: int, source: JsonValue = "A00000001", target: str = "A00000001") -> JsonObject:
    return call(
        step_id,
        "transfer_customer_funds",
        amount,
        from_account_id=source,
        to_account_id=target,
        reason_code="GIFT",
    )


def delete(step_id: str, records_max: int) -> JsonObject:
    more: JsonObject = {"category": "CORRESPONDENCE", "reason_code": "CUSTOMER_REQUEST"}
    return call(step_id, "delete_customer_records", file_id="F00000001", records_max=records_max, **more)


def purge(step_id: str, records_max: int, deletion: JsonValue) -> JsonObject:
    more: JsonObject = {"deletion_id": deletion, "reason_code": "CUSTOMER_REQUEST"}
    return call(step_id, "purge_deleted_records", records_max=records_max, **more)


def planned(*steps: JsonObject, world: dict[str, ObjectState] | None = None) -> Plan:
    intent: JsonObject = {"protocol": 1, "session_id": "chat", "steps": list(steps)}
    return plan_for(propose(intent, ANNA, LEDGER), world or WORLD, DEFAULT_POLICY)


def duties(plan: Plan) -> list[Duty]:
    return [step.duty for step in plan.steps]


def refused(*steps: JsonObject) -> SagaError:
    with pytest.raises(SagaError) as error:
        planned(*steps)
    return error.value


# -------------------------------------------------------------------------------------------- whose the object is


def test_nobody_pays_themselves_out_of_the_banks_account_unasked() -> None:
    (step,) = planned(credit("c", 1)).steps

    assert (step.duty, step.level) == (Duty.ONE, 4)
    assert "draws on what belongs to the tenant" in step.because


def test_paying_into_the_banks_account_asks_nobody() -> None:
    assert duties(planned(freeze("f", 500), debit("d", 500, {"$from": "f.hold_id"}))) == [Duty.NONE, Duty.NONE]


def test_a_refund_out_of_what_the_bank_got_asks_and_out_of_ones_own_does_not() -> None:
    def refund(capture: str) -> JsonObject:
        return call("r", "refund_captured_debit", 5, capture_id=capture, reason_code="FRAUD")

    assert duties(planned(refund("C0000000001"))) == [Duty.ONE]
    assert duties(planned(refund("C0000000002"))) == [Duty.NONE]


def test_a_reversal_out_of_the_banks_account_asks_and_out_of_another_customers_is_refused() -> None:
    def reverse(movement: str) -> JsonObject:
        return call("r", "reverse_ledger_movement", 5, movement_id=movement, reason_code="WRONG_AMOUNT")

    assert duties(planned(reverse("M0000000001"))) == [Duty.NONE]
    assert duties(planned(reverse("M0000000002"))) == [Duty.ONE]
    assert refused(reverse("M0000000003")).reason is Reason.NOT_OWNER


def test_unlocking_an_account_asks_whoever_locked_it() -> None:
    unlock = call("u", "unlock_customer_account", account_id="A00000001", reason_code="FRAUD_RULED_OUT")
    world = {**WORLD, **known("account:A00000001", "anna", state="FROZEN")}

    assert duties(planned(unlock, world=world)) == [Duty.ONE]


def test_an_id_that_a_step_was_given_and_hands_on_is_graded_when_it_is_known() -> None:
    """Found by hand: the debit's own payee, the bank's account, came back as what a credit draws on."""
    steps = (
        freeze("f", 1),
        debit("d", 1, {"$from": "f.hold_id"}),
        credit("c", 900_000, {"$from": "d.credit_account_id"}),
    )

    plan = planned(*steps)
    graded = late(steps, "c", funding_account_id="S00000001")

    assert plan.by_id["c"].late == ("funding_account_id",)
    assert graded.duty is Duty.ONE
    assert "draws on what belongs to the tenant" in graded.because


# -------------------------------------------------------------------------------------------- how much in all


def test_an_amount_split_into_many_steps_is_asked_about_like_the_whole() -> None:
    plan = planned(*(freeze(f"f{n}", LARGE // 4) for n in range(6)))

    assert duties(plan) == [Duty.NONE] * 4 + [Duty.ONE] * 2
    assert f"together with the steps before it more than {LARGE} cents EUR" in plan.steps[4].because


def test_rows_split_over_many_steps_are_asked_about_like_the_whole() -> None:
    plan = planned(*(delete(f"d{letter}", MANY // 2) for letter in "abc"))

    assert duties(plan) == [Duty.NONE, Duty.NONE, Duty.ONE]
    assert f"together with the steps before it more than {MANY} rows" in plan.steps[2].because


def test_rows_beside_money_ask_about_the_step_that_touches_rows_and_no_other() -> None:
    plan = planned(delete("da", MANY), freeze("f", 1), delete("db", 1), freeze("g", 1))

    assert duties(plan) == [Duty.NONE, Duty.NONE, Duty.ONE, Duty.NONE]


def test_rows_of_a_deletion_and_of_its_purge_count_once() -> None:
    plan = planned(delete("d", MANY), purge("p", MANY, {"$from": "d.deletion_id"}))

    assert not [why for step in plan.steps for why in step.because if "rows" in why]


def test_nothing_is_purged_in_a_plan_that_touches_many_rows_in_all() -> None:
    error = refused(
        delete("da", MANY),
        delete("db", 1),
        purge("p", 1, {"$from": "db.deletion_id"}),
    )

    assert error.reason is Reason.DUTY_NOT_AVAILABLE
    assert "large and cannot be undone" in error.info.details["because"]


def test_a_late_count_counts_with_every_row_of_the_plan() -> None:
    read = call("r", "check_account_balance", account_id="A00000001")
    bound = delete("d", 1) | {"arguments": {**delete("d", 1)["arguments"], "records_max": AVAILABLE}}
    steps = (read, delete("before", MANY // 2), bound, delete("after", MANY // 2))

    assert duties(planned(*steps)) == [Duty.NONE] * 4
    assert late(steps, "d", records_max=1).duty is Duty.ONE
    assert f"together with the other steps of the plan more than {MANY} rows" in late(steps, "d", records_max=1).because


@pytest.mark.parametrize(("before", "asked"), [(MANY - 1, Duty.NONE), (MANY, Duty.ONE)])
def test_rows_of_a_step_that_is_added_count_with_all_before_it(before: int, asked: Duty) -> None:
    steps = propose_steps(delete("da", before), delete("db", 1))

    assert plan_added(steps, caller=ANNA, objects=WORLD, policy=DEFAULT_POLICY, alike={}).duty is asked


@given(
    st.lists(st.integers(min_value=1, max_value=2 * MANY), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=MANY),
)
def test_more_rows_never_ask_fewer_people(counts: list[int], more: int) -> None:
    def asked(*sizes: int) -> list[int]:
        return [duty.rank for duty in duties(planned(*(delete(f"d{'abcdef'[n]}", s) for n, s in enumerate(sizes))))]

    before, after = asked(*counts), asked(counts[0] + more, *counts[1:])

    assert all(one <= other for one, other in zip(before, after, strict=True))


def test_a_hold_and_its_capture_count_once() -> None:
    plan = planned(freeze("f", LARGE), debit("d", LARGE, {"$from": "f.hold_id"}))

    assert duties(plan) == [Duty.NONE, Duty.NONE]


def test_what_is_captured_counts_with_its_hold_and_with_no_other() -> None:
    bound: JsonValue = {"$from": "f.hold_id"}

    plan = planned(freeze("f", LARGE), debit("d", LARGE, bound), freeze("g", 1))

    assert duties(plan) == [Duty.NONE, Duty.NONE, Duty.ONE]


def test_no_more_is_captured_than_the_plan_itself_holds() -> None:
    error = refused(freeze("f", 1), debit("d", LARGE, {"$from": "f.hold_id"}))

    assert error.reason is Reason.PLAN_UNSOUND
    assert [(problem.path, problem.code) for problem in error.info.fields] == [("steps[1]", "amount_unsound")]


def test_a_transfer_from_an_account_that_a_step_read_is_late_and_has_to_be_the_principals() -> None:
    steps = (call("r", "check_account_balance", account_id="A00000001"), transfer("t", 5, {"$from": "r.account_id"}))

    assert planned(*steps).by_id["t"].late == ("from_account_id",)
    with pytest.raises(SagaError) as caught:
        late(steps, "t", from_account_id="A00000002")

    assert caught.value.reason is Reason.NOT_OWNER


def test_no_more_is_captured_than_is_held() -> None:
    error = refused(debit("d", 501, "H0000000001"))

    assert error.reason is Reason.FUNDS_INSUFFICIENT
    assert error.info.details == {"amount_cents": 501, "available_cents": 500, "step_id": "d"}


def test_no_more_is_refunded_than_is_left_of_a_capture() -> None:
    refund = call("r", "refund_captured_debit", 501, capture_id="C0000000002", reason_code="FRAUD")

    assert refused(refund).reason is Reason.FUNDS_INSUFFICIENT


# --- graphs: what nothing puts into an order -----------------------------------------------------------------------


def beside(step: JsonObject, *needs: str) -> JsonObject:
    return {**step, "needs": list(needs)}


def lock(step_id: str) -> JsonObject:
    return call(step_id, "lock_customer_account", account_id="A00000001", reason_code="SUSPECTED_FRAUD")


def test_two_steps_on_one_object_are_put_into_an_order_when_one_changes_its_state() -> None:
    with pytest.raises(SagaError) as caught:
        planned(beside(freeze("hold", 500)), beside(lock("shut")))

    assert caught.value.reason is Reason.PLAN_UNSOUND
    (check,) = caught.value.info.details["broken"]
    assert (check["rule"], check["path"]) == ("STATES", ["hold", "shut"])
    assert check["legal_needs"] == {"shut": ["hold"]}
    assert planned(beside(freeze("hold", 500)), beside(lock("shut"), "hold")).by_id["shut"].needs == ("hold",)


def test_a_hold_that_the_plan_makes_is_not_captured_by_two_steps_side_by_side() -> None:
    bound: JsonValue = {"$from": "hold.hold_id"}

    with pytest.raises(SagaError) as caught:
        planned(freeze("hold", 500), beside(debit("one", 250, bound)), beside(debit("two", 250, bound)))

    assert caught.value.reason is Reason.PLAN_UNSOUND
    (check,) = caught.value.info.details["broken"]
    assert (check["path"], check["legal_needs"], check["legal_order"]) == (["one", "two"], {}, [])


def test_steps_that_only_take_may_stand_side_by_side_and_their_sum_has_to_be_there() -> None:
    world = {**WORLD, **known("account:A00000001", "anna", available=900)}

    planned(beside(freeze("one", 400)), beside(freeze("two", 500)), world=world)
    with pytest.raises(SagaError) as caught:
        planned(beside(freeze("one", 400)), beside(freeze("two", 501)), world=world)

    assert caught.value.reason is Reason.FUNDS_INSUFFICIENT


def test_money_that_comes_in_counts_only_for_a_step_that_waits_for_it() -> None:
    world = {**WORLD, **known("account:A00000001", "anna", available=100)}

    planned(beside(credit("in", 400)), beside(freeze("out", 500), "in"), world=world)
    with pytest.raises(SagaError) as caught:
        planned(beside(credit("in", 400)), beside(freeze("out", 500)), world=world)

    assert caught.value.reason is Reason.FUNDS_INSUFFICIENT


# --- late: what is bound is graded when it is known -----------------------------------------------------------------

READ = call("r", "check_account_balance", account_id="A00000001")
AVAILABLE: JsonValue = {"$from": "r.available_cents"}


def late(
    steps: tuple[JsonObject, ...], step_id: str, known: dict[str, JsonObject] | None = None, **arguments: JsonValue
) -> Grade:
    """Grade a step of a plan of which nothing has landed but what was read."""
    plan, filled = planned(*steps), {step_id: arguments, **(known or {})}
    proposed = [
        ProposedStep(
            step_id=step.step_id,
            contract=LEDGER[step.tool],
            arguments={**step.arguments, **filled.get(step.step_id, {})},
            needs=step.needs,
            bindings=(),
            position=number,
        )
        for number, step in enumerate(plan.steps)
    ]
    return grade_late(plan.by_id[step_id], proposed, {"r"}, caller=ANNA, objects=WORLD, policy=DEFAULT_POLICY)


def bound_freeze(step_id: str) -> JsonObject:
    return call(step_id, "freeze_account_funds", account_id="A00000001", reason_code="PURCHASE", currency="EUR") | {
        "arguments": {**freeze(step_id, 1)["arguments"], "amount_cents": AVAILABLE}
    }


def test_a_bound_amount_is_asked_about_when_it_is_large_and_not_before() -> None:
    steps = (READ, bound_freeze("f"))

    plan = planned(*steps)

    assert (plan.by_id["f"].late, plan.gated_steps) == (("amount_cents",), ())
    assert late(steps, "f", amount_cents=LARGE).duty is Duty.NONE
    assert late(steps, "f", amount_cents=LARGE + 1).duty is Duty.ONE


def test_a_late_amount_counts_with_everything_that_the_plan_says_outright_before_and_after_it() -> None:
    steps = (READ, freeze("before", LARGE // 2), bound_freeze("f"), freeze("after", LARGE // 2))

    assert duties(planned(*steps)) == [Duty.NONE] * 4
    assert late(steps, "f", amount_cents=1).duty is Duty.ONE
    assert (
        f"together with the other steps of the plan more than {LARGE} cents EUR"
        in late(steps, "f", amount_cents=1).because
    )


def test_of_two_late_amounts_that_are_large_together_the_one_that_is_graded_later_asks() -> None:
    steps = (READ, bound_freeze("f"), bound_freeze("g"))

    assert late(steps, "f", amount_cents=LARGE).duty is Duty.NONE
    assert late(steps, "g", {"f": {"amount_cents": LARGE}}, amount_cents=1).duty is Duty.ONE
    assert late(steps, "f", {"g": {"amount_cents": 1}}, amount_cents=LARGE).duty is Duty.ONE


def test_a_late_hold_and_its_late_capture_count_once() -> None:
    take = debit("d", 1, {"$from": "f.hold_id"})
    steps = (READ, bound_freeze("f"), take | {"arguments": {**take["arguments"], "amount_cents": AVAILABLE}})

    assert late(steps, "d", {"f": {"amount_cents": LARGE}}, amount_cents=LARGE).duty is Duty.NONE


def test_a_late_amount_has_to_be_there_besides_what_the_others_take() -> None:
    steps = (READ, freeze("other", 600), bound_freeze("f"))
    world = {**WORLD, **known("account:A00000001", "anna", available=1_000)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "WORLD", world)
        assert late(steps, "f", amount_cents=400).duty is Duty.NONE
        with pytest.raises(SagaError) as caught:
            late(steps, "f", amount_cents=401)

    assert caught.value.reason is Reason.FUNDS_INSUFFICIENT


def test_a_late_step_counts_as_one_that_may_refuse() -> None:
    read = call("r", "check_account_balance", account_id="A00000001")

    assert [step.may_refuse for step in propose_steps(read, bound_freeze("f"))] == [True, True]


def test_a_plan_without_late_steps_has_the_digest_that_it_had_before_there_were_any() -> None:
    plan = planned(freeze("f", 1))
    older = plan.model_dump(mode="json", exclude={"opened", "sealed", "inactivity_seconds"})
    del older["steps"][0]["late"], older["steps"][0]["stands_for"]

    assert plan.digest == digest(older)
    assert Plan.model_validate(older).digest == plan.digest


def propose_steps(*steps: JsonObject) -> tuple[ProposedStep, ...]:
    return propose({"protocol": 1, "session_id": "chat", "steps": list(steps)}, ANNA, LEDGER).steps


@pytest.mark.parametrize("name", ["amount_cents", "currency", "credit_account_id"])
def test_amount_currency_and_payee_are_late_when_they_are_bound_and_only_then(name: str) -> None:
    arguments = debit("d", 1, {"$from": "f.hold_id"})["arguments"]
    contracts = {"f": LEDGER["freeze_account_funds@1"]}
    contract = LEDGER["debit_frozen_funds@1"]

    assert late_arguments(contract, arguments, contracts) == ()
    assert late_arguments(contract, {**arguments, name: {"$from": "f.anything"}}, contracts) == (name,)


def test_a_count_is_late_when_it_is_bound() -> None:
    contract = next(tool.contract for tool in RECORDS.tools if tool.contract.rows_argument == "records_max")

    assert late_arguments(contract, {"records_max": 5}, {}) == ()
    assert late_arguments(contract, {"records_max": {"$from": "d.record_count"}}, {}) == ("records_max",)
