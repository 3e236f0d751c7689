"""Behaviour of the strict JSON reader that stands at every door."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import FieldProblem, Phase, SagaError
from contracts.reasons import Reason
from contracts.wire import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    INTEGER_MAX,
    PROBLEMS_MAX,
    VALUES_MAX,
    check_values,
    parse_object,
    path_text,
    shown,
)

integers = st.integers(-INTEGER_MAX, INTEGER_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
json_values = st.recursive(
    st.none() | st.booleans() | integers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def refused(body: bytes) -> SagaError:
    with pytest.raises(SagaError) as caught:
        parse_object(body)
    assert caught.value.info.phase is Phase.VALIDATION
    return caught.value


def assert_object_or_refusal(body: bytes) -> None:
    """Any other exception fails the test."""
    try:
        value = parse_object(body)
    except SagaError as error:
        reason = error.reason
    else:
        check_values(value)
        return
    assert reason in (Reason.BODY_MALFORMED, Reason.ARGUMENTS_INVALID)


def only_problem(error: SagaError) -> FieldProblem:
    (problem,) = error.info.fields
    assert problem.allowed
    return problem


@settings(deadline=None)
@given(st.dictionaries(texts, json_values, max_size=5))
def test_what_json_carries_exactly_comes_in_byte_for_byte(value: dict[str, Any]) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()

    assert value == parse_object(body)
    assert list(value) == list(parse_object(body))
    check_values(value)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_either_an_object_or_a_typed_refusal(body: bytes) -> None:
    assert_object_or_refusal(body)


@settings(deadline=None)
@given(st.text(alphabet='{}[]":,\\u0d8aeE+-.1 \n', max_size=60))
def test_text_that_looks_like_json_is_either_an_object_or_a_typed_refusal(text: str) -> None:
    assert_object_or_refusal(('{"a":' + text + "}").encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"1",
        b'"a"',
        b"null",
        b"{",
        b"{}{}",
        b"{} x",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 01}',
        b'{"a": +1}',
        b'{"a": .5}',
        b'{"a": 0x1}',
        b'{"a": "\n"}',
        b'{"a": "\\x00"}',
        b'{"a": 1} // note',
        b'{"a": tru}',
        '{"a": \uff11\uff12}'.encode(),
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_is_no_json_object_in_utf8_is_malformed(body: bytes) -> None:
    error = refused(body)

    assert error.reason is Reason.BODY_MALFORMED
    assert only_problem(error).example is not None


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        (b'{"a": {"b": 1, "b": 1}}', "a.b", "duplicate_key"),
        (b'{"a": 1, "\\u0061": 2}', "a", "duplicate_key"),
        (
            b'[{"a": 1}]'.replace(b"[", b'{"l": [').replace(b"]", b', {"c": 1, "d": 2, "c": 3}]}'),
            "l[1].c",
            "duplicate_key",
        ),
        (b'{"a": [1, "x\\u0000y"]}', "a[1]", "nul"),
        (b'{"a\\u0000": 1}', '["a\\u{0}"]', "nul"),
        (b'{"a": "\\ud83d"}', "a", "lone_surrogate"),
        (b'{"a": "\\ude00\\ud83d"}', "a", "lone_surrogate"),
        (b'{"\\ud83d": 1}', '["\\u{d83d}"]', "lone_surrogate"),
        (b'{"a": NaN}', "a", "not_json"),
        (b'{"a": Infinity}', "a", "not_json"),
        (b'{"a": [-Infinity]}', "a[0]", "not_json"),
    ],
)
def test_what_two_readers_could_read_differently_is_malformed_and_its_place_named(
    body: bytes, path: str, code: str
) -> None:
    error = refused(body)

    assert error.reason is Reason.BODY_MALFORMED
    assert (path, code) == (only_problem(error).path, only_problem(error).code)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("1.0", "integers_only"),
        ("1e3", "integers_only"),
        ("1E400", "integers_only"),
        ("-1e-400", "integers_only"),
        ("0.1", "integers_only"),
        ("-0", "integers_only"),
        ("-0.0", "integers_only"),
        ("9007199254740992", "integer_range"),
        ("-9007199254740992", "integer_range"),
        ("9" * 5_000, "integer_range"),
        ("-" + "9" * 100_000, "integer_range"),
    ],
)
def test_a_number_that_is_no_safe_integer_is_refused_where_it_stands(number: str, code: str) -> None:
    error = refused(('{"s": [0, {"a": ' + number + "}]}").encode())

    problem = only_problem(error)
    assert error.reason is Reason.ARGUMENTS_INVALID
    assert ("s[1].a", code, 1) == (problem.path, problem.code, problem.example)
    assert len(problem.message) < 200


def test_the_greatest_safe_integers_come_in() -> None:
    assert parse_object(b'{"a": 9007199254740991, "b": -9007199254740991}') == {"a": INTEGER_MAX, "b": -INTEGER_MAX}


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def test_all_wrong_values_are_told_at_once_in_their_order() -> None:
    error = refused(b'{"a": 1.5, "b": [2.5, {"c": 1e3}], "d": "fine"}')

    assert [problem.path for problem in error.info.fields] == ["a", "b[0]", "b[1].c"]
    assert error.info.details == {"problem_count": 3}


def test_a_malformed_text_among_wrong_numbers_makes_the_body_malformed() -> None:
    assert refused(b'{"a": 1.5, "b": "\\u0000"}').reason is Reason.BODY_MALFORMED


def test_a_body_over_the_limit_is_refused_unread() -> None:
    error = refused(b'{"a": "' + b"x" * 3_000_000 + b'"}')

    assert error.reason is Reason.BODY_TOO_LARGE
    assert error.reason.status_code == 413
    assert error.info.details == {"size_bytes": 3_000_009, "size_bytes_max": BODY_BYTES_MAX}


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_fifty_thousand_deep_is_refused(opening: bytes) -> None:
    assert refused(b'{"a":' + opening * 50_000).reason is Reason.BODY_MALFORMED
    assert refused(b'{"a":"\\"[[[",' + b'"b":' + opening * 50_000).reason is Reason.BODY_MALFORMED


def test_the_deepest_nesting_that_is_allowed_comes_in_and_one_more_does_not() -> None:
    inner = DEPTH_MAX - 1
    deepest = b'{"a":' + b"[" * inner + b"]" * inner + b"}"

    assert "a" in parse_object(deepest)
    assert refused(b'{"a":' + b"[" * (inner + 1) + b"]" * (inner + 1) + b"}").reason is Reason.BODY_MALFORMED


def test_brackets_inside_text_are_no_nesting() -> None:
    body = json.dumps({"a": "[" * 500 + '"\\' + "{" * 500}).encode()

    assert "a" in parse_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b'\\"[' * 80_000,
        b'{"a":' + b'"[",' * 60_000,
        b'{"a":[' + b"{}," * 85_000 + b"{}]}",
        b'{"a":[' + b"1.5," * 50_000 + b"1]}",
        b"{" + b'"\\u0000":1,' * 23_000 + b'"b":1}',
        b'{"a":"' + b"\\ud800" * 40_000 + b'"}',
        b'{"a":' + b"1" * 250_000 + b"}",
        b"{" * 250_000,
    ],
)
def test_hostile_bodies_are_refused_with_few_words(body: bytes) -> None:
    error = refused(body)

    assert len(error.info.fields) <= PROBLEMS_MAX
    assert len(error.info.model_dump_json()) < 50_000


def test_more_values_than_any_intent_needs_are_refused() -> None:
    assert refused(json.dumps({"a": [0] * VALUES_MAX}).encode()).reason is Reason.BODY_MALFORMED
    assert refused(json.dumps({"a": [0] * (VALUES_MAX - 1)}).encode()).reason is Reason.BODY_MALFORMED
    assert parse_object(json.dumps({"a": [0] * (VALUES_MAX - 2)}).encode())
    assert parse_object(json.dumps({"a": "," * VALUES_MAX}).encode())


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"a": 1.0}, "integers_only"),
        ({"a": float("nan")}, "not_json"),
        ({"a": float("inf")}, "not_json"),
        ({"a": 2**53}, "integer_range"),
        ({"a": -(10**6_000)}, "integer_range"),
        ({"a": "x\x00"}, "nul"),
        ({"a": "\ud800"}, "lone_surrogate"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "not_json"),
        ({"a": b"bytes"}, "not_json"),
        ({"a": (1, 2)}, "not_json"),
        ({"a": {1: 2}}, "key_type"),
    ],
)
def test_a_door_that_gets_parsed_values_refuses_the_same(value: dict[str, Any], code: str) -> None:
    with pytest.raises(SagaError) as caught:
        check_values(value)

    assert code == only_problem(caught.value).code


def test_a_parsed_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["a"] = value

    with pytest.raises(SagaError) as caught:
        check_values(value)

    assert only_problem(caught.value).code == "too_deep"


def test_true_and_false_are_no_integers_and_no_problem() -> None:
    check_values({"a": True, "b": [False, None]})


def test_a_value_is_quoted_short_and_cannot_steer_a_terminal() -> None:
    assert shown('a"b\\') == '"a\\"b\\\\"'
    assert shown("\x1b[2J\u202e\uff11") == '"\\u{1b}[2J\\u{202e}\\u{ff11}"'
    assert len(shown("x" * 1_000_000)) < 100
    assert shown(10**5_000) == "a very large integer"
    assert (shown({}), shown([]), shown(None), shown(True)) == ("an object", "an array", "null", "true")  # noqa: FBT003


def test_a_path_is_written_as_people_do_and_odd_keys_are_quoted() -> None:
    assert path_text(("steps", 1, "arguments", "amount_cents")) == "steps[1].arguments.amount_cents"
    assert path_text(("a", "b c", "\x1b")) == 'a["b c"]["\\u{1b}"]'
    assert len(path_text(("k" * 100_000,))) < 100
