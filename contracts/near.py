"""Near-duplicates: the same call under another key, because the model asked again in other words (DESIGN.md section 5).

A near-key is what is left of a step's identity without conversation, plan and step names: tenant, principal, business
reference, tool, identity arguments. A bound argument counts as the near-key of the step that it comes from. Words for
people do not tell one payment from another: whoever pays twice says it a little differently the second time.
"""

import re
from collections.abc import Iterable
from typing import Final

from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.confirmation import confirms
from contracts.intent import FROM, Caller, binding_of
from contracts.keys import digest
from contracts.proposal import ProposedStep
from contracts.shape import Place, Shape, shape_of

_PROSE: Final = ("a b", "A B", "Invoice 1.", "Invoice 1, as agreed on the phone with Mrs Miller; thank you!")
"""Identifiers have no spaces."""


def near_keys(caller: Caller, steps: Iterable[ProposedStep], business_reference: str | None) -> dict[str, str]:
    """Give the near-key of each writing step, by step id; the steps are in topological order.

    `business_reference` is the harness's: two orders with references of their own are never near-duplicates.
    """
    who: list[JsonValue] = [caller.tenant, caller.principal, business_reference]
    keys: dict[str, str] = {}
    writing: dict[str, str] = {}
    for step in steps:  # what a step is bound to has its key already
        if confirms(step.step_id) is not None:
            continue
        keys[step.step_id] = digest([*who, step.contract.name, _bound(_identity(step), keys)])
        if step.contract.writes:
            writing[step.step_id] = keys[step.step_id]
    return writing


def _identity(step: ProposedStep) -> JsonObject:
    """Take what a contract calls its identity, else all but the free text of a step that moves money or counts rows.

    For any other tool the text may be all that it is about.
    """
    contract = step.contract
    shape, names = shape_of(contract.input), contract.identity_fields
    stated: JsonObject = shape.without_defaults(step.arguments)
    if names is not None:
        return {name: value for name, value in stated.items() if name in names}
    if contract.amount is None and contract.rows_argument is None:
        return stated
    parties = {use.argument for use in contract.resources}
    return _without_text(shape, shape.root, stated, parties, "")


def _without_text(shape: Shape, place: Place, value: JsonObject, parties: set[str], at: str) -> JsonObject:
    """Leave free text out, but where it names an object; lists and unions stay as they are."""
    fields = dict(shape.fields(place))
    kept: JsonObject = {}
    for name, item in value.items():
        field, inner, path = fields.get(name), as_object(item), f"{at}{name}"
        if field is None or path in parties or not is_free_text(field):
            kept[name] = item
        if field is not None and field.kind == "object" and inner is not None and binding_of(item) is None:
            kept[name] = _without_text(shape, field, inner, parties, f"{path}.")
    return kept


def is_free_text(place: Place) -> bool:
    """True where people write: a string that is no closed set and no format, and whose pattern takes prose."""
    if place.kind != "string" or place.words is not None or "format" in place.schema:
        return False
    pattern = place.schema.get("pattern")
    return not isinstance(pattern, str) or any(re.search(pattern, prose) for prose in _PROSE)


def _bound(value: JsonValue, keys: dict[str, str]) -> JsonValue:
    binding = binding_of(value)
    if binding is not None:
        step_id, source = binding
        return {FROM: [keys[step_id], *source]}
    if (items := as_array(value)) is not None:
        return [_bound(item, keys) for item in items]
    if (given := as_object(value)) is not None:
        return {name: _bound(item, keys) for name, item in given.items()}
    return value
