"""The proof of a plan: each rule holds, is broken with a legal alternative, or is said to be looked at later."""

from dataclasses import replace

import pytest

from activities.packs.ledger import PACK as LEDGER_PACK
from activities.packs.records import PACK as RECORDS_PACK
from contracts.base import JsonObject, JsonValue
from contracts.checks import Check, Rule, Verdict
from contracts.ends import Fault, Settling, Way
from contracts.errors import SagaError
from contracts.intent import Caller
from contracts.plan import Plan
from contracts.planning import ObjectState, plan_for
from contracts.prefixes import PREFIXES_MAX, Order, prefixes
from contracts.proof import Proof, prove, require_sound
from contracts.proposal import propose
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import DEFAULT_POLICY
from contracts.tool import SideEffect
from tests.support.plans import plan
from tests.support.proofs import CONTRACTS, graph, made, tool

ANNA = Caller(tenant="bank", principal="anna", agent="robot")
TOOLS = Registry.of([one.contract for pack in (LEDGER_PACK, RECORDS_PACK) for one in pack.tools])
ACCOUNT = "A00000001"


def call(step_id: str, name: str, *needs: str, **arguments: JsonValue) -> JsonObject:
    waits = {"needs": list(needs)} if needs else {}
    return {"step_id": step_id, "tool": name, "arguments": arguments, **waits}


def freeze(step_id: str = "hold", amount: int = 500, *needs: str, currency: str = "EUR") -> JsonObject:
    more = {"account_id": ACCOUNT, "reason_code": "PURCHASE"}
    return call(step_id, "freeze_account_funds", *needs, amount_cents=amount, currency=currency, **more)


def debit(step_id: str = "take", amount: int = 500, *needs: str, hold: str = "hold") -> JsonObject:
    more: JsonObject = {"hold_id": {"$from": f"{hold}.hold_id"}, "credit_account_id": "S00000001"}
    return call(
        step_id, "debit_frozen_funds", *needs, amount_cents=amount, currency="EUR", reason_code="PURCHASE", **more
    )


def refund(step_id: str, amount: int, *needs: str) -> JsonObject:
    more: JsonObject = {"capture_id": {"$from": "take.capture_id"}, "reason_code": "FRAUD"}
    return call(step_id, "refund_captured_debit", *needs, amount_cents=amount, currency="EUR", **more)


def transfer(amount: int = 500) -> JsonObject:
    more = {"from_account_id": ACCOUNT, "to_account_id": "A00000002", "reason_code": "GIFT"}
    return call("pay", "transfer_customer_funds", amount_cents=amount, currency="EUR", **more)


def reverse(amount: int) -> JsonObject:
    more: JsonObject = {"movement_id": {"$from": "pay.movement_id"}, "reason_code": "WRONG_AMOUNT"}
    return call("back", "reverse_ledger_movement", amount_cents=amount, currency="EUR", **more)


def lock(step_id: str = "lock", *needs: str) -> JsonObject:
    return call(step_id, "lock_customer_account", *needs, account_id=ACCOUNT, reason_code="SUSPECTED_FRAUD")


def beside(step: JsonObject) -> JsonObject:
    return {**step, "needs": []}


def intent(*steps: JsonObject) -> JsonObject:
    return {"protocol": 1, "session_id": "chat", "steps": list(steps)}


def proved(*steps: JsonObject) -> Proof:
    return propose(intent(*steps), ANNA, TOOLS).proof


def refused(*steps: JsonObject) -> SagaError:
    with pytest.raises(SagaError) as caught:
        proved(*steps)
    assert caught.value.reason is Reason.PLAN_UNSOUND
    return caught.value


def broken(*steps: JsonObject) -> Check:
    (check,) = [Check.model_validate(one) for one in refused(*steps).info.details["broken"]]
    return check


def found(proof: Proof, rule: Rule) -> list[tuple[Verdict, tuple[str, ...]]]:
    return [(check.verdict, check.path) for check in proof.checks if check.rule is rule]


# --- states ------------------------------------------------------------------------------------------------------


def test_a_hold_is_followed_from_the_step_that_makes_it() -> None:
    assert (Verdict.HOLDS, ("take",)) in found(proved(freeze(), debit()), Rule.STATES)


def test_what_a_literal_names_is_looked_at_when_it_can_be() -> None:
    proof = proved(freeze(), debit())

    (check,) = [check for check in proof.checks if check.path == ("hold",) and check.rule is Rule.STATES]
    assert check.verdict is Verdict.AT_RUN_TIME
    assert check.says == (
        "account:A00000001: hold needs ACTIVE; looked at when admitted, and again in the transaction of each"
    )


def test_a_hold_is_not_taken_twice() -> None:
    check = broken(freeze(), debit(amount=200), debit("again", 200))

    assert (check.rule, check.path) == (Rule.STATES, ("take", "again"))
    assert check.says == "Step again needs hold.hold_id OPEN, but step take leaves it CAPTURED."
    assert check.legal_order == ()


def test_a_step_that_shuts_the_account_before_another_needs_it_is_put_behind_it() -> None:
    check = broken(lock(), freeze(), debit())

    assert (check.rule, check.path) == (Rule.STATES, ("lock", "hold"))
    assert check.legal_order == ("hold", "lock", "take")
    assert proved(freeze(), lock("lock", "hold"), debit("take", 500, "lock")).sound


def test_of_two_steps_that_nothing_puts_into_an_order_the_one_that_may_come_first_is_named() -> None:
    first, second = broken(beside(lock()), beside(freeze())), broken(beside(freeze()), beside(lock()))

    assert first.legal_needs == {"lock": ("hold",)}
    assert second.legal_needs == {"lock": ("hold",)}
    assert second.advice == "Let step lock need step hold."


def test_records_that_were_restored_cannot_be_purged_and_purged_ones_not_restored() -> None:
    delete = call(
        "delete", "delete_customer_records", file_id="F00000017", records_max=5, reason_code="CUSTOMER_REQUEST"
    )
    bound: JsonObject = {"deletion_id": {"$from": "delete.deletion_id"}}
    restore = call("restore", "restore_customer_records", reason_code="DELETED_BY_MISTAKE", **bound)
    purge = call("purge", "purge_deleted_records", records_max=5, reason_code="CUSTOMER_REQUEST", **bound)

    assert broken(delete, restore, purge).path == ("restore", "purge")
    assert proved(delete, purge).sound


# --- amounts -----------------------------------------------------------------------------------------------------


def test_no_more_is_captured_than_was_held() -> None:
    check = broken(freeze(amount=500), debit(amount=501))

    assert (check.rule, check.path) == (Rule.AMOUNTS, ("hold", "take"))
    assert check.says == "Step take takes 501 cents from hold.hold_id, which holds 500: 1 too much."
    assert check.advice == "Take at most 500 in all, or make step hold hold 501."
    assert proved(freeze(amount=500), debit(amount=499)).sound


def test_no_more_is_refunded_than_was_captured() -> None:
    check = broken(freeze(), debit(), refund("one", 501))

    assert (check.rule, check.path) == (Rule.AMOUNTS, ("take", "one"))


def test_what_several_steps_take_is_summed_whatever_runs_first() -> None:
    whole = TOOLS["debit_frozen_funds@1"]
    uses = tuple(replace(use, state_after=None) for use in whole.resources)
    parts = Registry((TOOLS["freeze_account_funds@1"], replace(whole, resources=uses)))
    takes = [{**debit(f"part_{number}", 200), "needs": ["hold"]} for number in range(3)]

    with pytest.raises(SagaError) as caught:
        propose(intent(freeze(amount=599), *takes), ANNA, parts)

    (check,) = caught.value.info.details["broken"]
    assert check["path"] == ["hold", "part_0", "part_1", "part_2"]
    assert check["says"] == (
        "Steps part_0, part_1, part_2 take 200 + 200 + 200 cents from hold.hold_id, which holds 599: 1 too much."
    )
    assert propose(intent(freeze(amount=600), *takes), ANNA, parts).proof.sound


def test_a_movement_is_reversed_whole() -> None:
    check = broken(transfer(500), reverse(400))

    assert (check.rule, check.path, check.advice) == (Rule.AMOUNTS, ("pay", "back"), "Say 500 cents in step back.")
    assert (Verdict.HOLDS, ("pay", "back")) in found(proved(transfer(500), reverse(500)), Rule.AMOUNTS)


def test_a_hold_in_another_currency_is_not_captured() -> None:
    check = broken(freeze(currency="USD"), debit())

    assert (check.rule, check.advice) == (Rule.AMOUNTS, "Say USD in step take.")


