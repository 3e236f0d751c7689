"""The objects of a plan: those that literals name, and those that its own steps make, as far as contracts declare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from contracts.base import JsonObject, JsonValue, as_object
from contracts.functions import is_bound
from contracts.intent import binding_of
from contracts.prefixes import Ordered
from contracts.soundness import Touch
from contracts.tool import Access, AnyContract, ObjectMade, SideEffect


class Call(Ordered, Protocol):
    """A step as far as its proof is concerned: proposed or planned."""

    @property
    def tool(self) -> str:
        """Wire name of its contract."""
        ...

    @property
    def arguments(self) -> JsonObject:
        """Literals and bindings."""
        ...

    @property
    def side_effect(self) -> SideEffect:
        """What it leaves in the world."""
        ...

    @property
    def may_refuse(self) -> bool:
        """True when it can say no for business reasons."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """`kind:id` of the objects that its literals name."""
        ...

    @property
    def late(self) -> tuple[str, ...]:
        """Arguments that it is graded by once they are known."""
        ...

    def in_place(self) -> Self:
        """Give the same call under the id of the step that it stands for."""
        ...


@dataclass(frozen=True)
class Made:
    """An object that a step of the plan makes."""

    name: str
    maker: str
    declared: ObjectMade


@dataclass(frozen=True)
class Objects:
    """Every object by a name of its own: `account:A00000017` for a literal, `freeze.hold_id` for one that is made."""

    made: Mapping[str, Made]
    touches: Mapping[str, tuple[Touch, ...]]
    """By step: what it does to which object."""
    made_by: Mapping[str, tuple[tuple[str, str], ...]]
    """By step: the objects that it makes, each with its first state."""

    @classmethod
    def of(cls, steps: Sequence[Call], contracts: Mapping[str, AnyContract]) -> "Objects":
        """Find all objects; a step without a contract has none."""
        made: dict[str, Made] = {}
        touches: dict[str, tuple[Touch, ...]] = {}
        made_by: dict[str, tuple[tuple[str, str], ...]] = {}
        for step in steps:
            contract = contracts.get(step.tool)
            if contract is None:
                touches[step.step_id], made_by[step.step_id] = (), ()
                continue
            mine = [Made(f"{step.step_id}.{one.output}", step.step_id, one) for one in contract.makes]
            made.update({one.name: one for one in mine})
            made_by[step.step_id] = tuple((one.name, one.declared.state) for one in mine)
            named = ((name_of(step, use.argument, use.kind), use) for use in contract.resources)
            touches[step.step_id] = tuple(
                Touch(name, use.states, use.state_after, use.access is Access.READ)
                for name, use in named
                if name is not None
            )
        return cls(made, touches, made_by)


def name_of(step: Call, name: str, kind: str | None) -> str | None:
    """Name the object that an argument names; None when the argument is not there."""
    value = argument(step, name)
    bound = binding_of(value)
    if bound is not None:
        return ".".join((bound[0], *bound[1]))
    return f"{kind}:{value}" if isinstance(value, str) else None


def literals(step: Call, contract: AnyContract) -> list[tuple[str, str]]:
    """Objects that the arguments name outright: (kind, id)."""
    named = [(use.kind, argument(step, use.argument)) for use in contract.resources]
    return [(kind, value) for kind, value in named if isinstance(value, str)]


def argument(step: Call, name: str | None) -> JsonValue:
    """Read an argument by its name, dotted for one inside another; None when it is not there.

    What stands inside a binding is that binding.
    """
    return argument_of(step.arguments, name)


def argument_of(arguments: JsonObject, name: str | None) -> JsonValue:
    """Do `argument` for arguments that are no step's yet."""
    if name is None:
        return None
    value: JsonValue = arguments
    for part in name.split("."):
        if is_bound(value):
            break
        inside: JsonObject = as_object(value) or {}
        value = inside.get(part)
    return value
