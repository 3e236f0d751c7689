"""Confirmations: what the engine appends to a plan, and what it lets nobody say; pure."""

from dataclasses import replace
from typing import Any

import pytest

from activities.catalog import PackError, check_packs
from activities.tool import Pack
from contracts.base import JsonObject
from contracts.confirmation import SUFFIX, confirmation_of, confirms
from contracts.errors import SagaError
from contracts.growth import grow, seal
from contracts.intent import Caller
from contracts.lint import check_contract
from contracts.near import near_keys
from contracts.plan import Plan
from contracts.planning import ObjectState, plan_for
from contracts.proposal import Proposal, propose
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Policy, RiskInputs, grade
from contracts.table import headings, lines
from contracts.tool import AmountUse, AnyContract, Dispatch, Duty, SideEffect
from tests.support.reserving import CONTRACT, HoldSampleNote, held, reserving_tool
from tests.support.samples import Behaviour, look, note, sample_pack

REGISTRY = Registry.of([tool.contract for tool in sample_pack(Behaviour()).tools])
CALLER = Caller(tenant="bank", principal="customer", agent="agent")
BOOK = ObjectState(
    object_id="B00000001",
    tenant="bank",
    principal=None,
    state="OPEN",
    currency=None,
    available_cents=None,
    limit_cents=None,
)


def proposed(*steps: JsonObject, **more: object) -> Proposal:
    intent = {"protocol": 1, "session_id": "chat-1", "steps": list(steps), **more}
    return propose(intent, CALLER, REGISTRY)


def planned(*steps: JsonObject, policy: Policy | None = None, **more: Any) -> Plan:  # noqa: ANN401 - of the intent
    return plan_for(proposed(*steps, **more), {"book:B00000001": BOOK}, policy or Policy())


def beside(step: JsonObject) -> JsonObject:
    """The same step, waiting for nothing but what it is bound to."""
    return {**step, "needs": []}


def refused(*steps: JsonObject, policy: Policy | None = None) -> SagaError:
    with pytest.raises(SagaError) as error:
        planned(*steps, policy=policy)
    return error.value


# --- what is appended ------------------------------------------------------------------------------------------------


def test_the_first_confirmation_waits_for_all_else_and_the_others_for_it() -> None:
    plan = planned(held("a"), beside(look("r")), beside(held("b")), beside(note("c")))

    needs = {step.step_id: set(step.needs) for step in plan.steps if step.confirms}
    assert needs == {"a.confirm": {"a", "r", "b", "c"}, "b.confirm": {"a.confirm", "b"}}
    assert [step.step_id for step in plan.steps][-2:] == ["a.confirm", "b.confirm"]


def test_past_a_pivot_of_the_plans_own_no_confirmation_waits_for_another() -> None:
    plan = planned(held("a"), held("b"), note("p", "seal"))

    assert plan.by_id["a.confirm"].needs == plan.by_id["b.confirm"].needs == ("a", "b", "p")


def test_a_confirmation_is_a_step_that_neither_refuses_nor_can_be_undone_and_asks_nobody() -> None:
    plan = planned(held("a"), occurrence=2)

    step = plan.by_id["a.confirm"]
    assert (step.is_pivot, step.may_refuse, step.duty, step.locks) == (True, False, Duty.NONE, ())
    assert (step.tool, step.confirms) == ("hold_sample_note@1.confirm", "a")
    assert plan.by_id["a"].confirms is None
    assert plan.execute_key("a.confirm") == f"{plan.intent_key}/a.confirm/execute"


def test_a_confirmation_is_given_what_the_step_took_and_what_it_answered() -> None:
    plan = planned(look("r"), held("a", text={"$from": "r.text"}))

    arguments = plan.by_id["a.confirm"].arguments
    assert arguments["step"] == {"text": {"$from": "r.text"}}
    assert arguments["reservation"]["note_number"] == {"$from": "a.note_number"}
    assert set(arguments["reservation"]) == set(CONTRACT.output.model_fields)


def test_a_plan_without_reservations_has_no_confirmation() -> None:
    assert [step.step_id for step in planned(note("a"), note("b")).steps] == ["a", "b"]


def test_a_tool_that_learns_to_confirm_keeps_every_key() -> None:
    """The steps that were posted are the identity; what the engine appends follows from them."""
    plainly = Registry([replace(CONTRACT, confirms=None)])
    steps: list[Any] = [held("a"), held("b")]

    before = propose({"protocol": 1, "session_id": "chat-1", "steps": steps}, CALLER, plainly)
    now = proposed(*steps)

    assert (now.intent_key, now.body_digest, now.lineage_digest) == (
        before.intent_key,
        before.body_digest,
        before.lineage_digest,
    )


def test_only_what_was_posted_is_looked_for_among_earlier_calls() -> None:
    assert set(near_keys(CALLER, proposed(held("a"), note("b")).steps, None)) == {"a", "b"}


def test_a_later_registry_still_knows_the_confirmations_of_stored_plans_and_lists_none() -> None:
    assert REGISTRY["hold_sample_note@1.confirm"].side_effect is SideEffect.IRREVERSIBLE
    assert [name for name in REGISTRY if name.endswith(SUFFIX)] == []
    assert REGISTRY.find("hold_sample_note@1.confirm") is None
    assert confirmation_of(REGISTRY["write_sample_note@1"]) is None
    assert (confirms("a.confirm"), confirms("a")) == ("a", None)


