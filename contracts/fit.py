"""Does an output fit an argument? What can be told before anything runs, from the two schemas alone."""

import re
from typing import Any

from contracts.shape import Place, Shape

_BOUNDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def source_place(shape: Shape, path: tuple[str, ...]) -> Place | None:
    """Find the declared output field at `path`; nullable when anything on the way is. None when undeclared.

    A field inside a union is declared for no value in particular, so it cannot be bound.
    """
    place: Place | None = shape.root
    nullable = False
    for name in path:
        if place is None or place.kind != "object":
            return None
        place = shape.child(place, name)
        nullable = nullable or (place is not None and place.nullable)
    return None if place is None else Place(place.schema, nullable=nullable, required=place.required)


def misfit(source: Place, target: Place) -> str | None:
    """Say why values of `source` cannot stand at `target`; None when they can, or when only running can tell."""
    if source.nullable and not target.nullable:
        return "the output may be null and the argument may not"
    if source.kind != target.kind:
        return f"the output is of type {source.kind}, the argument of type {target.kind}"
    if source.kind in ("object", "array", "choice", "any"):
        return None if _bare(source.schema) == _bare(target.schema) else "the output has another structure"
    if target.words is not None:
        if source.words is None:
            return "the argument takes only certain values and the output does not promise them"
        other = [str(word) for word in source.words if word not in target.words]
        return f"the output may be {other[0]}, which the argument does not take" if other else None
    return _text_misfit(source, target) if source.kind == "string" else _range_misfit(source.schema, target.schema)


def _text_misfit(source: Place, target: Place) -> str | None:
    """Equal patterns fit. Other patterns are compared by what the output's author gives: its words or examples."""
    low, high = target.schema.get("minLength", 0), source.schema.get("maxLength")
    if high is not None and high < low:
        return "the output is always too short"
    if source.schema.get("minLength", 0) > target.schema.get("maxLength", float("inf")):
        return "the output is always too long"
    pattern = target.schema.get("pattern")
    if pattern is None or pattern == source.schema.get("pattern"):
        return None
    samples = source.words or tuple(source.schema.get("examples", ()))
    if samples and all(isinstance(sample, str) and re.search(_python(pattern), sample) for sample in samples):
        return None
    return "the output does not have the form that the argument asks for"


def _range_misfit(source: dict[str, Any] | Any, target: Any) -> str | None:
    (source_low, source_high), (target_low, target_high) = _range(source), _range(target)
    if source_high < target_low or source_low > target_high:
        return "the output's range and the argument's do not meet"
    return None


def _range(schema: Any) -> tuple[float, float]:
    low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else float("-inf"))
    high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else float("inf"))
    return low, high


def _bare(schema: Any) -> Any:
    """Leave out of a schema what only people read."""
    if isinstance(schema, dict):
        return {
            key: _bare(value)
            for key, value in schema.items()
            if key not in ("title", "description", "examples", "default")
        }
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _python(pattern: str) -> str:
    r"""Read `$` as pydantic's engine does: the very end, never before a last line feed."""
    return pattern[:-1] + r"\Z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern
