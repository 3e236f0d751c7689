"""Behaviour of keys: fixed for ever, so their bytes are written down here."""

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.base import JsonValue
from contracts.keys import (
    canonical_json,
    compensate_key,
    digest,
    execute_key,
    intent_id,
    intent_key,
    remote_key,
)

PARTS: dict[str, object] = {
    "tenant": "bank",
    "principal": "customer-7",
    "session_id": "chat-42",
    "canonical_steps": [{"tool": "freeze_account_funds", "arguments": {"amount_cents": 2500}, "needs": []}],
    "business_reference": None,
    "occurrence": 1,
    "attempt": 1,
}


def key(**changed: object) -> str:
    return intent_key(**{**PARTS, **changed})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_canonical_json_is_rfc_8785() -> None:
    value = {"b": 1, "a": ["é", "e\u0301", "\r\n", None, True], "€": "\u20ac", "\U0001f600": 0, "\ufb33": 0}

    expected = '{"a":["é","e\u0301","\\r\\n",null,true],"b":1,"€":"€","😀":0,"\ufb33":0}'
    assert expected.encode() == canonical_json(value)


@pytest.mark.parametrize(
    "value", [None, True, False, "", "é", 0, 2**53 - 1, -(2**53 - 1), 5.0, [1, ["a"]], {"b": {"a": None}, "a": [True]}]
)
def test_ordinary_values_are_written_without_the_slow_reference(
    value: JsonValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rfc8785.dumps(value)
    monkeypatch.setattr("contracts.keys.rfc8785.dumps", None)

    assert canonical_json(value) == expected


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**54), 2**54)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=6)
    | st.sampled_from(
        ["\x7f", "\u2028", "\x00\x1f", "\ud800", 5.0, -0.0, 1e21, 2**53 - 1, 2**53, b"bytes", (1, "two")]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=3) | st.integers(0, 3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=400)
@given(VALUES)
def test_canonical_json_says_what_the_reference_says_whatever_comes(value: object) -> None:
    """The quick writer for the usual values never differs, in what it writes and in what it refuses."""
    try:
        expected = rfc8785.dumps(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except (ValueError, AttributeError) as error:
        with pytest.raises(type(error)):
            canonical_json(value)
    else:
        assert expected == canonical_json(value)


def test_the_key_of_an_intent_is_written_down_and_never_changes() -> None:
    assert key() == "87d7010c9e256d07e38874a8710b312b65d52ff2f3fce542796df1ae1290cfbd"
    assert intent_id(key()) == "int_q7lqcde6evwqpy4iosuhcczrfn"


def test_the_key_is_the_digest_of_the_array_that_the_design_names() -> None:
    assert digest(list(PARTS.values())) == key()


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "other"},
        {"principal": "customer-8"},
        {"session_id": "chat-43"},
        {"canonical_steps": []},
        {"business_reference": "INV-1"},
        {"occurrence": 2},
        {"attempt": 2},
        {"tenant": "customer-7", "principal": "bank"},
    ],
)
def test_every_part_of_the_identity_changes_the_key(changed: dict[str, object]) -> None:
    assert key() != key(**changed)


def test_step_keys_name_intent_step_and_direction() -> None:
    assert execute_key("k", "freeze") == "k/freeze/execute"
    assert compensate_key("k", "freeze") == "k/freeze/compensate/1"
    assert compensate_key("k", "freeze", 2) == "k/freeze/compensate/2"


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_remote_keys_are_26_lower_case_letters_and_differ_when_step_keys_do(one: str, other: str) -> None:
    first, second = (remote_key(f"k/{value.encode('utf-8', 'ignore').hex()}/execute") for value in (one, other))

    assert len(first) == 26
    assert set(first) <= set("abcdefghijklmnopqrstuvwxyz234567")
    assert (first == second) == (one.encode("utf-8", "ignore") == other.encode("utf-8", "ignore"))


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_an_intent_id_has_the_form_that_workflow_ids_and_commands_take(raw: bytes) -> None:
    made = intent_id(raw.hex())

    assert len(made) == 30
    assert made.startswith("int_")
    assert set(made[4:]) <= set("abcdefghijklmnopqrstuvwxyz234567")
