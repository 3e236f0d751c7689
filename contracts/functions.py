"""Named functions of bindings: `{"$fn": "sum_cents", "of": [{"$from": "a.amount_cents"}, 250]}`.

A closed list, of whole numbers only, so that type and range are known before anything runs; nothing is evaluated as
code, and functions do not nest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.base import JsonValue, as_array, as_object
from contracts.intent import FN, OF, binding_of
from contracts.wire import INTEGER_MAX

OPERANDS_MAX: Final = 20
Source = tuple[str, tuple[str, ...]]
"""A step and the path into its output."""
Range = tuple[int | None, int | None]
"""Least and greatest; None where nothing is promised."""


@dataclass(frozen=True)
class Function:
    """One of the functions; `range_of` is what it gives for operands of these ranges."""

    name: str
    operands_max: int
    work: Callable[[Sequence[int]], int]
    range_of: Callable[[Sequence[Range]], Range]


@dataclass(frozen=True)
class Expression:
    """A function of bindings and whole numbers, of which at least one is a binding."""

    function: Function
    operands: tuple[int | Source, ...]


def expression_of(value: JsonValue) -> Expression | None:
    """Read an object with `$fn`; None for anything else."""
    given = as_object(value)
    if given is None or len(given) != len({FN, OF}) or FN not in given or OF not in given:
        return None
    name, items = given[FN], as_array(given[OF])
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None or items is None or not OPERANDS_MIN <= len(items) <= function.operands_max:
        return None
    operands = [_operand(item) for item in items]
    if None in operands or all(isinstance(operand, int) for operand in operands):
        return None
    return Expression(function, tuple(operand for operand in operands if operand is not None))


def is_bound(value: JsonValue) -> bool:
    """True when a value is not said outright: it is known only once other steps are done."""
    return as_object(value) is not None and (binding_of(value) is not None or expression_of(value) is not None)


def computed(expression: Expression, values: Sequence[JsonValue]) -> int | None:
    """Give the function of these values; None where one is no whole number, or the result is none that JSON keeps."""
    numbers = [value for value in values if type(value) is int]
    if len(numbers) != len(values):
        return None
    result = expression.function.work(numbers)
    return result if -INTEGER_MAX <= result <= INTEGER_MAX else None


def _operand(item: JsonValue) -> int | Source | None:
    if type(item) is int:
        return item if 0 <= item <= INTEGER_MAX else None
    return binding_of(item)


def _total(ends: Sequence[int | None]) -> int | None:
    known = [end for end in ends if end is not None]
    return sum(known) if len(known) == len(ends) else None


def _sum_range(ranges: Sequence[Range]) -> Range:
    return _total([low for low, _ in ranges]), _total([high for _, high in ranges])


def widest(ranges: Sequence[Range]) -> Range:
    """Span all of these, whichever it is."""
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    known = [low for low in lows if low is not None], [high for high in highs if high is not None]
    return (
        min(known[0]) if len(known[0]) == len(lows) else None,
        max(known[1]) if len(known[1]) == len(highs) else None,
    )


def _least_range(ranges: Sequence[Range]) -> Range:
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    return min(lows) if len(lows) == len(ranges) else None, min(highs, default=None)


def _difference_range(ranges: Sequence[Range]) -> Range:
    (low, high), (least, most) = ranges
    return (
        None if low is None or most is None else low - most,
        None if high is None or least is None else high - least,
    )


OPERANDS_MIN: Final = 2
FUNCTIONS: Final = {
    function.name: function
    for function in (
        Function("sum_cents", OPERANDS_MAX, sum, _sum_range),
        Function("min_cents", OPERANDS_MAX, min, _least_range),
        Function("difference_cents", 2, lambda numbers: numbers[0] - numbers[1], _difference_range),
    )
}
