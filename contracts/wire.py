"""What may come in: JSON text and JSON values, strictly, before anything knows what they mean.

Python's own parser takes more than RFC 8259 and less than a careful reader: it reads NaN, keeps the last of two equal
keys, dies on deep nesting and on long integers, and leaves lone surrogates for others to trip over. Every door goes
through this module, so that nothing behind it has to think of such values again: a JSON value inside is None, a bool,
an integer that every JSON reader holds exactly, a string of Unicode scalar values without U+0000, a list or an object.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

from contracts.base import JsonObject, JsonValue, as_array, as_object, items_of
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.reasons import Reason

BODY_BYTES_MAX: Final = 262_144
"""Temporal ends a run whose task answers with more than 4 MiB; a plan holds the arguments several times (ADR 0007)."""
DEPTH_MAX: Final = 16
VALUES_MAX: Final = 20_000
INTEGER_MAX: Final = 2**53 - 1
PROBLEMS_MAX: Final = 50

Path = tuple[str | int, ...]
"""Where a value stands: keys and indexes from the outside in."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}")
_SHOWN_MAX: Final = 40
_SHOWN_INTEGER_MAX: Final = 10**_SHOWN_MAX
_INTEGER_DIGITS_MAX: Final = 17
# An unclosed string is one token up to the end: scanning stays linear on hostile text.
_STRUCTURE: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{},]', re.DOTALL)
_BAD_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
_NOT_PRINTED: Final = re.compile(r"[^\x20-\x7e]")

_INTEGERS_ALLOWED: Final = f"integer from {-INTEGER_MAX} to {INTEGER_MAX}, written without point or exponent"
_TEXT_ALLOWED: Final = "text without U+0000 and without lone surrogates"


class Fault(NamedTuple):
    """One value that may not come in, and where it stands."""

    path: Path
    code: str
    message: str
    allowed: str
    example: JsonValue
    is_malformed: bool
    """True when the text itself is no JSON that everybody reads alike: the answer is then 400, not 422."""

    @property
    def is_about_type(self) -> bool:
        """True when the field's own bounds say best what is allowed instead."""
        return self.code in ("integers_only", "integer_range", "not_json")


