"""What a model promises about each place in its values, read from its JSON schema.

One reader serves all who ask: errors (what is allowed here, an example), registration (is everything bounded?), the
plan check (does this output fit that argument?), the canonical form (which fields say no more than their default?).
So agents, checks and keys can never disagree about a field: all see the schema that the agent sees.
"""

import copy
import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, cast

from pydantic import BaseModel

from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.intent import RESERVED
from contracts.wire import Path

Schema = Mapping[str, Any]
Mode = Literal["validation", "serialization"]

_NULL: Final = {"type": "null"}
_CHOICES_SHOWN_MAX: Final = 20
_FOR_PEOPLE: Final = frozenset({"title", "description", "examples", "default"})


@dataclass(frozen=True)
class Place:
    """One place in a value: its schema without references and null."""

    schema: Schema
    nullable: bool = False
    required: bool = True

    @property
    def has_default(self) -> bool:
        """True when a missing value has a stated meaning."""
        return "default" in self.schema

    @property
    def kind(self) -> str:
        """JSON type of the values: string, integer, boolean, array, object, number; `choice` for a union, else any."""
        if "oneOf" in self.schema:
            return "choice"
        kind = self.schema.get("type")
        if isinstance(kind, str):
            return kind
        words = self.words
        return "string" if words and all(isinstance(word, str) for word in words) else "any"

    @property
    def words(self) -> tuple[Any, ...] | None:
        """The closed set of values, when there is one."""
        if "const" in self.schema:
            return (self.schema["const"],)
        words = self.schema.get("enum")
        return None if words is None else tuple(words)


