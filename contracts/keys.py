"""Keys and digests: the engine makes them, a model never does (DESIGN.md section 5)."""

import base64
import hashlib

import rfc8785

from contracts.base import JsonObject, JsonValue


def canonical_json(value: JsonValue) -> bytes:
    """Serialise by RFC 8785: sorted keys, no white space, one form per number."""
    return rfc8785.dumps(value)


def digest(value: JsonValue) -> str:
    """Lower-case hex sha256 of the RFC 8785 form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


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
    return "int_" + _base32(bytes.fromhex(key))[:26]


def execute_key(key: str, step_id: str) -> str:
    """Key of a step's one execution."""
    return f"{key}/{step_id}/execute"


def compensate_key(key: str, step_id: str, ordinal: int = 1) -> str:
    """Key of a step's compensation; `ordinal` rises only when the execute landed after an earlier one."""
    return f"{key}/{step_id}/compensate/{ordinal}"


def remote_key(step_key: str) -> str:
    """Key sent downstream: 26 lower-case base32 characters."""
    return _base32(hashlib.sha256(step_key.encode()).digest())[:26]


def _base32(value: bytes) -> str:
    return base64.b32encode(value).decode().rstrip("=").lower()