class _Unreadable(float):
    """A number whose text no integer of ours holds; kept until the walk can say where it stands."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, 0.5)
        number.text = text
        return number

    def __repr__(self) -> str:
        return _cut(self.text, "digits")


class _Doubled(dict[str, Any]):
    """An object in which a key came twice; kept until the walk can say where it stands."""

    key: str = ""


def parse_object(body: bytes) -> JsonObject:
    """Read the one JSON object that `body` is, refusing whatever two readers could read differently.

    Raises: SagaError, phase validation: BODY_TOO_LARGE, BODY_MALFORMED (no RFC 8259 text, or a text with duplicate
    keys, NUL, lone surrogates, too deep, too many values) or ARGUMENTS_INVALID (numbers that are no safe integers),
    with the path of each wrong value.
    """
    value = decode_object(body)
    check_values(value)
    return value


def decode_object(body: bytes) -> JsonObject:
    """Read the syntax only: values that `check_values` refuses stay in, so that a caller may say more about them."""
    if len(body) > BODY_BYTES_MAX:
        raise too_large(len(body))
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not UTF-8: byte {error.start} does not belong there.") from error
    if not text.lstrip(" \t\r\n").startswith("{"):
        raise _malformed("The body is not one JSON object: it has to begin with {.")
    if (oversize := _oversize(text)) is not None:
        raise _malformed(oversize)
    try:
        value: JsonObject = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_Unreadable)
    except json.JSONDecodeError as error:
        raise _malformed(f"The body is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from error
    return value


def check_values(value: JsonValue) -> None:
    """Refuse a parsed value with anything inside that JSON cannot carry exactly; for doors that never see bytes.

    A float is refused wherever it stands, whole or not: money is integer cents. A bool is no integer.
    Raises: SagaError as `parse_object`, naming at most `PROBLEMS_MAX` places.
    """
    if found := faults(value):
        malformed = any(fault.is_malformed for fault in found)
        reason = Reason.BODY_MALFORMED if malformed else Reason.ARGUMENTS_INVALID
        raise refusal(reason, [problem(fault) for fault in found])


def faults(value: JsonValue) -> list[Fault]:
    """List what may not come in, in the order in which it stands; at most `PROBLEMS_MAX`."""
    found: list[Fault] = []
    for fault in _walk(value):
        found.append(fault)
        if len(found) == PROBLEMS_MAX:
            break
    return found


def refusal(reason: Reason, problems: Sequence[FieldProblem]) -> SagaError:
    """Make the one error for wrong fields: it speaks of the first and carries the first `PROBLEMS_MAX`."""
    first = problems[0]
    where = f"{first.path}: " if first.path else ""
    others = len(problems) - 1
    more = f" And {others} more wrong field{'s' if others > 1 else ''}." if others else ""
    return SagaError(
        reason,
        f"{where}{first.message}{more}",
        details={"problem_count": len(problems)},
        fields=problems[:PROBLEMS_MAX],
        phase=Phase.VALIDATION,
    )


def problem(fault: Fault) -> FieldProblem:
    """Show a fault as a field of the envelope."""
    return FieldProblem(
        path=path_text(fault.path),
        code=fault.code,
        message=fault.message,
        allowed=fault.allowed,
        example=fault.example,
    )


def too_large(size_bytes: int) -> SagaError:
    """Make the error for a body over the limit."""
    return SagaError(
        Reason.BODY_TOO_LARGE,
        f"The body has {size_bytes} bytes; at most {BODY_BYTES_MAX} are taken. Split the intent.",
        details={"size_bytes": size_bytes, "size_bytes_max": BODY_BYTES_MAX},
        phase=Phase.VALIDATION,
    )


def path_text(path: Path) -> str:
    """Write a path as people do: `steps[1].arguments.amount_cents`; odd keys are quoted, escaped and cut."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif _PLAIN_KEY.fullmatch(part):
            parts.append(f".{part}" if parts else part)
        else:
            parts.append(f"[{shown(part)}]")
    return "".join(parts)


def shown(value: JsonValue) -> str:
    r"""Quote a value for a message: short, and everything but printable ASCII as `\u{...}`.

    So no log, terminal or page is steered by what a stranger sent.
    """
    if isinstance(value, str):
        escaped = value[:_SHOWN_MAX].replace("\\", "\\\\").replace('"', '\\"')
        quoted = '"' + _NOT_PRINTED.sub(lambda match: f"\\u{{{ord(match.group()):x}}}", escaped) + '"'
        return quoted if len(value) <= _SHOWN_MAX else f"{quoted}... ({len(value)} characters)"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and not -_SHOWN_INTEGER_MAX < value < _SHOWN_INTEGER_MAX:
        return "a very large integer"
    if isinstance(value, int | float):
        return repr(value)
    return "an object" if as_object(value) is not None else "an array"


def _cut(text: str, unit: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text)} {unit})"


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    doubled = _Doubled(result)
    for key, _ in pairs:
        if key in seen:
            doubled.key = key
            break
        seen.add(key)
    return doubled


def _integer(text: str) -> int | float:
    """Read an integer; -0 is one number in JSON and another in Python, so it stays unread."""
    if len(text) > _INTEGER_DIGITS_MAX or text == "-0":
        return _Unreadable(text)
    return int(text)


def _oversize(text: str) -> str | None:
    """Say how a text is too deep or too long before anything is built from it; linear, and stops at the limit."""
    if text.count("[") + text.count("{") <= DEPTH_MAX and text.count(",") < VALUES_MAX:
        return None
    depth = commas = 0
    for match in _STRUCTURE.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return f"The body is nested more than {DEPTH_MAX} levels deep."
        elif first in "]}":
            depth -= 1
        elif first == ",":
            commas += 1
            if commas >= VALUES_MAX:
                return f"There are more than {VALUES_MAX} values in the body."
    return None