def test_what_is_taken_from_an_account_is_left_to_the_database() -> None:
    assert found(proved(freeze("a", 1), freeze("b", 2)), Rule.AMOUNTS) == [(Verdict.AT_RUN_TIME, ("a", "b"))]


# --- order and compensation --------------------------------------------------------------------------------------


def test_all_broken_rules_are_told_at_once_each_at_its_step() -> None:
    error = refused(freeze(), debit(amount=600), debit("again", 1))

    assert [(problem.path, problem.code) for problem in error.info.fields] == [
        ("steps[2]", "state_unsound"),
        ("steps[2]", "amount_unsound"),
    ]
    assert [problem.allowed != "" for problem in error.info.fields] == [True, True]


def test_a_pivot_too_early_is_named_with_the_legal_order() -> None:
    proof = prove(graph(p="send_local_pivot", a="undo_local_note after p"), CONTRACTS)

    (check,) = proof.broken
    assert (check.rule, check.path, check.legal_order) == (Rule.PIVOT, ("p", "a"), ("a", "p"))
    with pytest.raises(SagaError, match=r"Legal order: a, p\."):
        require_sound(proof)


def test_a_legal_order_keeps_bindings() -> None:
    bound = made("a", "undo_local_note", ["p"]).model_copy(update={"arguments": {"text": {"$from": "p.note_number"}}})

    (check,) = prove(plan(made("p", "send_local_pivot"), bound), CONTRACTS).broken

    assert check.legal_order == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"compensates_by": None}, "does not say how it is undone"),
        ({"side_effect": SideEffect.IRREVERSIBLE}, "says IRREVERSIBLE, the plan REVERSIBLE"),
        (None, "there is no contract for"),
    ],
)
def test_a_step_that_nothing_undoes_is_unsound(change: JsonObject | None, why: str) -> None:
    one = tool("undo_local_note")
    contracts = {} if change is None else {one.wire_name: replace(one, **change)}

    (check,) = prove(graph(a="undo_local_note"), contracts).broken

    assert (check.rule, why in check.says) == (Rule.COMPENSATABLE, True)


def test_what_undoing_needs_is_stored_or_asked_for() -> None:
    proof = prove(
        graph(a="undo_local_note", b="undo_keyed_remote", c="undo_looked_remote", d="undo_lost_remote"), CONTRACTS
    )

    assert found(proof, Rule.UNDO_KNOWN) == [
        (Verdict.HOLDS, ("a",)),
        (Verdict.AT_RUN_TIME, ("b",)),
        (Verdict.AT_RUN_TIME, ("c",)),
        (Verdict.AT_RUN_TIME, ("d",)),
    ]


# --- ends --------------------------------------------------------------------------------------------------------


def test_no_row_is_made_up_for_a_step_whose_outcome_is_one_transaction() -> None:
    proof = prove(graph(a="undo_local_note", r="read_local_note after a"), CONTRACTS)

    unknown = [row for row in proof.rows() if row.fault in (Fault.UNKNOWN_LANDED, Fault.UNKNOWN_NOT_LANDED)]
    assert [row.ends for row in unknown] == [()] * 4
    assert {row.says for row in unknown} == {
        "its outcome is that of one transaction: run again or fenced, never unknown",
        "it only reads: nothing can have landed",
    }


ON, BACK, HELD = Way.FORWARD, Way.BACK, Way.HELD


@pytest.mark.parametrize(
    ("name", "settling", "landed", "not_landed"),
    [
        ("undo_keyed_remote", Settling.SENT_AGAIN, (ON, HELD), (ON, BACK, HELD)),
        ("undo_looked_remote", Settling.LOOKED_UP, (ON, HELD), (ON, BACK, HELD)),
        ("undo_lost_remote", Settling.NOBODY_KNOWS, (HELD,), (HELD,)),
        ("read_remote_rate", Settling.READING, (), ()),
    ],
)
def test_an_unknown_outcome_is_found_or_a_person_is_called(
    name: str, settling: Settling, landed: tuple[Way, ...], not_landed: tuple[Way, ...]
) -> None:
    proof = prove(graph(a=name), CONTRACTS)

    rows = {row.fault: row for row in proof.rows()}
    assert proof.steps[0].settling is settling
    assert tuple(end.way for end in rows[Fault.UNKNOWN_LANDED].ends) == landed
    assert tuple(end.way for end in rows[Fault.UNKNOWN_NOT_LANDED].ends) == not_landed
    rests = [end for row in rows.values() for end in row.ends if end.way is HELD]
    assert all((end.parked, end.unknown) == ("OUTCOME_UNKNOWN", "a") for end in rests)


