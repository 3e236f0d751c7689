"""Reading a posted intent: shape, tools, arguments, needs and bindings, with all that is wrong told at once."""

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import ValidationError

from contracts.base import JsonObject, JsonValue, as_array, as_object, items_of
from contracts.binding import Binding, bindings_of
from contracts.errors import FieldProblem, SagaError
from contracts.fit import misfit, operand_misfit, promised, result_misfit, source_place
from contracts.functions import FUNCTIONS, OPERANDS_MAX, OPERANDS_MIN, Range, expression_of
from contracts.graph import Node, cycle_of
from contracts.intent import FN, FROM, OF, STEP_ID_PATTERN, STEPS_MAX, Intent
from contracts.problems import field_problems, informed, problem_at
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.shape import Place, shape_of
from contracts.tool import AnyContract
from contracts.wire import (
    BODY_BYTES_MAX,
    INTEGER_MAX,
    PROBLEMS_MAX,
    Fault,
    Path,
    faults,
    path_text,
    refusal,
    shown,
    too_large,
)

_BINDING_EXAMPLE: Final = {FROM: "freeze.hold_id"}
_OFFERS_MAX: Final = 10
_STEP_ID: Final = re.compile(STEP_ID_PATTERN)
_BINDING_ALLOWED: Final = f'{{"{FROM}": "step_id.output_field"}}, nothing beside it'
_MALFORMED: Final = (
    f"An object with {FROM} is a binding, one with {FN} a function of bindings and whole numbers"
    f" ({', '.join(FUNCTIONS)}; {OF}: {OPERANDS_MIN} to {OPERANDS_MAX}), and this is neither."
)


def read_intent(given: JsonObject, registry: Registry) -> tuple[Intent, list[Node]]:
    """Check an intent against the shape of intents and its tools' contracts; steps come back as posted.

    Raises: SagaError, phase validation, with every wrong field, at most `PROBLEMS_MAX`.
    """
    found = faults(given)
    told = [_informed(fault, given, registry) for fault in found]
    if any(fault.is_malformed for fault in found):
        raise refusal(Reason.BODY_MALFORMED, told)
    reading = _Reading(_readable(given) if found else given, registry, frozenset(fault.path for fault in found))
    intent, nodes = reading.read()
    problems = [*told, *reading.problems]
    if intent is None or problems:
        unknown = any(wrong.code == "tool_unknown" for wrong in problems)
        raise refusal(Reason.TOOL_UNKNOWN if unknown else Reason.ARGUMENTS_INVALID, problems)
    return intent, nodes


@dataclass(frozen=True)
class _Step:
    """A step as sent, as far as it could be read."""

    index: int
    step_id: str
    contract: AnyContract | None
    arguments: JsonObject | None
    needs: list[JsonValue] | None
    bindings: tuple[Binding, ...] = ()
    malformed: tuple[Path, ...] = ()

    def at(self, *path: str | int) -> Path:
        """Place a path of the step inside the whole intent."""
        return ("steps", self.index, *path)


