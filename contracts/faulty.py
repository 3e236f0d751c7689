"""What of a body may not come in at all (a fraction, a number that no reader keeps), told by the field it stands in."""

from contracts.base import JsonObject, JsonValue, as_array, as_object, items_of
from contracts.errors import FieldProblem
from contracts.intent import FALLBACK, Intent
from contracts.problems import informed
from contracts.registry import Registry
from contracts.shape import shape_of
from contracts.wire import INTEGER_MAX, Fault


def informed_of(fault: Fault, given: JsonObject, registry: Registry) -> FieldProblem:
    """Say of a value that may not come in what its field would take, where the field is known."""
    path = fault.path
    inside = path[3:] if path[2:3] == (FALLBACK,) else path[2:]
    if path[:1] == ("steps",) and inside[:1] == ("arguments",):
        index = path[1]
        raw: JsonObject = as_object((as_array(given.get("steps")) or [])[index]) or {} if isinstance(index, int) else {}
        raw = (as_object(raw.get(FALLBACK)) or {}) if path[2] == FALLBACK else raw
        tool = raw.get("tool")
        contract = registry.find(tool) if isinstance(tool, str) else None
        if contract is not None:
            hidden = inside[1:2] != () and inside[1] in contract.sensitive_fields
            return informed(fault, shape_of(contract.input), inside[1:], raw.get("arguments"), hidden=hidden)
    return informed(fault, shape_of(Intent), path, given)


def readable(value: JsonValue) -> JsonValue:
    """Copy a value with 0 for each number that may not come in, so that the rest can be checked."""
    if (given := as_object(value)) is not None:
        return {key: readable(item) for key, item in items_of(given)}
    if (items := as_array(value)) is not None:
        return [readable(item) for item in items]
    if isinstance(value, float) or (isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX):
        return 0
    return value
