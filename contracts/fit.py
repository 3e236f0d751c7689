"""Does an output fit an argument? What can be told before anything runs, from the two schemas alone."""

import re
from collections.abc import Callable
from typing import Final

from contracts.shape import Place, Schema, Shape, range_of


def source_place(shape: Shape, path: tuple[str, ...]) -> Place | None:
    """Find the declared output field at `path`, nullable when anything on the way is; None when undeclared.

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


def misfit(source_shape: Shape, source: Place, target_shape: Shape, target: Place) -> str | None:
    """Say why an output at `source` cannot stand at `target`; None when it can, or when only running can tell."""
    if source.nullable and not target.nullable:
        return "the output may be null and the argument may not"
    if source.kind != target.kind:
        return f"the output is of type {source.kind}, the argument of type {target.kind}"
    if target.words is not None:
        return _words_misfit(source, target)
    if source.kind in _SCALARS:
        return _SCALARS[source.kind](source, target)
    same = {**source_shape.expanded(source), "nullable": False} == {**target_shape.expanded(target), "nullable": False}
    return None if same else "the output has another structure"


def operand_misfit(source: Place) -> str | None:
    """Say why an output cannot be an operand of a named function: those take whole numbers."""
    if source.nullable:
        return "the output may be null, and the function takes whole numbers"
    return None if source.kind == "integer" else f"the output is of type {source.kind}, and the function takes integers"


def result_misfit(result: tuple[int | None, int | None], target: Place) -> str | None:
    """Say why what a named function gives, in this range, cannot stand at `target`."""
    if target.kind != "integer" or target.words is not None:
        return f"the function gives an integer, the argument is of type {target.kind}"
    ends = {name: end for name, end in zip(("minimum", "maximum"), result, strict=True) if end is not None}
    return _range_misfit(Place({"type": "integer", **ends}), target)


def promised(source: Place) -> tuple[int | None, int | None]:
    """Tell the range that an integer output promises."""
    return (min(source.words), max(source.words)) if source.words is not None else range_of(source.schema)


def _words_misfit(source: Place, target: Place) -> str | None:
    if source.words is None:
        return "the argument takes only certain values and the output does not promise them"
    others = [str(word) for word in source.words if word not in (target.words or ())]
    return f"the output may be {others[0]}, which the argument does not take" if others else None


def _text_misfit(source: Place, target: Place) -> str | None:
    return _size_misfit(source.schema, target.schema) or _pattern_misfit(source, target)


def _size_misfit(source: Schema, target: Schema) -> str | None:
    least, most = target.get("minLength", 0), target.get("maxLength")
    if source.get("maxLength") is not None and source["maxLength"] < least:
        return "the output is always too short"
    return "the output is always too long" if most is not None and source.get("minLength", 0) > most else None


def _pattern_misfit(source: Place, target: Place) -> str | None:
    """Equal patterns fit; others are judged by what the output's author gives: its words or its examples."""
    pattern = target.schema.get("pattern")
    if pattern is None or pattern == source.schema.get("pattern"):
        return None
    samples = source.words or tuple(source.schema.get("examples", ()))
    if samples and all(isinstance(sample, str) and re.search(_python(pattern), sample) for sample in samples):
        return None
    return "the output does not have the form that the argument asks for"


def _range_misfit(source: Place, target: Place) -> str | None:
    low, high = promised(source)
    least, most = range_of(target.schema)
    if high is not None and least is not None and high < least:
        return "the output is always too small"
    return "the output is always too large" if low is not None and most is not None and low > most else None


def _python(pattern: str) -> str:
    r"""Read `$` as pydantic's engine does: the very end, never before a last line feed."""
    return pattern[:-1] + r"\Z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern


def _no_misfit(_: Place, __: Place) -> str | None:
    return None


_SCALARS: Final[dict[str, Callable[[Place, Place], str | None]]] = {
    "string": _text_misfit,
    "integer": _range_misfit,
    "boolean": _no_misfit,
}