class _Reading:
    """One pass over one intent; collects what is wrong."""

    def __init__(self, given: JsonObject, registry: Registry, told: frozenset[Path]) -> None:
        """Read `given`; nothing more is said about the paths in `told`."""
        self.problems: list[FieldProblem] = []
        self._given = given
        self._registry = registry
        self._told = set(told)

    def read(self) -> tuple[Intent | None, list[Node]]:
        """Give what could be read; it is complete only if there are no problems."""
        raw = [as_object(step) or {} for step in as_array(self._given.get("steps")) or []][:STEPS_MAX]
        steps = [self._read_step(index, step) for index, step in enumerate(raw)]
        intent = self._check_shape()
        by_id: dict[str, _Step] = {}
        for step in steps:
            if by_id.setdefault(step.step_id, step) is not step:
                first = by_id[step.step_id].index
                message = f"Step {first} has the id {shown(step.step_id)} already."
                self._say(
                    step.at("step_id"), "duplicate_step_id", message, "an id of its own", f"step_{step.index + 1}"
                )
        for step in steps:
            self._check_arguments(step)
            self._check_bindings(step, by_id)
            self._check_needs(step, by_id)
        if intent is None or self.problems or self._told:
            return intent, []
        nodes = [self._node(step, steps) for step in steps]
        self._check_cycle(nodes, by_id)
        return intent, nodes

    def _say(self, path: Path, code: str, message: str, allowed: str, example: JsonValue) -> None:
        self.problems.append(problem_at(path, code, message, allowed, example))

    def _read_step(self, index: int, raw: JsonObject) -> _Step:
        arguments, step_id = as_object(raw.get("arguments")), raw.get("step_id")
        bindings, malformed = ((), ()) if arguments is None else bindings_of(arguments)
        if "needs" in raw and raw["needs"] is None:
            message = "null is refused: leave `needs` out to come after the step before, or write [] to be independent."
            self._say(("steps", index, "needs"), "wrong_type", message, "array of step ids, or nothing at all", [])
        needs = as_array(raw.get("needs"))
        return _Step(
            index=index,
            step_id=step_id if isinstance(step_id, str) and _STEP_ID.fullmatch(step_id) else f"#{index}",
            contract=self._resolve_tool(index, raw.get("tool")),
            arguments=arguments,
            needs=None if needs is None else needs[:STEPS_MAX],
            bindings=bindings,
            malformed=malformed,
        )

    def _resolve_tool(self, index: int, tool: JsonValue) -> AnyContract | None:
        """Find the contract; a tool's name of the wrong form is unknown like any other, with close matches."""
        if not isinstance(tool, str):
            return None
        path: Path = ("steps", index, "tool")
        try:
            return self._registry.resolve(tool, path=path_text(path))
        except SagaError as error:
            self.problems += error.info.fields
            self._told.add(path)
            return None

    def _check_shape(self) -> Intent | None:
        text = json.dumps(self._given, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > BODY_BYTES_MAX:
            raise too_large(len(text))
        try:
            return Intent.model_validate_json(text)
        except ValidationError as error:
            self.problems += field_problems(error, shape_of(Intent), self._given, skip=self._told.__contains__)
            return None

    def _check_arguments(self, step: _Step) -> None:
        if step.contract is None or step.arguments is None:
            return
        shape = shape_of(step.contract.input)
        declared = [binding.target for binding in step.bindings if shape.at(binding.target, step.arguments) is not None]
        try:
            step.contract.input.model_validate_json(json.dumps(step.arguments))
        except ValidationError as error:
            self.problems += field_problems(
                error,
                shape,
                step.arguments,
                at=step.at("arguments"),
                skip=partial(self._is_told, step, frozenset((*declared, *step.malformed))),
                sensitive=step.contract.sensitive_fields,
            )

    def _is_told(self, step: _Step, bound: frozenset[Path], path: Path) -> bool:
        """Tell whether a problem of pydantic's is none (a binding stands there) or was told already."""
        return step.at("arguments", *path) in self._told or any(
            path[:length] in bound for length in range(len(path) + 1)
        )

    def _check_bindings(self, step: _Step, by_id: dict[str, _Step]) -> None:
        """Check each binding by itself; what else would fit is said only of as many as are told."""
        for path in step.malformed[:PROBLEMS_MAX]:
            self._say_binding(step, by_id, path, "binding_malformed", _MALFORMED)
        for binding in step.bindings:
            source = by_id.get(binding.step_id)
            if len(self.problems) >= PROBLEMS_MAX:
                return
            if source is None:
                message = f"The binding {binding.source_text} names no step of this intent."
                self._say_binding(step, by_id, binding.target, "binding_dangling", message)
            elif source is step:
                message = f"The binding {binding.source_text} names the step itself."
                self._say_binding(step, by_id, binding.target, "binding_cycle", message)
            elif source.contract is not None and step.contract is not None:
                self._check_fit(step, source.contract, step.contract, binding, by_id)
        for path in dict.fromkeys(binding.target for binding in step.bindings if binding.operand is not None):
            if len(self.problems) < PROBLEMS_MAX:
                self._check_result(step, path, by_id)

    def _check_result(self, step: _Step, path: Path, by_id: dict[str, _Step]) -> None:
        """Check that what a named function can give stands where it is written."""
        shape = None if step.contract is None else shape_of(step.contract.input)
        target = None if shape is None else shape.at(path, step.arguments)
        expression = expression_of(_value_at(step.arguments, path))
        if target is None or expression is None:
            return  # an unknown tool or field, and told as such
        ranges: list[Range] = []
        for operand in expression.operands:
            if isinstance(operand, int):
                ranges.append((operand, operand))
                continue
            source = by_id.get(operand[0])
            place = None if source is None or source.contract is None else _output(source.contract, operand[1])
            if place is None or operand_misfit(place) is not None:
                return  # told of the operand
            ranges.append(promised(place))
        if (why := result_misfit(expression.function.range_of(ranges), target)) is not None:
            message = f"{expression.function.name} does not fit: {why}."
            self._say_binding(step, by_id, path, "binding_misfit", message)

    def _check_fit(
        self,
        step: _Step,
        producer: AnyContract,
        consumer: AnyContract,
        binding: Binding,
        by_id: dict[str, _Step],
    ) -> None:
        output, arguments = shape_of(producer.output, "serialization"), shape_of(consumer.input)
        source, target = source_place(output, binding.source), arguments.at(binding.target, step.arguments)
        if target is None:
            return  # an unknown field, and told as such
        if source is None:
            names = ", ".join(name for name, _ in output.fields(output.root))
            message = f"{producer.wire_name} has no output {'.'.join(binding.source)}; it has: {names}."
            self._say_binding(step, by_id, binding.target, "binding_dangling", message)
        elif (
            why := misfit(output, source, arguments, target) if binding.operand is None else operand_misfit(source)
        ) is not None:
            message = f"{binding.source_text} does not fit: {why}."
            self._say_binding(step, by_id, binding.target, "binding_misfit", message)

    def _say_binding(self, step: _Step, by_id: dict[str, _Step], path: Path, code: str, message: str) -> None:
        """Tell of a wrong binding, with the outputs of earlier steps that would fit, else with a value that would."""
        shape = None if step.contract is None else shape_of(step.contract.input)
        target = None if shape is None else shape.at(path, step.arguments)
        if shape is None or target is None or not path:
            self._say(step.at("arguments", *path), code, message, _BINDING_ALLOWED, _BINDING_EXAMPLE)
            return
        offers = [
            f"{source.step_id}.{name}"
            for source in by_id.values()
            if source.index < step.index and source.contract is not None and _STEP_ID.fullmatch(source.step_id)
            for output in [shape_of(source.contract.output, "serialization")]
            for name, field in output.fields(output.root)
            if misfit(output, field, shape, target) is None
        ][:_OFFERS_MAX]
        literal = shape.allowed(target)
        allowed = f"{literal}; or a binding to one of: {', '.join(offers)}" if offers else literal
        example = {FROM: offers[0]} if offers else shape.example(target)
        self._say(step.at("arguments", *path), code, message, allowed, example)

    def _check_needs(self, step: _Step, by_id: dict[str, _Step]) -> None:
        others = [step_id for step_id in by_id if step_id != step.step_id and _STEP_ID.fullmatch(step_id)]
        allowed = f"one of: {', '.join(others)}" if others else "[], as there is no other step"
        seen: set[str] = set()
        for number, need in enumerate(step.needs or []):
            if not isinstance(need, str) or not _STEP_ID.fullmatch(need):
                continue  # the shape's problem
            if need == step.step_id:
                why, code = "A step cannot need itself.", "needs_cycle"
            elif need not in by_id:
                why, code = f"There is no step {shown(need)}.", "needs_unknown"
            elif need in seen:
                why, code = f"{shown(need)} stands here twice.", "needs_duplicate"
            else:
                seen.add(need)
                continue
            self._say(step.at("needs", number), code, why, allowed, next(iter(others), None))

    def _node(self, step: _Step, steps: list[_Step]) -> Node:
        before = (steps[step.index - 1].step_id,) if step.index else ()
        needs = before if step.needs is None else tuple(step.needs)
        bound = (binding.step_id for binding in step.bindings)
        if step.contract is None or step.arguments is None:  # pragma: no cover - a problem was told
            raise AssertionError(step.step_id)
        return Node(step.step_id, step.contract, step.arguments, tuple(dict.fromkeys((*needs, *bound))), step.bindings)

    def _check_cycle(self, nodes: list[Node], by_id: dict[str, _Step]) -> None:
        cycle = cycle_of(nodes)
        line = " -> ".join((*cycle, *cycle[:1]))
        needs = {node.step_id: node for node in nodes}
        for step_id, need in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
            step = by_id[step_id]
            bound = [binding for binding in needs[step_id].bindings if binding.step_id == need]
            message = f"These steps wait for each other: {line}."
            if bound:
                self._say_binding(step, by_id, bound[0].target, "binding_cycle", message)
            else:
                allowed = "ids of steps that do not wait for this one"
                self._say(step.at("needs"), "needs_cycle", message, allowed, [])


def _value_at(value: JsonValue, path: Path) -> JsonValue:
    for part in path:
        value = value[part]
    return value


def _output(contract: AnyContract, source: tuple[str, ...]) -> Place | None:
    return source_place(shape_of(contract.output, "serialization"), source)


def _informed(fault: Fault, given: JsonObject, registry: Registry) -> FieldProblem:
    """Say of a value that may not come in what its field would take, where the field is known."""
    path = fault.path
    if path[:1] == ("steps",) and path[2:3] == ("arguments",):
        index = path[1]
        raw: JsonObject = as_object((as_array(given.get("steps")) or [])[index]) or {} if isinstance(index, int) else {}
        tool = raw.get("tool")
        contract = registry.find(tool) if isinstance(tool, str) else None
        if contract is not None:
            hidden = path[3:4] != () and path[3] in contract.sensitive_fields
            return informed(fault, shape_of(contract.input), path[3:], raw.get("arguments"), hidden=hidden)
    return informed(fault, shape_of(Intent), path, given)


def _readable(value: JsonValue) -> JsonValue:
    """Copy a value with 0 for each number that may not come in, so that the rest can be checked."""
    if (given := as_object(value)) is not None:
        return {key: _readable(item) for key, item in items_of(given)}
    if (items := as_array(value)) is not None:
        return [_readable(item) for item in items]
    if isinstance(value, float) or (isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX):
        return 0
    return value