class Shape:
    """A model's schema, with its references followed on the way down."""

    def __init__(self, schema: Schema) -> None:
        """Read `schema`, as pydantic writes it."""
        self._schema = schema
        self.root = self._place(schema)

    def child(self, place: Place, key: str | int, value: JsonValue = None) -> Place | None:
        """Find the place below `place`; `value` there decides which branch of a union is meant."""
        branch = self.branch(place, value)
        if branch is None:
            return None
        if isinstance(key, int):
            items = branch.schema.get("items")
            return None if items is None else self._place(items)
        field = branch.schema.get("properties", {}).get(key)
        return None if field is None else self._place(field, required=key in branch.schema.get("required", ()))

    def branch(self, place: Place, value: JsonValue) -> Place | None:
        """Choose a discriminated union's branch by `value`; any other place is its own branch."""
        if place.kind != "choice":
            return place
        discriminator: Schema = place.schema.get("discriminator", {})
        word = (as_object(value) or {}).get(discriminator.get("propertyName", ""))
        target = discriminator.get("mapping", {}).get(word) if isinstance(word, str) else None
        return None if target is None else self._place({"$ref": target})

    def branches(self, place: Place) -> tuple[Place, ...]:
        """List the branches of a union, or the place itself."""
        if place.kind != "choice":
            return (place,)
        return tuple(self._place(option) for option in place.schema["oneOf"])

    def fields(self, place: Place) -> Iterator[tuple[str, Place]]:
        """List the fields of an object as declared."""
        return iter(self._root_fields) if place is self.root else self._fields(place)

    @cached_property
    def _root_fields(self) -> tuple[tuple[str, Place], ...]:
        """Those of the root, which are asked for again and again."""
        return tuple(self._fields(self.root))

    def _fields(self, place: Place) -> Iterator[tuple[str, Place]]:
        required = place.schema.get("required", ())
        for name, field in place.schema.get("properties", {}).items():
            yield name, self._place(field, required=name in required)

    def at(self, path: Path, value: JsonValue = None) -> Place | None:
        """Follow `path` from the root, as far as the schema goes along `value`; None where nothing is declared."""
        place: Place | None = self.root
        for key in path:
            if place is None:
                return None
            place = self.child(place, key, value)
            value = below(value, key)
        return place

    def with_defaults(self, value: JsonValue) -> JsonValue:
        """Copy `value` with every missing field that has a stated default filled in; bindings stay as they are."""
        return self._filled(self.root, value)

    def without_defaults(self, value: JsonValue) -> JsonValue:
        """Copy `value` without the fields that say what their stated default says: what counts for keys.

        A model that gets one more optional field leaves such a form as it was. A union's discriminator stays.
        """
        return self._emptied(self.root, self.with_defaults(value))

    def expanded(self, place: Place) -> JsonObject:
        """Write out what values of `place` look like, without references and without words for people.

        Two places of two models take the same values if these are equal. Only for models that do not contain
        themselves.
        """
        kept = {key: value for key, value in place.schema.items() if key not in _FOR_PEOPLE}
        if place.kind == "choice":
            kept["oneOf"] = [self.expanded(branch) for branch in self.branches(place)]
            kept["discriminator"] = kept.get("discriminator", {}).get("propertyName")
        if "properties" in kept:
            kept["properties"] = {name: self.expanded(field) for name, field in self.fields(place)}
        if "items" in kept:
            kept["items"] = self.expanded(self._place(kept["items"]))
        return {**kept, "nullable": place.nullable}

    def allowed(self, place: Place) -> str:
        """Say in words which values may stand at `place`."""
        text = self._kind_text(place) if place.words is None else self._words_text(place.words)
        return f"{text}, or null" if place.nullable else text

    def example(self, place: Place) -> JsonValue:
        """Give a value that may stand at `place`: the author's own example, or the simplest that follows, or None."""
        schema = place.schema
        stated = [*schema.get("examples", ())[:1], *(place.words or ())[:1]]
        if schema.get("default") is not None:
            stated.append(schema["default"])
        if stated:
            return copy.deepcopy(stated[0])
        return self._made_up(place)

    def _made_up(self, place: Place) -> JsonValue:
        if place.kind == "array":
            items = self.child(place, 0)
            return [] if items is None else [self.example(items)]
        if place.kind == "choice":
            return self.example(self.branches(place)[0])
        if place.kind == "object":
            return {name: self.example(field) for name, field in self.fields(place) if field.required}
        return True if place.kind == "boolean" else None

    def _place(self, schema: Schema, *, required: bool = True) -> Place:
        """Follow references, keep what stands beside them, and take null out of the alternatives."""
        nullable = False
        while True:
            if "$ref" in schema:
                beside = {key: value for key, value in schema.items() if key != "$ref"}
                schema = {**self._schema.get("$defs", {})[schema["$ref"].rpartition("/")[2]], **beside}
                continue
            options = schema.get("anyOf")
            if options is None or _NULL not in options:
                break
            nullable = True
            others = [option for option in options if option != _NULL]
            beside = {key: value for key, value in schema.items() if key != "anyOf"}
            schema = {**others[0], **beside} if len(others) == 1 else {"anyOf": others, **beside}
        return Place(schema, nullable=nullable, required=required)

    def _filled(self, place: Place | None, value: JsonValue) -> JsonValue:
        if place is None:
            return value
        if (items := as_array(value)) is not None:
            return [self._filled(self.child(place, index), item) for index, item in enumerate(items)]
        branch = self.branch(place, value)
        given = as_object(value)
        if given is None or branch is None or RESERVED & given.keys():
            return value
        filled = dict(given)
        for name, field in self.fields(branch):
            if name in filled:
                filled[name] = self._filled(field, filled[name])
            elif field.has_default:
                filled[name] = copy.deepcopy(field.schema["default"])
        return filled

    def _emptied(self, place: Place | None, value: JsonValue) -> JsonValue:
        """Take the defaults out of a value in which all are filled in."""
        if place is None:
            return value
        if (items := as_array(value)) is not None:
            return [self._emptied(self.child(place, index), item) for index, item in enumerate(items)]
        branch = self.branch(place, value)
        filled = as_object(value)
        if filled is None or branch is None or RESERVED & filled.keys():
            return value
        fields = dict(self.fields(branch))
        kept = as_object(place.schema.get("discriminator")) or {}
        return {
            name: self._emptied(fields.get(name), item)
            for name, item in filled.items()
            if name == kept.get("propertyName") or not self._is_default(fields.get(name), item)
        }

    def _is_default(self, place: Place | None, filled: JsonValue) -> bool:
        """Compare as JSON does: true is not 1."""
        if place is None or not place.has_default:
            return False
        stated = place.schema["default"]
        if filled is None or stated is None or type(filled) is type(stated) is str:
            return bool(filled == stated)
        return _plain(filled) == _plain(self._filled(place, stated))

    def _words_text(self, words: tuple[JsonValue, ...]) -> str:
        shown = ", ".join(str(word) for word in words[:_CHOICES_SHOWN_MAX])
        more = f" and {len(words) - _CHOICES_SHOWN_MAX} more" if len(words) > _CHOICES_SHOWN_MAX else ""
        return f"one of: {shown}{more}" if len(words) > 1 else f"only: {shown}"

    def _kind_text(self, place: Place) -> str:
        schema = place.schema
        if place.kind == "string":
            pattern = f" matching {schema['pattern']}" if "pattern" in schema else ""
            return f"text{pattern}{_size_text(schema, 'minLength', 'maxLength', 'character')}"
        if place.kind == "choice":
            discriminator: Schema = schema.get("discriminator", {})
            words = ", ".join(discriminator.get("mapping", {}))
            return f"object whose {discriminator.get('propertyName')} is one of: {words}"
        if place.kind == "object":
            names = ", ".join(name for name, _ in self.fields(place))
            return f"object with the fields: {names}" if names else "object"
        others = {
            "integer": f"integer{_range_text(schema)}",
            "array": f"array{_size_text(schema, 'minItems', 'maxItems', 'item')}",
            "boolean": "true or false",
        }
        return others.get(place.kind, "any JSON value")


def shape_of(model: type[BaseModel], mode: Mode = "validation") -> Shape:
    """Read a model's shape; once per process and model."""
    return _shape_of(model, mode)


@lru_cache(maxsize=4_096)
def _shape_of(model: Hashable, mode: Mode) -> Shape:
    return Shape(cast("type[BaseModel]", model).model_json_schema(mode=mode))


def below(value: JsonValue, key: str | int) -> JsonValue:
    """Go one step down in a value; None where there is nothing."""
    if isinstance(key, str):
        return (as_object(value) or {}).get(key)
    items = as_array(value) or []
    return items[key] if key < len(items) else None


def range_of(schema: Schema) -> tuple[int | None, int | None]:
    """Read the least and the greatest integer that a schema takes; None for an open end."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - 1
    return low, high


def _plain(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _range_text(schema: Schema) -> str:
    low, high = range_of(schema)
    text = "" if low is None else f" from {low}"
    text += "" if high is None else f" to {high}"
    return text + (f", a multiple of {schema['multipleOf']}" if "multipleOf" in schema else "")


def _size_text(schema: Schema, least: str, most: str, unit: str) -> str:
    low, high = schema.get(least) or 0, schema.get(most)
    if high is None:
        return f" of at least {low} {unit}{'' if low == 1 else 's'}" if low else ""
    plural = "" if high == 1 else "s"
    return f" of {low} to {high} {unit}{plural}" if low else f" of at most {high} {unit}{plural}"