def test_on_the_way_back_what_an_unknown_step_builds_on_stays() -> None:
    built = graph(
        a="undo_local_note", b="undo_local_note", u="undo_keyed_remote after a", w="undo_keyed_remote after u"
    )
    proof = prove(built, CONTRACTS)

    (row,) = [
        row for row in proof.rows() if (set(row.landed), row.step_id, row.fault) == ({"a", "b"}, "u", Fault.CANCEL)
    ]
    held = row.ends[-1]
    assert (held.way, held.undone, held.live, held.unknown) == (Way.HELD_BACK, (("b",),), ("a",), "u")


def test_a_pivot_that_may_have_landed_stops_everything() -> None:
    proof = prove(graph(a="undo_local_note", p="pay_keyed_remote after a"), CONTRACTS)

    (row,) = [row for row in proof.rows() if (row.step_id, row.fault) == ("p", Fault.CANCEL)]
    assert [(end.way, end.undone, end.live) for end in row.ends] == [
        (Way.FORWARD, (), ("a", "p")),
        (Way.BACK, (("a",),), ()),
        (Way.HALTED, (), ("a",)),
    ]


def test_after_the_pivot_nothing_goes_back() -> None:
    proof = prove(graph(a="undo_local_note", p="send_local_pivot after a", z="undo_sure_note after p"), CONTRACTS)

    past = [end for row in proof.rows() if "p" in row.landed for end in row.ends]
    assert {end.way for end in past} == {Way.FORWARD, Way.STUCK}
    assert all(end.undone == () for end in past)


# --- prefixes ----------------------------------------------------------------------------------------------------


def test_of_too_many_prefixes_the_smallest_and_the_largest_are_shown_and_that_is_said() -> None:
    proof = prove(plan(*(made(f"s{number}", "undo_local_note") for number in range(12))), CONTRACTS)

    sizes = [mask.bit_count() for mask in proof.prefixes]
    assert not proof.complete
    assert len(set(proof.prefixes)) == len(sizes) == PREFIXES_MAX
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes.count(1), sizes[-1], sizes.count(11)) == (0, 12, 11, 12)


@pytest.mark.parametrize("at_most", [1, 2, 3, 6, 7, 8, 20])
def test_the_bound_is_kept_exactly(at_most: int) -> None:
    order = Order.of([made(f"s{number}", "undo_local_note") for number in range(3)])

    masks, complete = prefixes(order, at_most)

    assert (complete, len(masks)) == (at_most >= 7, min(at_most, 7))
    assert order.whole not in masks


# --- the proof as a document --------------------------------------------------------------------------------------


def test_a_stored_proof_reads_back_equal_with_the_same_digest() -> None:
    proof = proved(freeze(), debit(), transfer())

    read = Proof.model_validate_json(proof.text)

    assert (read, read.text, read.digest) == (proof, proof.text, proof.digest)
    assert list(read.rows()) == list(proof.rows())


def test_the_proof_of_a_proposal_is_that_of_its_plan_and_the_plan_names_it() -> None:
    proposal = propose(intent(freeze(), debit()), ANNA, TOOLS)
    planned = plan_for(proposal, _world(), DEFAULT_POLICY)

    assert prove(planned, TOOLS) == proposal.proof
    assert planned.proof_digest == proposal.proof.digest


def test_an_approval_of_a_plan_is_one_of_its_proof() -> None:
    planned = plan_for(propose(intent(freeze(), debit()), ANNA, TOOLS), _world(), DEFAULT_POLICY)

    other = planned.model_copy(update={"proof_digest": "0" * 64})

    assert Plan.parse(other.model_dump_json()).digest != planned.digest


def test_a_plan_that_is_older_than_proofs_keeps_its_digest() -> None:
    older = graph(a="undo_local_note")

    text = older.model_dump_json(exclude={"proof_digest"})

    assert Plan.parse(text).digest == older.digest


def _world() -> dict[str, ObjectState]:
    return {
        f"account:{name}": ObjectState(
            object_id=name,
            tenant="bank",
            principal=principal,
            state="ACTIVE",
            currency="EUR",
            available_cents=10_000,
            limit_cents=None,
        )
        for name, principal in ((ACCOUNT, "anna"), ("S00000001", None))
    }
