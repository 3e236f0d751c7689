"""What may come in: JSON text and JSON values, strictly, before anything knows what they mean.

Python's own parser takes more than RFC 8259 and less than a careful reader: it reads NaN, keeps the last of two equal
keys, dies on deep nesting and on long integers, and leaves lone surrogates for others to trip over. Every door goes
through this module, so that nothing behind it has to think of such values again: a JSON value inside is None, a bool,
an integer that every JSON reader holds exactly, a string of Unicode scalar values without U+0000, a list or an object.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from contracts.base import JsonObject
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.reasons import Reason

BODY_BYTES_MAX: Final = 1_048_576
DEPTH_MAX: Final = 16
VALUES_MAX: Final = 20_000
INTEGER_MAX: Final = 2**53 - 1
PROBLEMS_MAX: Final = 50

Path = tuple[str | int, ...]
"""Where a value stands: keys and indexes from the outside in."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}")
_SHOWN_MAX: Final = 40
_INTEGER_DIGITS_MAX: Final = 17
# An unclosed string is one token up to the end: scanning stays linear on hostile text.
_TOKENS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
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
    example: Any
    is_malformed: bool
    """True when the text itself is no JSON that everybody reads alike: the answer is then 400, not 422."""


class _Unreadable(float):
    """A number whose text no integer of ours holds; kept until the walk can say where it stands."""

    text: str

    def __new__(cls, text: str) -> "_Unreadable":
        number = super().__new__(cls, 0.5)
        number.text = text
        return number


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
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise _malformed(f"The body is nested more than {DEPTH_MAX} levels deep.")
    try:
        value: JsonObject = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_Unreadable)
    except json.JSONDecodeError as error:
        raise _malformed(f"The body is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from error
    return value


def check_values(value: Any) -> None:
    """Refuse a parsed value with anything inside that JSON cannot carry exactly; for doors that never see bytes.

    A float is refused wherever it stands, whole or not: money is integer cents. A bool is no integer.
    Raises: SagaError as `parse_object`, naming at most `PROBLEMS_MAX` places.
    """
    if found := faults(value):
        malformed = any(fault.is_malformed for fault in found)
        reason = Reason.BODY_MALFORMED if malformed else Reason.ARGUMENTS_INVALID
        raise refusal(reason, [problem(fault) for fault in found])


def faults(value: Any) -> list[Fault]:
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
    more = f" And {len(problems) - 1} more wrong fields." if len(problems) > 1 else ""
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


def shown(value: Any) -> str:
    r"""Quote a value for a message: at most 40 characters, everything but printable ASCII as `\u...`, so that no
    log, terminal or page is steered by what a stranger sent.
    """
    if isinstance(value, str):
        escaped = value[:_SHOWN_MAX].replace("\\", "\\\\").replace('"', '\\"')
        quoted = '"' + _NOT_PRINTED.sub(lambda match: f"\\u{{{ord(match.group()):x}}}", escaped) + '"'
        return quoted if len(value) <= _SHOWN_MAX else f"{quoted}... ({len(value)} characters)"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, _Unreadable):
        text = value.text
        return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text)} digits)"
    if isinstance(value, int) and not -(10**_SHOWN_MAX) < value < 10**_SHOWN_MAX:
        return "a very large integer"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else type(value).__name__


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


def _depth(text: str) -> int:
    """Count the deepest nesting without recursion; stops as soon as it is too deep."""
    depth = 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return depth
        elif token in "]}":
            depth -= 1
    return depth


def _walk(root: Any) -> Iterator[Fault]:
    """Visit every value in document order, without recursion and with a bound."""
    stack: list[tuple[Path, Any]] = [((), root)]
    visited = 0
    while stack:
        path, value = stack.pop()
        visited += 1
        if visited > VALUES_MAX:
            yield _text_fault(
                (), "too_many_values", f"There are more than {VALUES_MAX} values in the body.", "fewer values"
            )
            return
        kind = type(value)
        if kind is str:
            if fault := _text_problem(path, value):
                yield fault
        elif kind is dict or kind is list or kind is _Doubled:
            if len(path) >= DEPTH_MAX:
                yield _text_fault(
                    path, "too_deep", f"Nested more than {DEPTH_MAX} levels deep.", f"at most {DEPTH_MAX} levels"
                )
                continue
            if kind is list:
                stack.extend(
                    ((*path, index), item)
                    for index, item in zip(range(len(value) - 1, -1, -1), reversed(value), strict=True)
                )
                continue
            yield from _keys(path, value)
            stack.extend(((*path, key), item) for key, item in reversed(value.items()) if isinstance(key, str))
        elif value is not None and kind is not bool and (fault := _number_problem(path, value)):
            yield fault


def _keys(path: Path, value: dict[Any, Any]) -> Iterator[Fault]:
    if isinstance(value, _Doubled):
        message = f"The key {shown(value.key)} comes twice in one object."
        yield _text_fault((*path, value.key), "duplicate_key", message, "each key once")
    for key in value:
        if not isinstance(key, str):
            yield _text_fault(path, "key_type", f"A key is {type(key).__name__}, not text.", "text keys")
        elif fault := _text_problem((*path, key), key):
            yield fault


def _text_problem(path: Path, text: str) -> Fault | None:
    if text.isascii() and "\x00" not in text:
        return None
    match = _BAD_TEXT.search(text)
    if match is None:
        return None
    if match.group() == "\x00":
        return _text_fault(
            path, "nul", f"Character {match.start()} is U+0000, which no text here may hold.", _TEXT_ALLOWED
        )
    message = f"Character {match.start()} is U+{ord(match.group()):04X}, a surrogate without its partner."
    return _text_fault(path, "lone_surrogate", message, _TEXT_ALLOWED)


def _number_problem(path: Path, value: Any) -> Fault | None:
    if type(value) is int:
        if -INTEGER_MAX <= value <= INTEGER_MAX:
            return None
        return _range_fault(path, value)
    if isinstance(value, _Unreadable):
        if value.text.lstrip("-").isdigit() and value.text != "-0":
            return _range_fault(path, value)
        message = f"{shown(value)} is refused: integers only, without point, exponent or negative zero."
        return Fault(path, "integers_only", message, _INTEGERS_ALLOWED, 1, is_malformed=False)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            message = f"{'NaN' if value != value else 'Infinity'} is not JSON."
            return Fault(path, "not_json", message, _INTEGERS_ALLOWED, 1, is_malformed=True)
        message = f"{shown(value)} is refused: integers only, without point or exponent."
        return Fault(path, "integers_only", message, _INTEGERS_ALLOWED, 1, is_malformed=False)
    message = f"A value of type {type(value).__name__} is not JSON."
    return Fault(
        path, "not_json", message, "null, true, false, integer, text, array or object", None, is_malformed=True
    )


def _range_fault(path: Path, value: Any) -> Fault:
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
