"""Is a tool's model closed, strict, bounded, and told to the agent? What is not lets a wrong write through.

The class is looked at for how it reads (extra fields, coercion, functions that change values), its JSON schema for
what it promises (bounds, words, descriptions, examples): the schema is all that an agent and the plan check ever see.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from contracts.base import JsonValue, as_array, as_object
from contracts.shape import Mode, Place, Shape, range_of, shape_of
from contracts.wire import DEPTH_MAX, INTEGER_MAX

FIELD_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
ENGINE_NAMES: Final = frozenset(
    {
        "tenant", "tenant_id", "principal", "principal_id", "role", "roles", "permission", "permissions", "is_admin",
        "sql", "query", "url", "uri", "path", "file_path", "key", "idempotency_key", "step_key", "intent_key",
    }
)  # fmt: skip
"""What the engine injects or nobody may say: no model fills such a field in."""

_REFUSED_KINDS: Final = {
    "number": "takes floats; use an integer with the unit in its name (amount_cents, share_basis_points)",
    "any": "takes anything; use one type, or a union with a discriminator",
}
_CHANGING_CONFIG: Final = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "coerce_numbers_to_str")
_CHANGING_TEXT: Final = ("strip_whitespace", "to_lower", "to_upper")
_FUNCTIONS: Final = ("function-before", "function-after", "function-wrap", "function-plain")
_SCALARS: Final = ("int", "str", "bool", "enum", "literal")
_CLASS_OR_ESCAPE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNBOUNDED: Final = re.compile(r"[*+]|\{[0-9]*,\}")


def check_model(model: type[BaseModel], what: str, mode: Mode) -> list[str]:
    """List what is wrong with a tool's `what` model, each line with its place and what to change.

    In mode `validation` it is what agents fill in, so strictness and examples are asked for too.
    """
    wrong: list[str] = []
    for inner in _models_in(model, ()):
        if inner is None:
            return [f"{what}: the model contains itself; nest at most {DEPTH_MAX} different models"]
        wrong += [f"{what} {inner.__name__}: {line}" for line in _check_class(inner, is_input=mode == "validation")]
    if mode == "validation":
        wrong += [f"{what}.{line}" for line in dict.fromkeys(_changers("", model.__pydantic_core_schema__))]
    try:
        shape = shape_of(model, mode)
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError) as error:
        return [*wrong, f"{what}: no JSON schema can say what it takes: {error.message}"]
    for path, place, is_field in _places(shape, what, shape.root, is_field=False):
        wrong += [f"{path}: {line}" for line in _check_place(shape, place, is_field=is_field, mode=mode)]
    return list(dict.fromkeys(wrong))


def _models_in(model: type[BaseModel], above: tuple[type[BaseModel], ...]) -> Iterator[type[BaseModel] | None]:
    """List the model and all models inside; None where one contains itself."""
    if model in above:
        yield None
        return
    yield model
    for field in model.model_fields.values():
        for inner in _classes_in(field.annotation):
            yield from _models_in(inner, (*above, model))


def _classes_in(annotation: JsonValue) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes_in(argument)


def _check_class(model: type[BaseModel], *, is_input: bool) -> Iterator[str]:
    config = model.model_config
    if config.get("extra") != "forbid":
        yield "takes unknown fields; derive it from contracts.base.Contract (extra='forbid')"
    if not is_input:
        return
    if config.get("strict") is not True:
        yield "coerces values; derive it from contracts.base.Contract (strict=True)"
    for setting in _CHANGING_CONFIG:
        if config.get(setting):
            yield f"changes what was sent; take {setting} out of its configuration"
    for name, field in model.model_fields.items():
        yield from (f"field {name!r}: {line}" for line in _check_field(name, field))


def _check_field(name: str, field: FieldInfo) -> Iterator[str]:
    if FIELD_NAME.fullmatch(name) is None:
        yield "rename it to lower-case words (a-z, 0-9, _), at most 48 characters"
    if name in ENGINE_NAMES:
        yield "the engine knows this, a model must not say it; remove or rename the field"
    if field.alias is not None or field.validation_alias is not None:
        yield "has a second name; remove the alias"
    if field.default_factory is not None:
        yield "agents cannot read a default_factory; state the default itself"


def _changers(path: str, schema: JsonValue) -> Iterator[str]:
    """Find in pydantic's core schema what lets a tool get something else than was sent.

    A rule over a whole model, `model_validator(mode="after")`, is the one function allowed.
    """
    node: Mapping[str, Any] | None = as_object(schema)
    if node is None:
        for item in as_array(schema) or []:
            yield from _changers(path, item)
        return
    kind = node.get("type")
    over_model = kind == "function-after" and (as_object(node.get("schema")) or {}).get("type") == "model"
    if kind in _FUNCTIONS and not over_model:
        yield f"{path}: a validator function may change what was sent; say it in the schema or in a model_validator"
    if kind == "str" and any(node.get(setting) for setting in _CHANGING_TEXT):
        yield f"{path}: changes the text that was sent; take strip_whitespace, to_lower and to_upper away"
    if kind in _SCALARS and node.get("strict") is False:
        yield f"{path}: coerces values; take strict=False away"
    for key, value in node.items():
        if key == "fields" and (fields := as_object(value)) is not None:
            for name, field in fields.items():
                yield from _changers(f"{path}.{name}" if path else name, field)
        elif key not in ("metadata", "serialization", "function", "default"):
            yield from _changers(path, value)


def _places(shape: Shape, path: str, place: Place, *, is_field: bool) -> Iterator[tuple[str, Place, bool]]:
    """List all places of a shape from the outside in, with their path and whether they are a field of an object."""
    yield path, place, is_field
    if place.kind == "choice":
        for number, branch in enumerate(shape.branches(place)):
            yield from _places(shape, f"{path}({number})", branch, is_field=False)
    for name, field in shape.fields(place):
        yield from _places(shape, f"{path}.{name}", field, is_field=True)
    if place.kind == "array" and (items := shape.child(place, 0)) is not None:
        yield from _places(shape, f"{path}[]", items, is_field=False)


def _check_place(shape: Shape, place: Place, *, is_field: bool, mode: Mode) -> Iterator[str]:
    yield from _check_bounds(place, mode)
    if not is_field:
        return
    if not place.schema.get("description"):
        yield "give it a description"
    if mode == "serialization":
        return
    if shape.example(place) is None:
        yield "give it an example: Field(examples=[...])"
    if place.nullable and not place.has_default:
        yield "takes null but has no default; state what missing means"
    if not place.required and not place.has_default:
        yield "is optional; state its default"


def _check_bounds(place: Place, mode: Mode) -> Iterator[str]:
    schema = place.schema
    if place.kind == "integer" and place.words is None:
        yield from _check_range(schema)
    elif place.kind == "string" and place.words is None:
        yield from _check_text(schema, mode)
    elif place.kind == "array":
        yield from _check_array(schema)
    elif place.kind == "object" and schema.get("additionalProperties") is not False:
        yield "is a free map; use a model with named fields"
    elif place.kind == "choice" and "discriminator" not in schema:
        yield "is a union that no field decides; give it a discriminator"
    elif place.kind in _REFUSED_KINDS:
        yield _REFUSED_KINDS[place.kind]


def _check_array(schema: Mapping[str, Any]) -> Iterator[str]:
    if "maxItems" not in schema:
        yield "bound it: Field(max_length=...)"
    if "items" not in schema:
        yield "declare one type for all its items"
    if schema.get("uniqueItems"):
        yield "a set loses the order that was sent; use a tuple"


def _check_range(schema: Mapping[str, Any]) -> Iterator[str]:
    low, high = range_of(schema)
    if low is None or high is None:
        yield f"bound it on both sides, within +-{INTEGER_MAX}: Field(ge=..., le=...)"
    elif low < -INTEGER_MAX or high > INTEGER_MAX:
        yield f"its bounds are beyond +-{INTEGER_MAX}, which JSON readers do not hold exactly; narrow them"


def _check_text(schema: Mapping[str, Any], mode: Mode) -> Iterator[str]:
    pattern = schema.get("pattern")
    if mode == "serialization" and schema.get("format") == "date-time":
        return
    if pattern is None and "maxLength" not in schema:
        yield "bound it: an enum of words, Field(pattern=...) or Field(max_length=...)"
    elif pattern is not None:
        if not (pattern.startswith("^") and pattern.endswith("$")):
            yield f"its pattern {pattern!r} matches inside longer texts; write it as ^...$"
        elif "maxLength" not in schema and _UNBOUNDED.search(_CLASS_OR_ESCAPE.sub("", pattern)):
            yield f"its pattern {pattern!r} has no longest text; add Field(max_length=...)"