def _walk(root: JsonValue) -> Iterator[Fault]:
    """Visit every value in document order, without recursion and with a bound."""
    stack: list[tuple[Path, JsonValue]] = [((), root)]
    met = 1
    while stack:
        path, value = stack.pop()
        if isinstance(value, str):
            yield from _text_faults(path, value)
        elif isinstance(value, dict | list):
            inside = [((*path, key), item) for key, item in items_of(value) if _is_key(key)]
            met += len(inside)
            if met > VALUES_MAX:
                yield _text_fault((), "too_many_values", f"There are more than {VALUES_MAX} values.", "fewer values")
                return
            if len(path) < DEPTH_MAX:
                yield from _key_faults(path, value)
                stack.extend(reversed(inside))
            else:
                message = f"Nested more than {DEPTH_MAX} levels deep."
                yield _text_fault(path, "too_deep", message, f"at most {DEPTH_MAX} levels")
        elif value is not None and value is not True and value is not False:
            yield from _number_faults(path, value)


def _is_key(key: object) -> bool:
    return isinstance(key, str | int)


def _key_faults(path: Path, value: JsonValue) -> Iterator[Fault]:
    if isinstance(value, _Doubled):
        message = f"The key {shown(value.key)} comes twice in one object."
        yield _text_fault((*path, value.key), "duplicate_key", message, "each key once")
    if as_array(value) is not None:
        return
    for key, _ in items_of(value):
        if isinstance(key, str):
            yield from _text_faults((*path, key), key)
        else:  # a door that never saw JSON text
            yield _text_fault(path, "key_type", f"A key is {type(key).__name__}, not text.", "text keys")


def _text_faults(path: Path, text: str) -> Iterator[Fault]:
    match = _BAD_TEXT.search(text)
    if match is None:
        return
    where = f"Character {match.start()} is U+{ord(match.group()):04X}"
    if match.group() == "\x00":
        yield _text_fault(path, "nul", f"{where}, which no text here may hold.", _TEXT_ALLOWED)
    else:
        yield _text_fault(path, "lone_surrogate", f"{where}, a surrogate without its partner.", _TEXT_ALLOWED)


def _number_faults(path: Path, value: JsonValue) -> Iterator[Fault]:
    if type(value) is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            yield _range_fault(path, value)
    elif isinstance(value, _Unreadable) and value.text != "-0" and value.text.lstrip("-").isdigit():
        yield _range_fault(path, value)
    elif not isinstance(value, float):
        message = f"A value of type {type(value).__name__} is not JSON."
        allowed = "null, true, false, integer, text, array or object"
        yield Fault(path, "not_json", message, allowed, None, is_malformed=True)
    elif math.isfinite(value):
        message = f"{shown(value)} is refused: integers only, without point, exponent or negative zero."
        yield Fault(path, "integers_only", message, _INTEGERS_ALLOWED, 1, is_malformed=False)
    else:
        message = f"{'NaN' if math.isnan(value) else 'Infinity'} is not JSON."
        yield Fault(path, "not_json", message, _INTEGERS_ALLOWED, 1, is_malformed=True)


def _range_fault(path: Path, value: JsonValue) -> Fault:
    message = f"{shown(value)} is beyond what every JSON reader holds exactly."
    return Fault(path, "integer_range", message, _INTEGERS_ALLOWED, 1, is_malformed=False)


def _text_fault(path: Path, code: str, message: str, allowed: str) -> Fault:
    return Fault(path, code, message, allowed, None, is_malformed=True)


def _malformed(message: str) -> SagaError:
    return SagaError(
        Reason.BODY_MALFORMED,
        message,
        fields=(
            FieldProblem(
                path="",
                code="body_malformed",
                message=message,
                allowed="one JSON object (RFC 8259) in UTF-8",
                example={"protocol": 1, "session_id": "chat-42", "steps": []},
            ),
        ),
        phase=Phase.VALIDATION,
    )
