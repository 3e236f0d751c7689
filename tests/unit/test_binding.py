"""Behaviour of bindings: how they are found, and how recorded outputs take their place."""

from typing import Any

import pytest

from contracts.base import JsonValue
from contracts.binding import Binding, bindings_of, fills, resolve
from contracts.errors import Phase, SagaError
from contracts.intent import binding_of
from contracts.reasons import Reason, Retryable

OUTPUTS: dict[str, dict[str, Any]] = {
    "freeze": {"hold_id": "HLD1", "held_cents": 5, "nothing": None, "by": {"account": {"id": "ACC1"}}},
    "evil": {"text": {"$from": "freeze.hold_id"}},
}


def test_bindings_are_found_at_any_depth() -> None:
    arguments = {"a": {"$from": "x.y"}, "b": [1, {"c": {"$from": "x.y.z"}}], "d": "$from"}

    found, malformed = bindings_of(arguments)

    assert (Binding(("a",), "x", ("y",)), Binding(("b", 1, "c"), "x", ("y", "z"))) == found
    assert malformed == ()
    assert found[1].source_text == "x.y.z"


@pytest.mark.parametrize(
    "value",
    [
        {"$from": "freeze"},
        {"$from": ""},
        {"$from": "freeze."},
        {"$from": ".hold_id"},
        {"$from": "freeze.hold_id\n"},
        {"$from": "Freeze.hold_id"},
        {"$from": "freeze.hold_id.a.b.c.d"},
        {"$from": "freeze.hold-id"},
        {"$from": "../x.y"},
        {"$from": None},
        {"$from": 1},
        {"$from": {"$from": "freeze.hold_id"}},
        {"$from": "freeze.hold_id", "else": 1},
    ],
)
def test_anything_else_with_a_from_key_is_malformed(value: JsonValue) -> None:
    assert binding_of(value) is None
    assert bindings_of({"a": [value]}) == ((), (("a", 0),))


def test_the_arguments_as_a_whole_are_never_a_binding() -> None:
    assert bindings_of({"$from": "freeze.hold_id"}) == ((), ((),))


def test_a_binding_is_replaced_by_the_recorded_output_and_nothing_else_changes() -> None:
    arguments = {
        "hold_id": {"$from": "freeze.hold_id"},
        "list": ["e\u0301 ", {"$from": "freeze.held_cents"}, ""],
        "deep": {"id": {"$from": "freeze.by.account.id"}, "none": {"$from": "freeze.nothing"}},
    }

    resolved = resolve(arguments, OUTPUTS)

    assert resolved == {"hold_id": "HLD1", "list": ["e\u0301 ", 5, ""], "deep": {"id": "ACC1", "none": None}}
    assert arguments["hold_id"] == {"$from": "freeze.hold_id"}


def test_an_output_is_data_and_never_read_as_a_binding() -> None:
    assert resolve({"a": {"$from": "evil.text"}}, OUTPUTS) == {"a": {"$from": "freeze.hold_id"}}


@pytest.mark.parametrize("source", ["freeze.gone", "gone.hold_id", "freeze.hold_id.x", "freeze.nothing.x"])
def test_a_recorded_output_without_the_field_is_a_typed_error(source: str) -> None:
    with pytest.raises(SagaError) as caught:
        resolve({"a": {"b": {"$from": source}}}, OUTPUTS)

    (problem,) = caught.value.info.fields
    assert (caught.value.reason, caught.value.info.phase) == (Reason.ARGUMENTS_INVALID, Phase.EXECUTION)
    assert (problem.path, problem.code) == ("a.b", "binding_unresolved")
    assert caught.value.info.details == {"source": source, "path": "a.b"}
    assert caught.value.reason.retryable is Retryable.NEVER


def test_something_malformed_that_got_past_the_door_is_a_typed_error() -> None:
    with pytest.raises(SagaError) as caught:
        resolve({"a": {"$from": "x" * 10_000}}, OUTPUTS)

    assert len(str(caught.value)) < 400


