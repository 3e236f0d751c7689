"""Behaviour of wrong fields: each is told with its place, what is allowed, and an example that would be right."""

import json
from typing import Annotated, Self

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from contracts.base import Contract, JsonObject, JsonValue
from contracts.errors import FieldProblem
from contracts.intent import Intent
from contracts.problems import field_problems, problem_at
from contracts.shape import shape_of
from contracts.wire import PROBLEMS_MAX
from tests.unit.sample_contracts import FreezeInput, NoteInput

FREEZE = {"account_id": "ACC00000001", "amount_cents": 12_500, "currency": "EUR"}
NOTE = {"text": "Called back.", "about": {"kind": "account", "account_id": "ACC00000001"}}
AMOUNT = ("integer from 1 to 10000000000", 12_500)


def problems_of(model: type[BaseModel], value: JsonValue, **options: JsonValue) -> tuple[FieldProblem, ...]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(value))
    return field_problems(caught.value, shape_of(model), value, **options)


def only(problems: tuple[FieldProblem, ...]) -> FieldProblem:
    (problem,) = problems
    return problem


@pytest.mark.parametrize(
    ("field", "value", "code", "allowed", "example"),
    [
        ("amount_cents", "100", "wrong_type", *AMOUNT),
        ("amount_cents", "1,000,000", "wrong_type", *AMOUNT),
        ("amount_cents", "￥100", "wrong_type", *AMOUNT),
        ("amount_cents", "\uff11\uff10\uff10", "wrong_type", *AMOUNT),
        ("amount_cents", 1.0, "integers_only", *AMOUNT),
        ("amount_cents", True, "wrong_type", *AMOUNT),
        ("amount_cents", None, "wrong_type", *AMOUNT),
        ("amount_cents", [], "wrong_type", *AMOUNT),
        ("amount_cents", {}, "wrong_type", *AMOUNT),
        ("amount_cents", 0, "too_small", *AMOUNT),
        ("amount_cents", -5, "too_small", *AMOUNT),
        ("amount_cents", 10_000_000_001, "too_large", *AMOUNT),
        ("account_id", "acc00000001", "wrong_form", "text matching ^ACC[0-9]{8}$", "ACC00000001"),
        ("account_id", "ACC00000001\n", "wrong_form", "text matching ^ACC[0-9]{8}$", "ACC00000001"),
        ("account_id", "ACC0000000\uff11", "wrong_form", "text matching ^ACC[0-9]{8}$", "ACC00000001"),
        ("account_id", "", "wrong_form", "text matching ^ACC[0-9]{8}$", "ACC00000001"),
        ("account_id", 1, "wrong_type", "text matching ^ACC[0-9]{8}$", "ACC00000001"),
        ("currency", "eur", "not_a_choice", "one of: EUR, USD", "EUR"),
        ("currency", "€", "not_a_choice", "one of: EUR, USD", "EUR"),
        ("memo", "x" * 201, "too_long", "text of at most 200 characters, or null", "Bicycle repair"),
        ("hold_ttl_seconds", 59, "too_small", "integer from 60 to 604800", 3_600),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed_and_an_example(
    field: str, value: JsonValue, code: str, allowed: str, example: JsonValue
) -> None:
    problem = only(problems_of(FreezeInput, {**FREEZE, field: value}, at=("steps", 1, "arguments")))

    assert (f"steps[1].arguments.{field}", code) == (problem.path, problem.code)
    assert (allowed, example) == (problem.allowed, problem.example)
    assert problem.message.endswith(".")


def test_the_example_of_every_problem_would_have_been_right() -> None:
    for field in FREEZE:
        problem = only(problems_of(FreezeInput, {**FREEZE, field: []}))

        FreezeInput.model_validate_json(json.dumps({**FREEZE, field: problem.example}))


def test_a_missing_field_is_told_with_what_belongs_there() -> None:
    problem = only(problems_of(FreezeInput, {"account_id": "ACC00000001", "currency": "EUR"}))

    assert ("amount_cents", "missing", *AMOUNT) == (problem.path, problem.code, problem.allowed, problem.example)


def test_an_unknown_field_is_told_with_the_known_ones_and_a_whole_example() -> None:
    problem = only(problems_of(FreezeInput, {**FREEZE, "amount": 1}))

    assert (problem.path, problem.code) == ("amount", "unknown_field")
    assert problem.allowed == "only the fields: account_id, amount_cents, currency, hold_ttl_seconds, memo"
    assert problem.example == FREEZE


def test_all_problems_come_at_once() -> None:
    problems = problems_of(FreezeInput, {"account_id": 1, "amount_cents": "x", "z": 1})

    assert [problem.path for problem in problems] == ["account_id", "amount_cents", "currency", "z"]


@pytest.mark.parametrize(
    ("about", "path", "code", "example"),
    [
        ({"kind": "account", "account_id": "x"}, "about.account_id", "wrong_form", "ACC00000001"),
        ({"kind": "hold"}, "about.hold_id", "missing", "HLD0000000001"),
        (
            {"kind": "hold", "account_id": "ACC00000001", "hold_id": "HLD0000000001"},
            "about.account_id",
            "unknown_field",
            None,
        ),
        ({"kind": "other"}, "about", "not_a_choice", None),
        ({"account_id": "ACC00000001"}, "about", "missing", None),
        ("text", "about", "wrong_type", None),
    ],
)
def test_a_problem_inside_a_union_has_a_json_path_without_the_name_of_the_branch(
    about: JsonValue, path: str, code: str, example: JsonValue
) -> None:
    problem = only(problems_of(NoteInput, {**NOTE, "about": about}))

    assert (path, code) == (problem.path, problem.code)
    assert problem.allowed
    assert problem.example == example if example else isinstance(problem.example, dict)


def test_a_problem_inside_an_array_names_its_index() -> None:
    assert [
        (problem.path, problem.code) for problem in problems_of(NoteInput, {**NOTE, "tags": ["a", "b" * 41, 3]})
    ] == [("tags[1]", "too_long"), ("tags[2]", "wrong_type")]


@pytest.mark.parametrize("value", ["x" * 1_000_000, "\x1b[2J\r\n\u202e" * 10, 10**4_000])
def test_a_huge_or_hostile_value_is_never_echoed(value: JsonValue) -> None:
    problem = only(problems_of(FreezeInput, {**FREEZE, "amount_cents": value}))

    assert len(problem.message) < 400
    assert problem.message.isascii()
    assert problem.message.isprintable()


def test_the_name_of_an_unknown_field_is_cut_and_cleaned() -> None:
    problem = only(problems_of(FreezeInput, {**FREEZE, "\x1b" + "k" * 100_000: 1}))

    assert len(problem.path) < 100
    assert problem.path.isprintable()


def test_a_sensitive_value_is_not_quoted_at_all() -> None:
    value = {**NOTE, "secret": "hunter2" * 10}

    problem = only(problems_of(NoteInput, value, sensitive=frozenset({"secret"})))

    assert (problem.path, problem.code) == ("secret", "too_long")
    assert "hunter2" not in problem.model_dump_json()


def test_no_more_problems_are_told_than_anybody_reads() -> None:
    value = {**FREEZE, **{f"extra_{number}": number for number in range(5_000)}}

    assert len(problems_of(FreezeInput, value)) == PROBLEMS_MAX


def test_an_array_with_a_wrong_item_is_not_called_too_short_as_well() -> None:
    step: JsonObject = {"step_id": "freeze", "tool": "Foo", "arguments": {}}
    intent: JsonObject = {"protocol": 1, "session_id": "chat-1", "steps": [step]}

    assert [problem.path for problem in problems_of(Intent, intent)] == ["steps[0].tool"]
    assert only(problems_of(Intent, {**intent, "steps": []})).code == "too_short"


def test_skipped_paths_are_not_told() -> None:
    value = {"account_id": 1, "amount_cents": "x", "currency": "EUR"}

    assert only(problems_of(FreezeInput, value, skip=frozenset({("account_id",)}).__contains__)).path == "amount_cents"


def test_a_rule_of_the_tool_is_told_in_its_own_words() -> None:
    class Transfer(Contract):
        one: Annotated[int, Field(ge=0, le=9)]
        other: Annotated[int, Field(ge=0, le=9)]

        @model_validator(mode="after")
        def differ(self) -> Self:
            if self.one == self.other:
                raise ValueError("One and other have to differ.\x1b[2J")
            return self

    problem = only(problems_of(Transfer, {"one": 1, "other": 1}))

    assert (problem.path, problem.code) == ("", "rule_broken")
    assert problem.message == "One and other have to differ.\\u{1b}[2J"


def test_wrong_fields_of_an_intent_are_told_the_same_way() -> None:
    problems = problems_of(
        Intent, {"protocol": 2, "session_id": "a b", "steps": [], "occurrence": 0, "retry_of": "int_1"}
    )

    assert [(p.path, p.code, p.allowed, None if p.path == "steps" else p.example) for p in problems] == [
        ("protocol", "not_a_choice", "only: 1", 1),
        ("session_id", "wrong_form", "text matching ^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", "chat-42"),
        ("steps", "too_short", "array of 1 to 50 items", None),
        ("occurrence", "too_small", "integer from 1 to 1000", 1),
        ("retry_of", "wrong_form", "text matching ^int_[a-z2-7]{26}$, or null", "int_" + "a2" * 13),
    ]


def test_a_problem_of_our_own_is_cut_and_cleaned_too() -> None:
    problem = problem_at(("a", 0), "code", "\x00" + "x" * 10_000, "b", 1)

    assert problem.path == "a[0]"
    assert problem.message.startswith("\\u{0}xxx")
    assert len(problem.message) < 320
