"""Wrong fields, said so that whoever sent them can mend them: where, why, what is allowed, an example.

Pydantic knows what is wrong; the schema knows what would be right. Codes are ours and few, so that a caller may switch
on them and no release of pydantic changes them.
"""

import re
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from contracts.base import JsonObject, JsonValue
from contracts.errors import FieldProblem
from contracts.shape import Place, Shape, below
from contracts.wire import PROBLEMS_MAX, Fault, Path, path_text, problem, shown

MESSAGE_LENGTH_MAX: Final = 300

_CODES: Final = {
    "missing": "missing",
    "extra_forbidden": "unknown_field",
    "greater_than": "too_small",
    "greater_than_equal": "too_small",
    "less_than": "too_large",
    "less_than_equal": "too_large",
    "multiple_of": "wrong_value",
    "string_pattern_mismatch": "wrong_form",
    "string_too_long": "too_long",
    "string_too_short": "too_short",
    "too_long": "too_long",
    "too_short": "too_short",
    "enum": "not_a_choice",
    "literal_error": "not_a_choice",
    "union_tag_invalid": "not_a_choice",
    "union_tag_not_found": "missing",
    "value_error": "rule_broken",
    "assertion_error": "rule_broken",
}
_SAYINGS: Final = {
    "too_small": "{value} is too small.",
    "too_large": "{value} is too large.",
    "wrong_value": "{value} is not allowed.",
    "wrong_form": "{value} does not have the form that is asked for.",
    "too_long": "{value} is too long.",
    "too_short": "{value} is too short.",
    "not_a_choice": "{value} is none of the allowed values.",
    "wrong_type": "{value} has the wrong type: {kind} is asked for.",
    "integers_only": "{value} is refused: integers only, without point or exponent.",
}
_KINDS: Final = {
    "string": "text",
    "integer": "an integer",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "choice": "an object",
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def field_problems(
    error: ValidationError,
    shape: Shape,
    value: JsonValue,
    *,
    at: Path = (),
    skip: Callable[[Path], bool] | None = None,
    sensitive: frozenset[str] = frozenset(),
) -> tuple[FieldProblem, ...]:
    """Say what is wrong with `value`, which stands at `at` in the whole; at most `PROBLEMS_MAX` places.

    `skip` drops problems by their path below `at`. Values are quoted short and escaped; those of `sensitive` fields
    (names at the top of `value`) not at all.
    """
    problems: list[FieldProblem] = []
    for details in error.errors(include_url=False, include_context=False):
        if len(problems) == PROBLEMS_MAX:
            break
        if details["type"] == "too_short" and _has_wrong_items(details, error):
            continue
        path, place, parent = _located(details["loc"], shape, value)
        if skip is None or not skip(path):
            hidden = bool(path) and path[0] in sensitive
            problems.append(_problem(details, shape, place, parent, path_text((*at, *path)), hidden=hidden))
    return tuple(problems)


def _has_wrong_items(short: ErrorDetails, error: ValidationError) -> bool:
    """True where pydantic counted only the good items of an array that has more: what is wrong is told of the items."""
    loc = short["loc"]
    others = error.errors(include_url=False, include_context=False, include_input=False)
    return any(other["loc"][: len(loc)] == loc and len(other["loc"]) > len(loc) for other in others)


def problem_at(path: Path, code: str, message: str, allowed: str, example: JsonValue) -> FieldProblem:
    """Make a problem of our own rules; `message` may quote foreign text, which is cut and cleaned."""
    return FieldProblem(path=path_text(path), code=code, message=_clean(message), allowed=allowed, example=example)


def informed(fault: Fault, shape: Shape, path: Path, value: JsonValue, *, hidden: bool = False) -> FieldProblem:
    """Say about a fault of the wire what the schema knows of `path` in `value`: what is allowed there, an example."""
    known: JsonObject = {"message": "The value is refused."} if hidden else {}
    place = shape.at(path, value)
    if place is not None:
        known["example"] = shape.example(place)
        known |= {"allowed": shape.allowed(place)} if fault.is_about_type else {}
    return problem(fault).model_copy(update=known)


def _located(loc: tuple[int | str, ...], shape: Shape, value: JsonValue) -> tuple[Path, Place | None, Place | None]:
    """Follow pydantic's location to the place in the JSON: a union's tag is a word of pydantic's, not a key."""
    path: list[int | str] = []
    parent: Place | None = None
    place: Place | None = shape.root
    for part in loc:
        if place is not None and place.kind == "choice":
            branch = shape.branch(place, value)
            if branch is not None:
                place = branch
                continue
        parent, place = place, None if place is None else shape.child(place, part, value)
        value = below(value, part)
        path.append(part)
    return tuple(path), place, parent


def _problem(
    details: ErrorDetails, shape: Shape, place: Place | None, parent: Place | None, path: str, *, hidden: bool
) -> FieldProblem:
    code = _code(details, place)
    if code == "unknown_field":
        fields = [] if parent is None else [name for name, _ in shape.fields(parent)]
        return FieldProblem(
            path=path,
            code=code,
            message="There is no such field.",
            allowed=f"only the fields: {', '.join(fields)}",
            example=None if parent is None else shape.example(parent),
        )
    allowed = "" if place is None else shape.allowed(place)
    example = None if place is None else shape.example(place)
    return FieldProblem(
        path=path, code=code, message=_message(details, code, place, hidden=hidden), allowed=allowed, example=example
    )


def _code(details: ErrorDetails, place: Place | None) -> str:
    known = _CODES.get(details["type"])
    if known is not None:
        return known
    if not details["type"].endswith("_type"):
        return "wrong_value"
    given = details["input"]
    return (
        "integers_only" if isinstance(given, float) and place is not None and place.kind == "integer" else "wrong_type"
    )


def _message(details: ErrorDetails, code: str, place: Place | None, *, hidden: bool) -> str:
    if code == "missing":
        return "The field is missing."
    if code == "rule_broken":
        return (
            "A rule of the tool is broken." if hidden else _clean(details["msg"].partition(", ")[2] or details["msg"])
        )
    kind = "something else" if place is None else _KINDS.get(place.kind, place.kind)
    value = "The value" if hidden else shown(details["input"])
    return _SAYINGS[code].format(value=value, kind=kind)


def _clean(text: str) -> str:
    escaped = _CONTROL.sub(lambda match: f"\\u{{{ord(match.group()):x}}}", text[:MESSAGE_LENGTH_MAX])
    return escaped if len(text) <= MESSAGE_LENGTH_MAX else f"{escaped}..."
