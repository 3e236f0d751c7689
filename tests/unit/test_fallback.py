"""Fallbacks: read, keyed, planned, proved, drawn; and when the reducer lets one run."""

import pytest

from contracts.base import JsonObject
from contracts.checks import Rule
from contracts.drawing import mermaid, svg
from contracts.ends import Fault, Way
from contracts.envelope import Outcome, StepState
from contracts.errors import SagaError
from contracts.fallback import FENCED_FOR, line, lines
from contracts.keys import digest
from contracts.plan import Plan
from contracts.planning import ObjectState, plan_for
from contracts.proof import Proof, prove
from contracts.proposal import Proposal, propose
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.saga import Sighting
from contracts.tool import Dispatch, Duty
from tests.support.plans import admitted, chain, falling_back, landed
from tests.support.proofs import ANNA, CONTRACTS, graph
from tests.unit.test_planning import LEDGER
from workflows import commands as do
from workflows import events as on
from workflows.reducer import advance, begin
from workflows.state import Stage, State

MONEY: JsonObject = {"amount_cents": 500, "currency": "EUR", "reason_code": "PURCHASE"}


def freeze(account: str = "A00000001", **more: object) -> JsonObject:
    arguments = {"account_id": account, **MONEY}
    return {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": arguments, **more}


def other(tool: str = "freeze_account_funds", **arguments: object) -> JsonObject:
    return {"tool": tool, "arguments": {"account_id": "A00000002", **MONEY, **arguments}}


def debit() -> JsonObject:
    arguments = {"hold_id": {"$from": "freeze.hold_id"}, "credit_account_id": "S00000002", **MONEY}
    return {"step_id": "debit", "tool": "debit_frozen_funds", "arguments": arguments}


def posted(*steps: JsonObject) -> Proposal:
    return propose({"protocol": 1, "session_id": "chat", "steps": list(steps)}, ANNA, LEDGER)


def problem(*steps: JsonObject) -> tuple[str, str, str]:
    with pytest.raises(SagaError) as refused:
        posted(*steps)
    (wrong,) = refused.value.info.fields
    return wrong.path, wrong.code, wrong.message


def account(name: str, **more: object) -> dict[str, ObjectState]:
    known = {"tenant": "bank", "principal": "anna", "state": "ACTIVE", "currency": "EUR", "available_cents": 10_000_000}
    return {f"account:{name}": ObjectState(object_id=name, limit_cents=None, **known | more)}  # type: ignore[arg-type]


# --- reading and keys -----------------------------------------------------------------------------------------------


def test_a_fallback_is_a_step_of_the_plan_right_behind_its_own() -> None:
    steps = posted(freeze(fallback=other()), debit()).steps

    assert [(step.step_id, step.stands_for, step.needs) for step in steps] == [
        ("freeze", None, ()),
        ("freeze.fallback", "freeze", ()),
        ("debit", None, ("freeze",)),
    ]


def test_a_fallback_makes_another_intent_and_no_fallback_the_same_as_ever() -> None:
    plain, one, two = posted(freeze()), posted(freeze(fallback=other())), posted(freeze(fallback=other(amount_cents=1)))

    assert len({plain.intent_key, one.intent_key, two.intent_key}) == 3
    assert plain.canonical_steps == [
        {"tool": "freeze_account_funds", "arguments": {"account_id": "A00000001", **MONEY}, "needs": []}
    ]


@pytest.mark.parametrize(
    ("fallback", "path", "code"),
    [
        (None, "steps[0].fallback", "wrong_type"),
        ({"tool": "no_such_tool", "arguments": {}}, "steps[0].fallback.tool", "tool_unknown"),
        (other(amount_cents="5"), "steps[0].fallback.arguments.amount_cents", "wrong_type"),
        (other(account_id={"$from": "freeze.hold_id"}), "steps[0].fallback.arguments.account_id", "binding_cycle"),
        ({**other(), "fallback": other()}, "steps[0].fallback.fallback", "unknown_field"),
        (
            {"tool": "check_account_balance", "arguments": {"account_id": "A00000001"}},
            "steps[0].fallback",
            "fallback_reads",
        ),
    ],
)
def test_what_is_wrong_with_a_fallback_is_told_where_it_stands(fallback: object, path: str, code: str) -> None:
    assert problem(freeze(fallback=fallback))[:2] == (path, code)


def test_what_later_steps_bind_to_both_have_to_give() -> None:
    transfer = {
        "tool": "transfer_customer_funds",
        "arguments": {"from_account_id": "A00000001", "to_account_id": "A00000002", **MONEY, "reason_code": "PAYMENT"},
    }

    path, code, message = problem(freeze(fallback=transfer), debit())

    assert (path, code) == ("steps[1].arguments.hold_id", "binding_dangling")
    assert message.startswith("transfer_customer_funds@1 has no output hold_id")


def test_at_most_three_steps_have_a_fallback() -> None:
    steps: list[JsonObject] = [{**freeze(fallback=other()), "step_id": f"s{number}", "needs": []} for number in "0123"]

    assert problem(*steps)[:2] == ("steps[3].fallback", "too_many")


# --- planning -------------------------------------------------------------------------------------------------------


def planned(*steps: JsonObject, **objects: ObjectState) -> Plan:
    return plan_for(posted(*steps), account("A00000001") | account("A00000002") | objects, Policy())


def test_a_fallback_has_a_grade_of_its_own_and_is_asked_about_with_the_plan() -> None:
    plan = planned(freeze(fallback=other(amount_cents=1_500_000)))

    assert [(step.step_id, step.duty) for step in plan.steps] == [
        ("freeze", Duty.NONE),
        ("freeze.fallback", Duty.ONE),
    ]
    assert [step.step_id for step in plan.gated_steps] == ["freeze.fallback"]


def test_only_one_of_both_takes_money() -> None:
    plan = planned(freeze(fallback=other(account_id="A00000001")), **account("A00000001", available_cents=500))

    assert len(plan.steps) == 2


def test_the_object_of_a_fallback_is_checked_at_admission() -> None:
    with pytest.raises(SagaError, match="A00000002 does not belong to anna"):
        planned(freeze(fallback=other()), **account("A00000002", principal="ben"))


def test_a_plan_without_fallbacks_has_the_proof_that_it_had_before_there_were_any() -> None:
    assert "stands_for" not in posted(freeze()).proof.text
    assert "stands_for" in posted(freeze(fallback=other())).proof.text


def test_a_plan_binds_to_its_fallback() -> None:
    plan = planned(freeze(fallback=other()))

    assert plan.digest != planned(freeze(fallback=other(amount_cents=501))).digest
    assert plan.digest == digest(
        {
            **plan.model_dump(mode="json", exclude={"opened", "sealed", "inactivity_seconds", "steps"}),
            "steps": [
                {
                    name: value
                    for name, value in step.model_dump(mode="json").items()
                    if name != "late" and (name != "stands_for" or value)
                }
                for step in plan.steps
            ],
        }
    )


def test_lines_are_all_plans_that_the_plan_may_come_to() -> None:
    steps = falling_back(chain("a", "b"), "a", "b").steps

    told = [(fallen, [step.tool for step in some]) for fallen, some in lines(steps)]

    assert told == [
        ((), ["work_a@1", "work_b@1"]),
        (("a",), ["else_work_a@1", "work_b@1"]),
        (("b",), ["work_a@1", "else_work_b@1"]),
        (("a", "b"), ["else_work_a@1", "else_work_b@1"]),
    ]
    assert [step.step_id for step in line(steps, {"a"})] == ["a", "b"]


# --- proof ----------------------------------------------------------------------------------------------------------


def ways(proof: Proof, step_id: str, fault: Fault) -> tuple[Way, ...]:
    return next(step for step in proof.steps if step.step_id == step_id).faults[fault]


def test_the_proof_says_where_each_failure_leads_with_a_fallback_and_of_it() -> None:
    proof = prove(graph(a="undo_local_note", p="pay_keyed_remote or undo_sure_note after a"), CONTRACTS)

    assert proof.sound
    assert ways(proof, "p", Fault.REFUSED) == (Way.BACK, Way.INSTEAD)
    assert Way.INSTEAD in ways(proof, "p", Fault.UNKNOWN_NOT_LANDED)
    assert Way.INSTEAD not in ways(proof, "p", Fault.UNKNOWN_LANDED)
    assert ways(proof, "p", Fault.CANCEL) == (Way.FORWARD, Way.BACK, Way.HALTED)
    assert ways(proof, "p.fallback", Fault.REFUSED) == (Way.BACK,)
    ends = [
        (end.outcome, end.live)
        for row in proof.rows()
        if (row.landed, row.step_id, row.fault) == (("a",), "p", Fault.REFUSED)
        for end in row.ends
    ]
    assert ends == [(Outcome.COMPENSATED, ()), (Outcome.COMMITTED, ("a", "p.fallback"))]


def test_a_fallback_that_breaks_the_order_of_the_plan_is_refused_and_told_as_such() -> None:
    proof = prove(graph(p="undo_local_note or send_local_pivot", b="undo_local_note after p"), CONTRACTS)

    (broken,) = proof.broken
    assert not proof.sound
    assert broken.rule is Rule.PIVOT
    assert broken.says == "If p falls back: Step b may refuse after step p, which cannot be undone, has landed."


def test_the_pictures_show_a_fallback_beside_its_step() -> None:
    proof = prove(graph(a="undo_local_note or undo_sure_note", b="undo_local_note after a"), CONTRACTS)

    assert "s0 -. if it does not land .-> s1" in mermaid(proof)
    assert "a.fallback: undo_sure_note@1, only if a certainly does not land" in svg(proof)
    assert 'stroke-dasharray="5 4"' in svg(proof)


# --- the reducer ----------------------------------------------------------------------------------------------------


def started(plan: Plan) -> State:
    state, _ = begin()
    state, _ = advance(state, on.Admitted(admitted(plan)))
    return state


def refusal(reason: Reason, **details: object) -> on.StepRefused:
    return on.StepRefused("a", SagaError(reason, "no", details=details).info)


@pytest.mark.parametrize("reason", [Reason.FUNDS_INSUFFICIENT, Reason.WRONG_STATE, Reason.LIMIT_EXCEEDED])
def test_a_definite_refusal_lets_the_fallback_run(reason: Reason) -> None:
    state, commands = advance(started(falling_back(chain("a"), "a")), refusal(reason))

    assert commands == (do.Execute(step_id="a.fallback", arguments={}),)
    assert state.steps["a"].state is StepState.REFUSED


@pytest.mark.parametrize(
    "reason",
    [
        Reason.DEPENDENCY_DOWN,
        Reason.INTERNAL,
        Reason.MISMATCH,
        Reason.KEY_REUSED,
        Reason.SUPERSEDED,
        Reason.KILL_SWITCH_ON,
        Reason.DEADLINE_EXCEEDED,
        Reason.APPROVAL_MISSING,
        Reason.RESOURCE_LOCKED,
    ],
)
def test_what_is_not_certain_or_not_about_the_call_turns_back(reason: Reason) -> None:
    state, commands = advance(started(falling_back(chain("a"), "a")), refusal(reason))

    assert state.stage is Stage.CLOSING
    assert isinstance(commands[0], do.CloseIntent)


def test_a_step_that_its_fallback_fenced_before_a_crash_is_stood_for_again() -> None:
    _, commands = advance(
        started(falling_back(chain("a"), "a")), refusal(Reason.SUPERSEDED, **{FENCED_FOR: "a.fallback"})
    )

    assert commands == (do.Execute(step_id="a.fallback", arguments={}),)


def test_the_output_of_a_used_fallback_is_what_later_steps_are_bound_to() -> None:
    plan = falling_back(chain("a", "b"), "a")
    bound = plan.steps[2].model_copy(update={"arguments": {"value": {"$from": "a.value"}}})
    state, _ = advance(started(plan.changed(steps=(*plan.steps[:2], bound))), refusal(Reason.WRONG_STATE))

    _, commands = advance(state, on.StepLanded(landed("a.fallback", 1, {"value": 7})))

    assert commands == (do.Execute(step_id="b", arguments={"value": 7}),)


def test_after_an_unknown_outcome_only_certainty_lets_the_fallback_run() -> None:
    plan = falling_back(chain("a"), "a")
    remote = plan.changed(steps=tuple(step.model_copy(update={"dispatch": Dispatch.REMOTE}) for step in plan.steps))
    state, looks = advance(started(remote), refusal(Reason.OUTCOME_UNKNOWN))
    state, again = advance(state, on.StepSighted(Sighting(step_id="a", state="UNKNOWN")))

    _, commands = advance(state, on.StepSighted(Sighting(step_id="a", state="NOT_LANDED")))

    assert [type(command) for command in (*looks, *again)] == [do.Lookup, do.Lookup]
    assert commands == (do.Execute(step_id="a.fallback", arguments={}),)


def test_past_the_pivot_a_fallback_keeps_the_saga_from_getting_stuck() -> None:
    plan = falling_back(chain("p", "a", pivots=["p"]), "a")
    state, _ = advance(started(plan), on.StepLanded(landed("p", 1)))

    state, commands = advance(state, refusal(Reason.WRONG_STATE))

    assert state.past_pivot
    assert commands == (do.Execute(step_id="a.fallback", arguments={}),)
