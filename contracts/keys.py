"""Keys and digests: the engine makes them, a model never does (DESIGN.md section 5)."""

import base64
import hashlib
import json
from typing import Final

import rfc8785

from contracts.base import JsonObject, JsonValue, as_array, as_object

ID_CHARACTERS: Final = 26
"""Of base32: 130 bits."""
_INTEGER_MAX: Final = 2**53 - 1
_write: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


class _UnusualError(Exception):
    """Where the two writers may differ."""


def canonical_json(value: JsonValue) -> bytes:
    """Serialise by RFC 8785: sorted keys, no white space, one form per number.

    Python's own writer gives the same bytes, ten times as fast, unless there are fractions, or keys that UTF-16 sorts
    otherwise than code points; those go to the reference implementation, which also raises for what JSON has not.
    """
    try:
        return _write(_plain(value)).encode()
    except (_UnusualError, UnicodeEncodeError, RecursionError):
        return rfc8785.dumps(value)


def _plain(value: JsonValue) -> JsonValue:
    """Copy a value of which both writers make the same bytes: RFC 8785 writes 5.0 as 5."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    if (given := as_object(value)) is not None:
        if not all(type(key) is str and key.isascii() for key in given):
            raise _UnusualError
        return {key: item if type(item) is str else _plain(item) for key, item in given.items()}
    if (items := as_array(value)) is not None:
        return [item if type(item) is str else _plain(item) for item in items]
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if whole and abs(value) <= _INTEGER_MAX:
        return int(value)
    raise _UnusualError


def digest(value: JsonValue) -> str:
    """Lower-case hex sha256 of the RFC 8785 form."""
    return digest_of(canonical_json(value))


def digest_of(canonical: bytes) -> str:
    """Lower-case hex sha256 of what `canonical_json` made."""
    return hashlib.sha256(canonical).hexdigest()


def intent_key(
    *,
    tenant: str,
    principal: str,
    session_id: str,
    canonical_steps: list[JsonObject],
    business_reference: str | None,
    occurrence: int,
    attempt: int,
) -> str:
    """Derive the key that makes two posts one intent."""
    return digest([tenant, principal, session_id, canonical_steps, business_reference, occurrence, attempt])


def lineage_digest(
    *,
    tenant: str,
    principal: str,
    session_id: str,
    canonical_steps: list[JsonObject],
    business_reference: str | None,
) -> str:
    """Name one wish, whichever occurrence and attempt of it."""
    return digest([tenant, principal, session_id, canonical_steps, business_reference])


def intent_id(key: str) -> str:
    """Shorten a key to the id that people and workflows use: `int_` and 26 letters (130 bits)."""
    return "int_" + _letters(bytes.fromhex(key))


def execute_key(key: str, step_id: str) -> str:
    """Key of a step's one execution."""
    return f"{key}/{step_id}/execute"


def compensate_key(key: str, step_id: str, ordinal: int = 1) -> str:
    """Key of a step's compensation; `ordinal` rises only when the execute landed after an earlier one."""
    return f"{key}/{step_id}/compensate/{ordinal}"


def remote_key(step_key: str) -> str:
    """Key sent downstream: 26 lower-case base32 characters."""
    return _letters(hashlib.sha256(step_key.encode()).digest())


def _letters(value: bytes) -> str:
    return base64.b32encode(value).decode().lower()[:ID_CHARACTERS]