# --- named functions -------------------------------------------------------------------------------------------------

CENTS: dict[str, dict[str, Any]] = {
    "a": {"cents": 300, "most": 2**53 - 1, "word": "x", "yes": True},
    "b": {"cents": 50},
}
A, B = {"$from": "a.cents"}, {"$from": "b.cents"}


@pytest.mark.parametrize(
    ("name", "operands", "result"),
    [
        ("sum_cents", [A, B, 7], 357),
        ("min_cents", [A, B], 50),
        ("min_cents", [A, 40], 40),
        ("difference_cents", [A, B], 250),
        ("difference_cents", [B, A], -250),
    ],
)
def test_a_named_function_is_replaced_by_what_it_gives(name: str, operands: list[JsonValue], result: int) -> None:
    arguments = {"amount": {"$fn": name, "of": operands}}

    assert resolve(arguments, CENTS) == {"amount": result}
    assert fills(arguments, {"amount": result})


def test_the_operands_of_a_function_are_bindings_at_its_own_place() -> None:
    found, malformed = bindings_of({"x": [{"$fn": "sum_cents", "of": [1, A, B]}]})

    assert found == (Binding(("x", 0), "a", ("cents",), 1), Binding(("x", 0), "b", ("cents",), 2))
    assert malformed == ()


@pytest.mark.parametrize(
    "value",
    [
        {"$fn": "sum_cents"},
        {"$fn": "sum_cents", "of": A},
        {"$fn": "sum_cents", "of": []},
        {"$fn": "sum_cents", "of": [A]},
        {"$fn": "sum_cents", "of": [1, 2]},
        {"$fn": "sum_cents", "of": [A, -1]},
        {"$fn": "sum_cents", "of": [A, 1.5]},
        {"$fn": "sum_cents", "of": [A, True]},
        {"$fn": "sum_cents", "of": [A, "1"]},
        {"$fn": "sum_cents", "of": [A, 2**53]},
        {"$fn": "sum_cents", "of": [A] * 21},
        {"$fn": "sum_cents", "of": [A, B], "else": 1},
        {"$fn": "sum_cents", "of": [A, {"$fn": "sum_cents", "of": [A, B]}]},
        {"$fn": "difference_cents", "of": [A, B, B]},
        {"$fn": "__import__", "of": [A, B]},
        {"$fn": ["sum_cents"], "of": [A, B]},
        {"$fn": None, "of": [A, B]},
        {"$fn": "sum_cents", "of": [A, B], "$from": "a.cents"},
    ],
)
def test_anything_else_with_an_fn_key_is_malformed_and_never_evaluated(value: JsonValue) -> None:
    assert bindings_of({"a": [value]}) == ((), (("a", 0),))
    with pytest.raises(SagaError):
        resolve({"a": [value]}, CENTS)


def test_an_output_that_looks_like_a_function_is_data() -> None:
    evil = {"a": {"text": {"$fn": "sum_cents", "of": [A, B]}, "list": [{"$from": "b.cents"}]}}
    bound = {"x": {"$from": "a.text"}, "y": {"$from": "a.list"}}

    assert resolve(bound, evil) == {"x": evil["a"]["text"], "y": evil["a"]["list"]}
    with pytest.raises(SagaError):
        resolve({"x": {"$fn": "sum_cents", "of": [{"$from": "a.text"}, 1]}}, evil)


@pytest.mark.parametrize("source", ["a.word", "a.yes", "a.most", "a.gone", "gone.cents"])
def test_a_function_of_what_is_no_number_or_too_large_is_a_typed_error(source: str) -> None:
    with pytest.raises(SagaError) as caught:
        resolve({"x": {"$fn": "sum_cents", "of": [{"$from": source}, 1]}}, CENTS)

    assert caught.value.reason is Reason.ARGUMENTS_INVALID
