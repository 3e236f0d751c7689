"""The base of every model on the wire: frozen, closed, strict."""

from collections.abc import Iterator
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict

JsonValue = Any
"""A JSON value as parsed; said by name, because no type can say it and be handy."""
JsonObject = dict[str, Any]
"""A JSON object as parsed: only None, bool, int, float, str, list and dict inside."""


class Contract(BaseModel):
    """A value object: equal by content, never edited, unknown fields refused, no coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Record(BaseModel):
    """A model of ours that comes back from JSON we wrote: frozen, enums read from their words.

    What a newer version wrote beside it is left aside: a rolling deploy must not stop a saga half-way.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


def as_object(value: JsonValue) -> JsonObject | None:
    """Take a JSON value as an object; None when it is something else."""
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType] - asked often


def as_array(value: JsonValue) -> list[JsonValue] | None:
    """Take a JSON value as an array; None when it is something else."""
    return value if isinstance(value, list) else None  # pyright: ignore[reportUnknownVariableType] - as above


def items_of(value: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
    """List what stands directly inside a JSON value, with its key or index."""
    if _is_object(value):
        yield from value.items()
    elif _is_array(value):
        yield from enumerate(value)


def _is_object(value: object) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def _is_array(value: object) -> TypeGuard[list[JsonValue]]:
    return isinstance(value, list)
