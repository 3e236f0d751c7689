"""Bindings: an argument that is another step's output, written `{"$from": "freeze.hold_id"}`, or a function of some."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from contracts.base import JsonObject, JsonValue, as_array, as_object, items_of
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.functions import computed, expression_of, is_bound
from contracts.intent import FN, FROM, RESERVED, binding_of
from contracts.reasons import Reason
from contracts.wire import Path, path_text


@dataclass(frozen=True)
class Binding:
    """The argument at `target` is the field `source` of the output of step `step_id`.

    Or it is a named function, of which this is the operand with the number `operand`.
    """

    target: Path
    step_id: str
    source: tuple[str, ...]
    operand: int | None = None

    @property
    def source_text(self) -> str:
        """Where the value comes from, as it was written: `freeze.hold_id`."""
        return ".".join((self.step_id, *self.source))


def bindings_of(arguments: JsonObject) -> tuple[tuple[Binding, ...], tuple[Path, ...]]:
    """List the bindings inside `arguments`, and the places where something has a `$from` or `$fn` and is neither.

    The arguments as a whole cannot be a binding: an output is never taken for a call unread.
    """
    found: list[Binding] = []
    malformed: list[Path] = []
    for path, value in _sources((), arguments):
        binding, expression = binding_of(value), expression_of(value)
        if not path or (binding is None and expression is None):
            malformed.append(path)
        elif binding is not None:
            found.append(Binding(path, *binding))
        elif expression is not None:
            operands = enumerate(expression.operands)
            found += [Binding(path, *each, operand=number) for number, each in operands if not isinstance(each, int)]
    return tuple(found), tuple(malformed)


def resolve(arguments: JsonObject, outputs: Mapping[str, JsonObject]) -> JsonObject:
    """Copy `arguments` with each binding replaced by the recorded output that it names.

    Outputs are data: nothing inside them is ever read as a binding.
    Raises: SagaError(ARGUMENTS_INVALID), phase execution, when a recorded output lacks what the plan promised.
    """
    return {key: _resolved((key,), value, outputs) for key, value in arguments.items()}


def fills(template: JsonValue, given: JsonValue) -> bool:
    """True when `given` is `template` with its bindings filled in, and nothing else is different."""
    if is_bound(template):
        return True
    if type(template) is not type(given):
        return False
    wanted, got = as_object(template), as_object(given)
    if wanted is not None and got is not None:
        return wanted.keys() == got.keys() and all(fills(wanted[name], got[name]) for name in wanted)
    items, others = as_array(template), as_array(given)
    if items is not None and others is not None:
        return len(items) == len(others) and all(map(fills, items, others))
    return bool(template == given)


def _sources(path: Path, value: JsonValue) -> Iterator[tuple[Path, JsonValue]]:
    given = as_object(value)
    if given is not None and RESERVED & given.keys():
        yield path, given
        return
    for key, item in items_of(value):
        yield from _sources((*path, key), item)


def _resolved(path: Path, value: JsonValue, outputs: Mapping[str, JsonObject]) -> JsonValue:
    if (items := as_array(value)) is not None:
        return [_resolved((*path, index), item, outputs) for index, item in enumerate(items)]
    given = as_object(value)
    if given is None:
        return value
    if not RESERVED & given.keys():
        return {key: _resolved((*path, key), item, outputs) for key, item in given.items()}
    if (expression := expression_of(given)) is not None:
        values = [each if isinstance(each, int) else _found(path, *each, outputs) for each in expression.operands]
        result = computed(expression, values)
        if result is None:
            raise _unresolved(
                path, expression.function.name, "an operand is no whole number, or the result is too large"
            )
        return result
    binding = binding_of(given)
    if binding is None:
        raise _unresolved(path, str(given.get(FROM, given.get(FN)))[:100], "it is no binding")
    return _found(path, *binding, outputs)


def _found(path: Path, step_id: str, source: tuple[str, ...], outputs: Mapping[str, JsonObject]) -> JsonValue:
    found: JsonValue = outputs.get(step_id)
    for name in source:
        inside = as_object(found)
        if inside is None or name not in inside:
            raise _unresolved(path, ".".join((step_id, *source)), "the recorded output has no such field")
        found = inside[name]
    return found


def _unresolved(path: Path, source: str, why: str) -> SagaError:
    message = (
        f"The binding {source!r} cannot be resolved: {why}. The tool's output does not keep its contract; report it."
    )
    return SagaError(
        Reason.ARGUMENTS_INVALID,
        message,
        details={"source": source, "path": path_text(path)},
        fields=[
            FieldProblem(
                path=path_text(path),
                code="binding_unresolved",
                message=message,
                allowed="a field of the recorded output",
                example={FROM: "freeze.hold_id"},
            )
        ],
        phase=Phase.EXECUTION,
    )