# --- what is proved --------------------------------------------------------------------------------------------------


def test_the_proof_has_every_failure_of_every_confirmation() -> None:
    proof = proposed(held("a"), beside(held("b"))).proof

    table = {line[:2]: dict(zip(headings(proof)[2:], line[2:], strict=True)) for line in lines(proof)[0]}
    assert table["a, b", "a.confirm"] == {
        "refused": "COMPENSATED (b and a)",
        "crash": "COMMITTED",
        "cancel": "COMMITTED or COMPENSATED (b and a)",
    }
    assert table["a, b, a.confirm", "b.confirm"] == {
        "refused": "PARKED STUCK_AFTER_PIVOT (stays: a, b, a.confirm)",
        "crash": "COMMITTED",
        "cancel": "COMMITTED",
    }
    assert len(table) == 6


def test_a_plan_that_is_unsound_is_told_in_the_steps_that_were_posted() -> None:
    error = refused(note("x", "seal"), held("a"))

    assert error.reason is Reason.PLAN_UNSOUND
    (field,) = error.info.fields
    assert field.path == "steps[1]"
    assert field.example == ["a", "x"]


# --- how long a reservation has to last ------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1, 86_399])
def test_a_reservation_that_may_expire_before_its_intent_is_refused(seconds: int) -> None:
    error = refused(held("a", ttl_seconds=seconds))

    assert error.reason is Reason.ARGUMENTS_INVALID
    assert error.info.details == {"step_id": "a", "seconds": seconds, "deadline_seconds": 86_400}


def test_a_default_that_is_too_short_is_refused_as_if_it_was_said() -> None:
    assert refused(held("a"), policy=Policy(intent_deadline_seconds=100_001)).reason is Reason.ARGUMENTS_INVALID


def test_a_reservation_that_lasts_as_long_as_the_intent_may_take_is_taken() -> None:
    assert planned(held("a", ttl_seconds=86_400)).by_id["a"].arguments["ttl_seconds"] == 86_400


# --- risk ------------------------------------------------------------------------------------------------------------


def test_what_is_confirmed_is_graded_as_what_cannot_be_undone() -> None:
    moves: AnyContract = replace(CONTRACT, amount=AmountUse(argument="ttl_seconds", currency="text"))
    large = RiskInputs(amount_cents=1_000_001, currency="EUR")

    assert grade(moves, large).duty is Duty.TWO
    assert grade(replace(moves, confirms=None), large).duty is Duty.ONE


# --- what a tool may not say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"side_effect": SideEffect.IRREVERSIBLE, "compensates_by": None}, "declare it REVERSIBLE"),
        ({"dispatch": Dispatch.REMOTE}, "only what our own database keeps is confirmed yet"),
        ({"amount": AmountUse(argument="ttl_seconds", currency="text", paid_into="book_id")}, "take paid_into away"),
        ({"confirms": {"does": " "}}, "confirms.does"),
        ({"confirms": {"expires_at": "text"}}, "'text' is no output field that is a moment"),
        ({"confirms": {"lasts": "text"}}, "'text' is no argument that is a number of seconds"),
        ({"confirms": {"lasts": "nothing"}}, "'nothing' is no argument that is a number of seconds"),
    ],
)
def test_a_contract_whose_confirmation_cannot_be_kept_is_not_registered(changes: Any, wrong: str) -> None:  # noqa: ANN401
    assert CONTRACT.confirms is not None
    told = changes.get("confirms")
    given = changes if told is None else {"confirms": replace(CONTRACT.confirms, **told)}

    assert any(wrong in line for line in check_contract(replace(CONTRACT, **given)))


def test_contract_and_handler_of_a_confirmation_go_together() -> None:
    tool = reserving_tool(Behaviour())
    pack = sample_pack(Behaviour())

    for broken in (replace(tool, confirm=None), replace(tool, contract=replace(CONTRACT, confirms=None))):
        with pytest.raises(PackError, match="go together"):
            check_packs([Pack(name="one", tools=(broken,), resources=pack.resources)])


def test_a_confirmation_that_answers_something_else_is_refused_at_start_up() -> None:
    async def confirm(transaction: Any, step: HoldSampleNote, reservation: Any, context: Any) -> int:  # noqa: ANN401
        raise AssertionError((transaction, step, reservation, context))

    wrong: Any = confirm
    tool = replace(reserving_tool(Behaviour()), confirm=wrong)
    with pytest.raises(PackError, match="confirm must return ConfirmedSampleNote"):
        check_packs([Pack(name="one", tools=(tool,), resources=sample_pack(Behaviour()).resources)])


# --- open intents ----------------------------------------------------------------------------------------------------


def test_an_open_intent_is_confirmed_when_nothing_follows_any_more() -> None:
    opened = plan_for(propose({"protocol": 1, "session_id": "chat-1", "open": "trip"}, CALLER, REGISTRY), {}, Policy())

    first = grow(opened, held("a"), REGISTRY, final=False)
    last = grow(opened, held("a"), REGISTRY, final=True)

    assert first.confirming == ()
    assert [(step.step_id, step.needs) for step in last.confirming] == [("a.confirm", ("a",))]
    assert last.added.step_id == "a"
    assert [step.step_id for step in last.proof.steps] == ["a", "a.confirm"]
    assert seal(opened, REGISTRY) is None
