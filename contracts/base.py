"""The base of every model on the wire: frozen, closed, strict."""

from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]
"""A JSON object as parsed: only None, bool, int, float, str, list and dict inside."""


class Contract(BaseModel):
    """A value object: equal by content, never edited, unknown fields refused, no coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Record(BaseModel):
    """A model of ours that comes back from JSON we wrote: frozen and closed, enums read from their words."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def as_object(value: Any) -> JsonObject | None:
    """Take a JSON value as an object; None when it is something else."""
    return cast("JsonObject", value) if isinstance(value, dict) else None


def as_array(value: Any) -> list[Any] | None:
    """Take a JSON value as an array; None when it is something else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def items_of(value: Any) -> Iterator[tuple[str | int, Any]]:
    """List what stands directly inside a JSON value, with its key or index."""
    if (given := as_object(value)) is not None:
        yield from given.items()
    elif (items := as_array(value)) is not None:
        yield from enumerate(items)
