"""Behaviour of the door: what an agent posted is refused whole, with every wrong field, or taken byte for byte."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.base import JsonObject, JsonValue, items_of
from contracts.binding import Binding
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.intent import STEPS_MAX, Caller
from contracts.proposal import Proposal, propose, propose_body
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.tool import SideEffect
from contracts.wire import BODY_BYTES_MAX, PROBLEMS_MAX, parse_object
from tests.unit.sample_contracts import CONTRACTS, FREEZE, NOTE, sample_registry

CALLER = Caller(tenant="bank", principal="customer-7", agent="assistant")
REGISTRY = sample_registry()
AMOUNT_ALLOWED = "integer from 1 to 10000000000"


def intent(*steps: JsonObject, **more: JsonValue) -> JsonObject:
    return {"protocol": 1, "session_id": "chat-42", "steps": list(steps), **more}


def freeze(step_id: str = "freeze", **changed: JsonValue) -> JsonObject:
    arguments = {"account_id": "ACC00000001", "amount_cents": 12_500, "currency": "EUR", **changed}
    return {"step_id": step_id, "tool": "freeze_sample_funds", "arguments": arguments}


def debit(step_id: str = "debit", source: str = "freeze", **changed: JsonValue) -> JsonObject:
    bound = {"$from": f"{source}.hold_id"}
    arguments = {"hold_id": bound, "amount_cents": 12_500, "currency": "EUR", **changed}
    return {"step_id": step_id, "tool": "debit_sample_funds@1", "arguments": arguments}


def refund(step_id: str = "refund", **changed: JsonValue) -> JsonObject:
    return {**debit(step_id, hold_id="HLD0000000001"), "tool": "refund_sample_debit", **changed}


def note(step_id: str = "note", **changed: JsonValue) -> JsonObject:
    about = {"kind": "account", "account_id": "ACC00000001"}
    return {"step_id": step_id, "tool": "write_sample_note", "arguments": {"text": "x", "about": about, **changed}}


def balance(step_id: str = "balance") -> JsonObject:
    return {"step_id": step_id, "tool": "check_sample_balance", "arguments": {"account_id": "ACC00000001"}}


def needing(step: JsonObject, *needs: str) -> JsonObject:
    return {**step, "needs": list(needs)}


def taken(posted: JsonObject, **options: JsonValue) -> Proposal:
    return propose(posted, CALLER, REGISTRY, **options)


def refused(posted: JsonObject) -> SagaError:
    with pytest.raises(SagaError) as caught:
        taken(posted)
    assert caught.value.info.phase is Phase.VALIDATION
    return caught.value


def only(error: SagaError) -> FieldProblem:
    (problem,) = error.info.fields
    return problem


# ---------------------------------------------------------------------------------------------------------- good input


def test_a_chain_is_taken_with_its_steps_resolved() -> None:
    proposal = taken(intent(freeze(), debit(), note(about={"kind": "hold", "hold_id": {"$from": "freeze.hold_id"}})))

    assert [step.step_id for step in proposal.steps] == ["freeze", "debit", "note"]
    assert [step.position for step in proposal.steps] == [0, 1, 2]
    assert [step.needs for step in proposal.steps] == [(), ("freeze",), ("debit", "freeze")]
    assert (Binding(("hold_id",), "freeze", ("hold_id",)),) == proposal.steps[1].bindings
    assert (Binding(("about", "hold_id"), "freeze", ("hold_id",)),) == proposal.steps[2].bindings
    assert proposal.steps[0].contract is FREEZE
    assert (proposal.attempt, proposal.caller) == (1, CALLER)
    assert proposal.intent_id.startswith("int_")


def test_missing_needs_mean_the_step_before_and_empty_needs_mean_none() -> None:
    proposal = taken(intent(freeze("a"), freeze("b"), {**freeze("c"), "needs": []}, {**note("d"), "needs": ["c", "a"]}))

    assert {step.step_id: step.needs for step in proposal.steps} == {"a": (), "b": ("a",), "c": (), "d": ("c", "a")}


def test_steps_come_in_topological_order_and_ties_as_posted() -> None:
    steps = [needing(freeze("c"), "b"), needing(freeze("a")), needing(freeze("b"))]

    assert [step.step_id for step in taken(intent(*steps)).steps] == ["a", "b", "c"]


def test_the_session_of_the_harness_overrides_the_file() -> None:
    posted = intent(freeze())

    assert taken(posted, session_id="call-7").intent.session_id == "call-7"
    assert taken(posted, session_id="call-7").intent_key != taken(posted).intent_key
    assert taken({**posted, "session_id": "call-7"}).intent_key == taken(posted, session_id="call-7").intent_key
    del posted["session_id"]
    assert taken(posted, session_id="call-7").intent.session_id == "call-7"
    with pytest.raises(SagaError) as caught:
        taken(posted, session_id="../x")
    assert only(caught.value).path == "session_id"


def test_bytes_and_parsed_values_give_the_same_proposal() -> None:
    posted = intent(freeze(), debit())
    body = json.dumps(posted).encode()

    assert taken(posted) == propose_body(body, CALLER, REGISTRY) == propose(parse_object(body), CALLER, REGISTRY)


def test_the_posted_object_is_left_as_it_was() -> None:
    posted = intent(freeze(), debit())
    before = copy.deepcopy(posted)

    taken(posted, session_id="other")

    assert before == posted


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("value", "reason", "code"),
    [
        (1.0, Reason.ARGUMENTS_INVALID, "integers_only"),
        (1e3, Reason.ARGUMENTS_INVALID, "integers_only"),
        (1.1, Reason.ARGUMENTS_INVALID, "integers_only"),
        ("100", Reason.ARGUMENTS_INVALID, "wrong_type"),
        ("1,000,000", Reason.ARGUMENTS_INVALID, "wrong_type"),
        ("￥100", Reason.ARGUMENTS_INVALID, "wrong_type"),
        ("\uff11\uff10\uff10", Reason.ARGUMENTS_INVALID, "wrong_type"),
        (True, Reason.ARGUMENTS_INVALID, "wrong_type"),
        (None, Reason.ARGUMENTS_INVALID, "wrong_type"),
        ([1], Reason.ARGUMENTS_INVALID, "wrong_type"),
        (-5, Reason.ARGUMENTS_INVALID, "too_small"),
        (0, Reason.ARGUMENTS_INVALID, "too_small"),
        (10_000_000_001, Reason.ARGUMENTS_INVALID, "too_large"),
        (2**53, Reason.ARGUMENTS_INVALID, "integer_range"),
        (2**63, Reason.ARGUMENTS_INVALID, "integer_range"),
        pytest.param(10**6_000, Reason.ARGUMENTS_INVALID, "integer_range", id="6001-digits"),
        (float("nan"), Reason.BODY_MALFORMED, "not_json"),
        (float("inf"), Reason.BODY_MALFORMED, "not_json"),
        (float("-inf"), Reason.BODY_MALFORMED, "not_json"),
    ],
)
def test_an_amount_that_is_no_amount_is_refused(value: JsonValue, reason: Reason, code: str) -> None:
    error = refused(intent(freeze(), debit(amount_cents=value)))

    problem = only(error)
    assert reason is error.reason
    assert ("steps[1].arguments.amount_cents", code) == (problem.path, problem.code)
    assert (problem.allowed, problem.example) == (AMOUNT_ALLOWED, 12_500)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        ("1.0", Reason.ARGUMENTS_INVALID, "integers_only"),
        ("1e3", Reason.ARGUMENTS_INVALID, "integers_only"),
        ("1E400", Reason.ARGUMENTS_INVALID, "integers_only"),
        ("-0", Reason.ARGUMENTS_INVALID, "integers_only"),
        ("9" * 5_000, Reason.ARGUMENTS_INVALID, "integer_range"),
        ("9007199254740992", Reason.ARGUMENTS_INVALID, "integer_range"),
        ("NaN", Reason.BODY_MALFORMED, "not_json"),
        ('"a\\u0000"', Reason.BODY_MALFORMED, "nul"),
        ('"\\ud800"', Reason.BODY_MALFORMED, "lone_surrogate"),
        ('1, "amount_cents": 1', Reason.BODY_MALFORMED, "duplicate_key"),
    ],
)
def test_a_door_that_reads_bytes_says_what_the_tool_takes_instead(text: str, reason: Reason, code: str) -> None:
    body = json.dumps(intent(freeze())).replace("12500", text).encode()

    with pytest.raises(SagaError) as caught:
        propose_body(body, CALLER, REGISTRY)

    problem = only(caught.value)
    assert reason is caught.value.reason
    assert ("steps[0].arguments.amount_cents", code, 12_500) == (problem.path, problem.code, problem.example)
    assert problem.allowed == AMOUNT_ALLOWED or caught.value.reason is Reason.BODY_MALFORMED


def change(path: str, value: JsonValue) -> Callable[[JsonObject], None]:
    def apply(posted: JsonObject) -> None:
        place: Any = posted
        *above, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in above:
            place = place[key]
        if value is DELETE:
            del place[last]
        else:
            place[last] = value

    return apply


DELETE = object()


@pytest.mark.parametrize(
    ("path", "value", "reason", "at", "code"),
    [
        ("protocol", 2, Reason.ARGUMENTS_INVALID, "protocol", "not_a_choice"),
        ("protocol", "1", Reason.ARGUMENTS_INVALID, "protocol", "not_a_choice"),
        ("protocol", 1.0, Reason.ARGUMENTS_INVALID, "protocol", "integers_only"),
        ("protocol", DELETE, Reason.ARGUMENTS_INVALID, "protocol", "missing"),
        ("session_id", DELETE, Reason.ARGUMENTS_INVALID, "session_id", "missing"),
        ("session_id", "", Reason.ARGUMENTS_INVALID, "session_id", "wrong_form"),
        ("session_id", "a/../b", Reason.ARGUMENTS_INVALID, "session_id", "wrong_form"),
        ("session_id", "a\n", Reason.ARGUMENTS_INVALID, "session_id", "wrong_form"),
        ("session_id", "é" * 600, Reason.ARGUMENTS_INVALID, "session_id", "wrong_form"),
        ("tenant", "other", Reason.ARGUMENTS_INVALID, "tenant", "unknown_field"),
        ("steps", DELETE, Reason.ARGUMENTS_INVALID, "steps", "missing"),
        ("steps", [], Reason.ARGUMENTS_INVALID, "steps", "too_short"),
        ("steps", {}, Reason.ARGUMENTS_INVALID, "steps", "wrong_type"),
        ("steps", None, Reason.ARGUMENTS_INVALID, "steps", "wrong_type"),
        ("steps.1", 1, Reason.ARGUMENTS_INVALID, "steps[1]", "wrong_type"),
        ("steps.1.step_id", "freeze", Reason.ARGUMENTS_INVALID, "steps[1].step_id", "duplicate_step_id"),
        ("steps.1.step_id", "../x", Reason.ARGUMENTS_INVALID, "steps[1].step_id", "wrong_form"),
        ("steps.1.step_id", "debit\n", Reason.ARGUMENTS_INVALID, "steps[1].step_id", "wrong_form"),
        ("steps.1.step_id", DELETE, Reason.ARGUMENTS_INVALID, "steps[1].step_id", "missing"),
        ("steps.1.tool", "gone_sample_funds", Reason.TOOL_UNKNOWN, "steps[1].tool", "tool_unknown"),
        ("steps.1.tool", "debit_sample_funds@2", Reason.TOOL_UNKNOWN, "steps[1].tool", "tool_unknown"),
        ("steps.1.tool", "../../etc/passwd", Reason.TOOL_UNKNOWN, "steps[1].tool", "tool_unknown"),
        ("steps.1.tool", 1, Reason.ARGUMENTS_INVALID, "steps[1].tool", "wrong_type"),
        ("steps.1.arguments", [], Reason.ARGUMENTS_INVALID, "steps[1].arguments", "wrong_type"),
        ("steps.1.arguments", DELETE, Reason.ARGUMENTS_INVALID, "steps[1].arguments", "missing"),
        ("steps.1.arguments.currency", DELETE, Reason.ARGUMENTS_INVALID, "steps[1].arguments.currency", "missing"),
        ("steps.1.arguments.note", "x", Reason.ARGUMENTS_INVALID, "steps[1].arguments.note", "unknown_field"),
        ("steps.1.arguments.memo", None, Reason.ARGUMENTS_INVALID, "steps[1].arguments.memo", "wrong_type"),
        ("steps.1.why", "x", Reason.ARGUMENTS_INVALID, "steps[1].why", "unknown_field"),
        ("steps.1.needs", None, Reason.ARGUMENTS_INVALID, "steps[1].needs", "wrong_type"),
        ("steps.1.needs", "freeze", Reason.ARGUMENTS_INVALID, "steps[1].needs", "wrong_type"),
        ("steps.1.needs", ["gone"], Reason.ARGUMENTS_INVALID, "steps[1].needs[0]", "needs_unknown"),
        ("steps.1.needs", ["debit"], Reason.ARGUMENTS_INVALID, "steps[1].needs[0]", "needs_cycle"),
        ("steps.1.needs", ["freeze", "freeze"], Reason.ARGUMENTS_INVALID, "steps[1].needs[1]", "needs_duplicate"),
        ("steps.1.needs", ["../x"], Reason.ARGUMENTS_INVALID, "steps[1].needs[0]", "wrong_form"),
        ("occurrence", 0, Reason.ARGUMENTS_INVALID, "occurrence", "too_small"),
        ("occurrence", True, Reason.ARGUMENTS_INVALID, "occurrence", "wrong_type"),
        ("occurrence", 1.0, Reason.ARGUMENTS_INVALID, "occurrence", "integers_only"),
        ("retry_of", "../x", Reason.ARGUMENTS_INVALID, "retry_of", "wrong_form"),
        ("business_reference", "a b", Reason.ARGUMENTS_INVALID, "business_reference", "wrong_form"),
        ("goal", "x" * 501, Reason.ARGUMENTS_INVALID, "goal", "too_long"),
        ("goal", "a\x00b", Reason.BODY_MALFORMED, "goal", "nul"),
        ("goal", "\udead", Reason.BODY_MALFORMED, "goal", "lone_surrogate"),
    ],
)  # fmt: skip
def test_a_wrong_intent_is_refused_for_one_reason_at_one_place(
    path: str, value: JsonValue, reason: Reason, at: str, code: str
) -> None:
    posted = intent(freeze(), debit())
    change(path, value)(posted)

    error = refused(posted)

    problem = only(error)
    assert (reason, at, code) == (error.reason, problem.path, problem.code)
    assert problem.allowed
    assert problem.example is not None
    assert str(error).startswith(at)


def bound(target: JsonValue) -> JsonObject:
    return intent(freeze(), debit(hold_id=target))


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        ("gone.hold_id", "binding_dangling"),
        ("freeze.gone", "binding_dangling"),
        ("freeze.hold_id.deeper", "binding_dangling"),
        ("debit.hold_id", "binding_cycle"),
        ("freeze.held_cents", "binding_misfit"),
        ("freeze.currency", "binding_misfit"),
        ("freeze.memo", "binding_misfit"),
        ("freeze", "binding_malformed"),
        ("freeze.hold_id ", "binding_malformed"),
        ("freeze.hold_id\n", "binding_malformed"),
        ("../freeze.hold_id", "binding_malformed"),
        (1, "binding_malformed"),
        (None, "binding_malformed"),
    ],
)
def test_a_binding_that_leads_nowhere_or_does_not_fit_is_refused_with_one_that_would(
    binding: JsonValue, code: str
) -> None:
    error = refused(bound({"$from": binding}))

    problem = only(error)
    assert error.reason is Reason.ARGUMENTS_INVALID
    assert ("steps[1].arguments.hold_id", code) == (problem.path, problem.code)
    assert problem.allowed == "text matching ^HLD[0-9]{10}$; or a binding to one of: freeze.hold_id"
    assert problem.example == {"$from": "freeze.hold_id"}
    taken(bound(problem.example))


def test_an_object_with_from_and_something_beside_it_is_no_binding() -> None:
    assert only(refused(bound({"$from": "freeze.hold_id", "x": 1}))).code == "binding_malformed"


def test_the_arguments_as_a_whole_cannot_be_bound() -> None:
    problem = only(refused(intent(freeze(), {**debit(), "arguments": {"$from": "freeze.hold_id"}})))

    assert (problem.path, problem.code) == ("steps[1].arguments", "binding_malformed")


def test_an_unknown_field_does_not_become_known_by_a_binding() -> None:
    problem = only(refused(intent(freeze(), debit(extra={"$from": "freeze.hold_id"}))))

    assert (problem.path, problem.code) == ("steps[1].arguments.extra", "unknown_field")


def test_an_output_that_may_be_null_feeds_only_an_argument_that_may() -> None:
    taken(intent(freeze("a"), freeze("b", memo={"$from": "a.memo"})))
    assert only(refused(intent(freeze(), debit(memo={"$from": "freeze.memo"})))).code == "binding_misfit"


def test_words_fit_only_words_that_the_argument_knows() -> None:
    taken(intent(freeze(), debit(currency={"$from": "freeze.currency"})))
    taken(intent(balance(), freeze(currency={"$from": "balance.currency"})))
    assert only(refused(intent(freeze(), debit(currency={"$from": "freeze.hold_id"})))).code == "binding_misfit"


def function(name: str, *operands: JsonValue) -> JsonObject:
    return {"$fn": name, "of": list(operands)}


AVAILABLE: JsonObject = {"$from": "balance.available_cents"}


def test_a_named_function_of_whole_numbers_stands_where_its_result_can() -> None:
    proposal = taken(intent(balance(), freeze(amount_cents=function("min_cents", AVAILABLE, 12_500))))

    assert proposal.steps[1].needs == ("balance",)
    assert proposal.steps[1].late == ("amount_cents",)


@pytest.mark.parametrize(
    ("operands", "why"),
    [
        ([{"$from": "balance.currency"}, 1], "takes integers"),
        ([{"$from": "balance.gone"}, 1], "has no output gone"),
        ([{"$from": "nowhere.cents"}, 1], "names no step"),
        ([{"$from": "freeze.held_cents"}, 1], "names the step itself"),
        ([AVAILABLE, 2**53 - 1], "the output is always too large"),
        ([1, 2], "and this is neither"),
    ],
)
def test_a_function_whose_operands_or_result_do_not_fit_is_refused_at_the_door(
    operands: list[JsonValue], why: str
) -> None:
    problem = only(refused(intent(balance(), freeze(amount_cents=function("sum_cents", *operands)))))

    assert problem.path == "steps[1].arguments.amount_cents"
    assert why in problem.message


def test_a_function_gives_no_text() -> None:
    error = refused(intent(balance(), freeze(), debit(hold_id=function("sum_cents", AVAILABLE, 1))))

    assert "gives an integer, the argument is of type string" in only(error).message


def test_a_function_is_part_of_the_key_and_step_names_in_it_are_not() -> None:
    def key(amount: JsonValue, name: str = "balance") -> str:
        return taken(intent({**balance(), "step_id": name}, freeze(amount_cents=amount))).intent_key

    renamed = key(function("sum_cents", {"$from": "look.available_cents"}, 5), "look")

    assert renamed == key(function("sum_cents", AVAILABLE, 5))
    assert (
        len(
            {
                renamed,
                key(AVAILABLE),
                key(function("sum_cents", AVAILABLE, 6)),
                key(function("min_cents", AVAILABLE, 5)),
            }
        )
        == 4
    )


def test_a_binding_inside_an_array_and_a_union_is_checked_like_any_other() -> None:
    hold = {"kind": "hold", "hold_id": {"$from": "freeze.hold_id"}}
    taken(intent(freeze(), note(about=hold, tags=["a", {"$from": "freeze.hold_id"}])))

    error = refused(
        intent(freeze(), note(about={**hold, "hold_id": {"$from": "freeze.held_cents"}}, tags=[{"$from": "freeze.x"}]))
    )

    assert {
        ("steps[1].arguments.about.hold_id", "binding_misfit"),
        ("steps[1].arguments.tags[0]", "binding_dangling"),
    } == {(problem.path, problem.code) for problem in error.info.fields}


def test_the_field_that_decides_a_union_cannot_be_bound() -> None:
    error = refused(intent(freeze(), note(about={"kind": {"$from": "freeze.currency"}, "account_id": "ACC00000001"})))

    assert "steps[1].arguments.about" in [problem.path for problem in error.info.fields]


def test_steps_that_wait_for_each_other_are_refused_and_the_circle_named() -> None:
    one = {**freeze("one"), "needs": ["three"]}
    two = {**freeze("two"), "needs": ["one"]}
    three = debit("three", "two")
    outside = {**freeze("outside"), "needs": ["three"]}

    error = refused(intent(one, two, {**three, "needs": []}, outside))

    assert error.reason is Reason.ARGUMENTS_INVALID
    assert [(problem.path, problem.code) for problem in error.info.fields] == [
        ("steps[0].needs", "needs_cycle"),
        ("steps[2].arguments.hold_id", "binding_cycle"),
        ("steps[1].needs", "needs_cycle"),
    ]
    assert "one -> three -> two -> one" in str(error)


def test_a_binding_to_a_later_step_of_a_chain_is_a_circle() -> None:
    error = refused(intent(debit("debit", "freeze"), freeze()))

    assert {"binding_cycle", "needs_cycle"} == {problem.code for problem in error.info.fields}


def test_fifty_steps_are_taken_and_fifty_one_are_not() -> None:
    assert len(taken(intent(*(freeze(f"s{n}") for n in range(STEPS_MAX)))).steps) == STEPS_MAX

    problem = only(refused(intent(*(freeze(f"s{n}") for n in range(STEPS_MAX + 1)))))

    assert (problem.path, problem.code, problem.allowed) == ("steps", "too_long", "array of 1 to 50 items")


def test_everything_that_is_wrong_is_told_at_once() -> None:
    posted = intent(
        freeze("a", amount_cents=1.5, currency="XXX"),
        {**freeze("a"), "tool": "freeze_simple_funds"},
        debit("c", "gone", amount_cents="1", memo=2**60),
        occurrence=0,
    )

    error = refused(posted)

    assert error.reason is Reason.TOOL_UNKNOWN
    assert {
        "steps[0].arguments.amount_cents",
        "steps[0].arguments.currency",
        "steps[1].tool",
        "steps[1].step_id",
        "steps[2].arguments.hold_id",
        "steps[2].arguments.amount_cents",
        "steps[2].arguments.memo",
        "occurrence",
    } == {problem.path for problem in error.info.fields}
    assert len(error.info.fields) == 8


def test_a_body_that_never_was_bytes_has_the_same_limit() -> None:
    posted = intent(*(note(f"n{n}", text="x" * (BODY_BYTES_MAX // 40)) for n in range(41)))

    assert refused(posted).reason is Reason.BODY_TOO_LARGE


@pytest.mark.parametrize(
    "arguments",
    [
        {f"f{n}": {"$from": "x"} for n in range(5_000)},
        {f"f{n}": {"$from": "a.b"} for n in range(5_000)},
        {"\x1b" * 1_000 + str(n): 1 for n in range(500)},
        {"account_id": ["x"] * 15_000},
        {"account_id": 10**4_000, "amount_cents": "\u202e" * 100_000},
    ],
)
def test_a_hostile_intent_gets_a_short_answer(arguments: JsonObject) -> None:
    error = refused(intent({**freeze(), "arguments": arguments}))

    assert len(error.info.fields) <= PROBLEMS_MAX
    assert len(error.info.model_dump_json()) < 60_000


def test_a_sensitive_value_is_not_echoed() -> None:
    error = refused(intent(note(secret="hunter2" * 10)))
    assert "hunter2" not in error.info.model_dump_json()

    error = refused(intent(note(secret=4711.5)))
    assert "4711" not in error.info.model_dump_json()


odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["freeze", "debit", "freeze_sample_funds", "account", "hold", "HLD0000000001", "ACC00000001"])
    | st.sampled_from(["freeze.hold_id", "debit.hold_id", "freeze.memo", "x.y"]).map(lambda source: {"$from": source})
    | st.sampled_from(["balance.available_cents", "freeze.held_cents", "freeze.hold_id", "x.y"]).map(
        lambda source: {"$fn": "sum_cents", "of": [{"$from": source}, 1]}
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$from", "$fn", "of", "kind", "step_id", "tool", "arguments", "needs", "x"]), inner
        )
    ),
    max_leaves=6,
)


def paths_in(value: JsonValue) -> list[tuple[str | int, ...]]:
    return [(key, *path) for key, item in items_of(value) for path in [(), *paths_in(item)]]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_whatever_stands_wherever_gives_a_proposal_or_a_complete_refusal(data: st.DataObject) -> None:
    about = {"kind": "hold", "hold_id": {"$from": "freeze.hold_id"}}
    posted = intent(freeze(memo="m"), debit(), needing(note(about=about, tags=["a"]), "debit"), occurrence=1, goal="g")
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths_in(posted)))
        change(".".join(str(key) for key in path), data.draw(odd_values))(posted)

    try:
        proposal = taken(posted)
    except SagaError as error:
        told = error.info
    else:
        assert [step.arguments for step in proposal.steps] == [step["arguments"] for step in posted["steps"]]
        return
    assert told.phase is Phase.VALIDATION
    assert told.fields
    assert all(problem.path and problem.allowed and problem.message.isprintable() for problem in told.fields)


# ------------------------------------------------------------------------------------------------------- order of plans


def clashes(error: SagaError) -> list[list[str]]:
    return [check["path"] for check in error.info.details["broken"] if check["rule"] == "PIVOT"]


def legal_order(error: SagaError) -> list[str]:
    return next(check["legal_order"] for check in error.info.details["broken"])


def test_a_step_that_may_refuse_after_the_pivot_is_unsound_and_the_legal_order_named() -> None:
    error = refused(intent(refund(), freeze(), balance()))

    assert error.reason is Reason.PLAN_UNSOUND
    assert [(p.path, p.code) for p in error.info.fields] == [
        ("steps[1]", "order_unsound"),
        ("steps[2]", "order_unsound"),
    ]
    assert clashes(error) == [["refund", "freeze"], ["refund", "balance"]]
    assert legal_order(error) == ["freeze", "balance", "refund"]
    assert error.info.fields[0].example == ["freeze", "balance", "refund"]


def test_a_pivot_after_everything_that_may_refuse_and_before_what_cannot_is_sound() -> None:
    taken(intent(freeze(), debit(), refund(), note()))


def test_two_pivots_have_no_legal_order() -> None:
    error = refused(intent(refund("one"), refund("two")))

    assert error.reason is Reason.PLAN_UNSOUND
    assert legal_order(error) == []
    assert error.info.fields[0].allowed == "No order of these steps is safe; post them as several intents."


def test_a_step_that_takes_the_pivots_output_and_may_refuse_has_no_legal_order() -> None:
    error = refused(intent(refund(), freeze(amount_cents={"$from": "refund.debited_cents"})))

    assert legal_order(error) == []


def test_a_step_beside_the_pivot_may_refuse_too_late() -> None:
    error = refused(intent({**freeze(), "needs": []}, {**refund(), "needs": []}))

    assert clashes(error) == [["refund", "freeze"]]


def test_irreversible_steps_that_cannot_refuse_come_last() -> None:
    final = replace(NOTE, name="erase_sample_note", side_effect=SideEffect.IRREVERSIBLE, may_refuse=False)
    registry = Registry((*CONTRACTS, final))
    erase = {**note("erase"), "tool": "erase_sample_note"}

    propose(intent(freeze(), refund(), erase, {**erase, "step_id": "again"}), CALLER, registry)
    with pytest.raises(SagaError) as caught:
        propose(intent(erase, refund(), freeze()), CALLER, registry)
    assert legal_order(caught.value) == ["freeze", "refund", "erase"]


# --------------------------------------------------------------------------------------------------------------- graphs


def test_a_step_waits_for_what_it_says_and_without_a_word_for_the_one_before() -> None:
    steps = taken(
        intent(
            freeze("a"), needing(freeze("b")), needing(freeze("c"), "a"), needing(freeze("d"), "b", "c"), freeze("e")
        )
    ).steps

    assert {step.step_id: step.needs for step in steps} == {
        "a": (),
        "b": (),
        "c": ("a",),
        "d": ("b", "c"),
        "e": ("d",),
    }


# ------------------------------------------------------------------------------------------------------------- fidelity

FAITHFUL_TEXTS = [
    "“curly” \u2018quotes\u2019",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "caf\u00e9",
    "cafe\u0301",
    "one\r\ntwo\rthree\nfour",
    "  both ends  \t",
    "\u200bzero\u200dwidth\ufeff",
    "\u202eright to left",
    "\u0410cc",
    "ﬁ ½ Ⅷ",
    "",
    " ",
    "\x01\x1f\x7f\x85",
    '\\u0041 \\n "quoted"',
    "null",
    "$from",
]


def assert_faithful(arguments: JsonObject, registry: Registry = REGISTRY) -> None:
    """What the tool gets is, byte for byte and in the same order, what was posted."""
    posted = intent({"step_id": "note", "tool": "write_sample_note", "arguments": arguments})
    body = json.dumps(posted, ensure_ascii=False).encode()

    for proposal in (propose_body(body, CALLER, registry), propose(json.loads(body), CALLER, registry)):
        (step,) = proposal.steps
        assert json.dumps(arguments, ensure_ascii=False) == json.dumps(step.arguments, ensure_ascii=False)
        read = step.contract.input.model_validate_json(json.dumps(step.arguments)).model_dump(mode="json")
        assert {name: read[name] for name in arguments} == arguments


@pytest.mark.parametrize("text", FAITHFUL_TEXTS)
def test_text_arrives_byte_for_byte(text: str) -> None:
    assert_faithful({**note()["arguments"], "text": text, "tags": [text[:20], "b", text[:20], "a"]})


def test_missing_null_and_empty_stay_three_things() -> None:
    posted = [freeze("a"), freeze("b", memo=None), freeze("c", memo="")]

    arguments = [step.arguments for step in taken(intent(*posted)).steps]

    assert "memo" not in arguments[0]
    assert arguments[1]["memo"] is None
    assert arguments[2]["memo"] == ""


def test_a_planted_normaliser_makes_the_fidelity_test_fail() -> None:
    """Once in a tool's model, which registration refuses as well, and once in the door itself."""
    tidy = type("TidyInput", (NOTE.input,), {"model_config": {**NOTE.input.model_config, "str_strip_whitespace": True}})
    registry = Registry((replace(NOTE, input=tidy),))

    with pytest.raises(AssertionError):
        assert_faithful({**note()["arguments"], "text": " x "}, registry)
    with pytest.raises(ValueError, match="str_strip_whitespace"):
        Registry.of(registry.values())


def test_a_planted_normaliser_in_the_door_makes_the_fidelity_test_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    import unicodedata  # noqa: PLC0415 - only what is planted uses it

    def tidy(body: bytes) -> JsonObject:
        value: JsonObject = json.loads(unicodedata.normalize("NFC", body.decode()))
        return value

    monkeypatch.setattr("contracts.proposal.decode_object", tidy)

    with pytest.raises(AssertionError):
        assert_faithful({**note()["arguments"], "text": "cafe\u0301"})
