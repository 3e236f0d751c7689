"""Reading a posted intent: shape, tools, arguments, needs and bindings, with all that is wrong told at once."""

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import ValidationError

from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.binding import Binding, bindings_of
from contracts.errors import FieldProblem, SagaError
from contracts.fallback import FALLBACKS_MAX, fallback_id
from contracts.faulty import informed_of, readable
from contracts.fit import misfit, operand_misfit, promised, result_misfit, source_place
from contracts.functions import FUNCTIONS, OPERANDS_MAX, OPERANDS_MIN, Range, expression_of, widest
from contracts.graph import Node, cycle_of
from contracts.intent import FALLBACK, FN, FROM, OF, STEP_ID_PATTERN, STEPS_MAX, Intent, OpenIntent
from contracts.problems import field_problems, informed, problem_at
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.shape import Place, shape_of
from contracts.tool import AnyContract
from contracts.wire import (
    BODY_BYTES_MAX,
    PROBLEMS_MAX,
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
    told = [informed_of(fault, given, registry) for fault in found]
    if any(fault.is_malformed for fault in found):
        raise refusal(Reason.BODY_MALFORMED, told)
    reading = _Reading(readable(given) if found else given, registry, frozenset(fault.path for fault in found))
    intent, nodes = reading.read()
    problems = [*told, *reading.problems]
    if intent is None or problems:
        unknown = any(wrong.code == "tool_unknown" for wrong in problems)
        raise refusal(Reason.TOOL_UNKNOWN if unknown else Reason.ARGUMENTS_INVALID, problems)
    return intent, nodes


def read_open(given: JsonObject) -> OpenIntent:
    """Check an open intent, which has no steps yet. Raises as `read_intent`."""
    found = faults(given)
    shape = shape_of(OpenIntent)
    told = [informed(fault, shape, fault.path, given) for fault in found]
    if any(fault.is_malformed for fault in found):
        raise refusal(Reason.BODY_MALFORMED, told)
    paths = {fault.path for fault in found}
    try:
        intent = OpenIntent.model_validate_json(_text(readable(given) if found else given))
    except ValidationError as error:
        told += field_problems(error, shape, given, skip=paths.__contains__)
        raise refusal(Reason.ARGUMENTS_INVALID, told) from None
    if told:
        raise refusal(Reason.ARGUMENTS_INVALID, told)
    return intent


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
    place: Path = ()
    """Where its fallback stands inside the step; nothing for the step itself."""
    fallback: "_Step | None" = None

    def at(self, *path: str | int) -> Path:
        """Place a path of the step inside the whole intent."""
        return ("steps", self.index, *self.place, *path)

    @property
    def calls(self) -> "tuple[_Step, ...]":
        """Itself and its fallback: whatever runs is all the same to others."""
        return (self,) if self.fallback is None else (self, self.fallback)


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
            for call in step.calls:
                self._check_arguments(call)
                self._check_bindings(call, by_id)
            self._check_needs(step, by_id)
        self._check_fallbacks(steps)
        if intent is None or self.problems or self._told:
            return intent, []
        nodes = [self._node(step, steps) for step in steps]
        self._check_cycle(nodes, by_id)
        return intent, nodes

    def _say(self, path: Path, code: str, message: str, allowed: str, example: JsonValue) -> None:
        self.problems.append(problem_at(path, code, message, allowed, example))

    def _read_step(self, index: int, raw: JsonObject, place: Path = ()) -> _Step:
        arguments, step_id = as_object(raw.get("arguments")), raw.get("step_id")
        bindings, malformed = ((), ()) if arguments is None else bindings_of(arguments)
        if "needs" in raw and raw["needs"] is None:
            message = "null is refused: leave `needs` out to come after the step before, or write [] to be independent."
            self._say(("steps", index, "needs"), "wrong_type", message, "array of step ids, or nothing at all", [])
        if not place and FALLBACK in raw and raw[FALLBACK] is None:
            message = "null is refused: leave `fallback` out where a step has none."
            self._say(("steps", index, FALLBACK), "wrong_type", message, "object, or nothing at all", None)
        needs = as_array(raw.get("needs"))
        fallback = None if place else as_object(raw.get(FALLBACK))
        return _Step(
            index=index,
            step_id=step_id if isinstance(step_id, str) and _STEP_ID.fullmatch(step_id) else f"#{index}",
            contract=self._resolve_tool(("steps", index, *place, "tool"), raw.get("tool")),
            arguments=arguments,
            needs=None if needs is None else needs[:STEPS_MAX],
            bindings=bindings,
            malformed=malformed,
            place=place,
            fallback=None
            if fallback is None
            else self._read_step(index, {"step_id": step_id, **fallback}, (FALLBACK,)),
        )

    def _resolve_tool(self, path: Path, tool: JsonValue) -> AnyContract | None:
        """Find the contract; a tool's name of the wrong form is unknown like any other, with close matches."""
        if not isinstance(tool, str):
            return None
        try:
            return self._registry.resolve(tool, path=path_text(path))
        except SagaError as error:
            self.problems += error.info.fields
            self._told.add(path)
            return None

    def _check_shape(self) -> Intent | None:
        try:
            return Intent.model_validate_json(_text(self._given))
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
            elif source.index == step.index:
                why = "the step itself" if not step.place else "the step that did not land when its fallback runs"
                message = f"The binding {binding.source_text} names {why}."
                self._say_binding(step, by_id, binding.target, "binding_cycle", message)
            else:
                self._check_source(step, source, binding, by_id)
        for path in dict.fromkeys(binding.target for binding in step.bindings if binding.operand is not None):
            if len(self.problems) < PROBLEMS_MAX:
                self._check_result(step, path, by_id)

    def _check_source(self, step: _Step, source: _Step, binding: Binding, by_id: dict[str, _Step]) -> None:
        """Check that a binding fits whatever runs, the step that it names or its fallback."""
        for call in source.calls:
            if call.contract is None or step.contract is None:
                continue
            if not self._check_fit(step, call.contract, step.contract, binding, by_id):
                return

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
            calls = () if source is None else source.calls
            places = [None if call.contract is None else _output(call.contract, operand[1]) for call in calls]
            found = [promised(place) for place in places if place is not None and operand_misfit(place) is None]
            if not found or len(found) < len(calls):
                return  # told of the operand
            ranges.append(widest(found))
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
    ) -> bool:
        """Check one binding against what one tool puts out; False when it was told that it is wrong."""
        output, arguments = shape_of(producer.output, "serialization"), shape_of(consumer.input)
        source, target = source_place(output, binding.source), arguments.at(binding.target, step.arguments)
        if target is None:
            return False  # an unknown field, and told as such
        if source is None:
            names = ", ".join(name for name, _ in output.fields(output.root))
            message = f"{producer.wire_name} has no output {'.'.join(binding.source)}; it has: {names}."
            self._say_binding(step, by_id, binding.target, "binding_dangling", message)
            return False
        if (
            why := misfit(output, source, arguments, target) if binding.operand is None else operand_misfit(source)
        ) is not None:
            of = f" of {producer.wire_name}" if len(by_id[binding.step_id].calls) > 1 else ""
            message = f"{binding.source_text}{of} does not fit: {why}."
            self._say_binding(step, by_id, binding.target, "binding_misfit", message)
            return False
        return True

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
            if misfit(output, field, shape, target) is None and _gives(source.fallback, (name,))
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

    def _check_fallbacks(self, steps: list[_Step]) -> None:
        """Check that there are few, and that each is a write for a write; nothing reserves on either side."""
        with_one = [step for step in steps if step.fallback is not None]
        for step in with_one[FALLBACKS_MAX:]:
            message = f"At most {FALLBACKS_MAX} steps of an intent have a fallback."
            self._say(step.at(FALLBACK), "too_many", message, "no fallback here", None)
        for step in with_one:
            for call in step.calls:
                if call.contract is not None and not call.contract.writes:
                    message = f"{call.contract.wire_name} only reads: it neither has a fallback nor is one."
                    allowed = "a tool that writes" if call is not step else "no fallback here"
                    self._say(step.at(FALLBACK), "fallback_reads", message, allowed, None)
                elif call.contract is not None and call.contract.confirms is not None:
                    message = f"{call.contract.wire_name} reserves, and what is confirmed is said beforehand."
                    allowed = "a tool that reserves nothing" if call is not step else "no fallback here"
                    self._say(step.at(FALLBACK), "fallback_reserves", message, allowed, None)

    def _node(self, step: _Step, steps: list[_Step]) -> Node:
        before = (steps[step.index - 1].step_id,) if step.index else ()
        needs = before if step.needs is None else tuple(step.needs)
        bound = (binding.step_id for call in step.calls for binding in call.bindings)
        joined, made = tuple(dict.fromkeys((*needs, *bound))), None
        for call in reversed(step.calls):
            if call.contract is None or call.arguments is None:  # pragma: no cover - a problem was told
                raise AssertionError(step.step_id)
            step_id = step.step_id if call is step else fallback_id(step.step_id)
            made = Node(step_id, call.contract, call.arguments, joined, call.bindings, made)
        if made is None:  # pragma: no cover - a step is a call
            raise AssertionError(step.step_id)
        return made

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


def _text(given: JsonObject) -> bytes:
    text = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > BODY_BYTES_MAX:
        raise too_large(len(text))
    return text


def _value_at(value: JsonValue, path: Path) -> JsonValue:
    for part in path:
        value = value[part]
    return value


def _gives(step: _Step | None, source: tuple[str, ...]) -> bool:
    return step is None or (step.contract is not None and _output(step.contract, source) is not None)


def _output(contract: AnyContract, source: tuple[str, ...]) -> Place | None:
    return source_place(shape_of(contract.output, "serialization"), source)
