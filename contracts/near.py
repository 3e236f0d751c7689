"""Near-duplicates: the same call under another key, because the model asked again in other words (DESIGN.md section 5).

A near-key is what is left of a step's identity without conversation, plan and step names: tenant, principal, business
reference, tool, identity arguments. A bound argument counts as the near-key of the step that it comes from.
"""

from collections.abc import Iterable

from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.confirmation import confirms
from contracts.intent import FROM, Caller, binding_of
from contracts.keys import digest
from contracts.proposal import ProposedStep
from contracts.shape import shape_of


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
    stated: JsonObject = shape_of(step.contract.input).without_defaults(step.arguments)
    names = step.contract.identity_fields
    return stated if names is None else {name: value for name, value in stated.items() if name in names}


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
