"""Late arguments: what risk is read from and is bound, so that its step is graded when the binding resolves.

Amount, currency, count, payee and what is drawn on decide whether a person is asked (ADR 0012). An object that a step
of the plan makes (a hold, a capture) is covered by whoever approves its making.
"""

from collections.abc import Mapping
from typing import Final

from contracts.base import JsonObject
from contracts.binding import bindings_of
from contracts.functions import is_bound
from contracts.objects import argument_of
from contracts.tool import Access, AnyContract

DRAWING: Final = frozenset({Access.TAKE, Access.HOLD, Access.LOCK})
"""What lessens an object: only its principal's agent may, and on the tenant's own only with a person's yes."""


def makes(contract: AnyContract, kind: str | None) -> bool:
    """True when a tool's output of this kind is an object of its own making.

    One that reads makes nothing, and an id of a kind that it was given may be the very id that it was given.
    """
    return contract.writes and kind not in {use.kind for use in contract.resources}


def late_arguments(
    contract: AnyContract, arguments: JsonObject, contracts: Mapping[str, AnyContract]
) -> tuple[str, ...]:
    """Name the arguments that are graded late, sorted; `contracts` are those of all steps, by step id."""
    if not contract.writes:
        return ()
    seen = {contract.rows_argument} if contract.rows_argument else set[str]()
    if contract.amount is not None:
        seen |= {contract.amount.argument, contract.amount.currency}
    seen |= {use.argument for use in contract.resources if use.access is Access.PAY_INTO}
    late = {name for name in seen if is_bound(argument_of(arguments, name))}
    for use in contract.resources:
        value = argument_of(arguments, use.argument) if use.access in DRAWING else None
        if value is not None and is_bound(value):
            sources = [contracts.get(binding.step_id) for binding in bindings_of({"": value})[0]]
            if not sources or any(source is None or not makes(source, use.kind) for source in sources):
                late.add(use.argument)
    return tuple(sorted(late))


def late_sources(arguments: JsonObject, late: tuple[str, ...]) -> frozenset[str]:
    """Ids of the steps whose outputs have to be known before the late arguments are."""
    tops = {name.partition(".")[0] for name in late}
    found, _ = bindings_of({name: value for name, value in arguments.items() if name in tops})
    return frozenset(binding.step_id for binding in found)
