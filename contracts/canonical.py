"""The canonical form of an intent: two posts that mean the same have the same bytes (DESIGN.md section 5).

Names that the model chose (step ids) and the order in which it happened to list independent steps mean nothing; what
the steps are, their arguments and what feeds what mean everything. So steps are named by their position in an order
that follows from their contents alone. Arguments keep every byte and every array its order; a field that says what its
default says is left out, so that a tool that learns one more optional field keeps every key (ADR 0008).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.graph import Node, direct_needs, ordered
from contracts.intent import FALLBACK, FROM, binding_of
from contracts.keys import canonical_json
from contracts.shape import shape_of

Ranks = dict[str, int]
_Neighbour = tuple[int, tuple[str, ...], tuple[str, ...]]
"""Rank of a neighbour, and how it is joined."""


@dataclass(frozen=True)
class Canonical:
    """The form of the key (identity fields only), of the digest (all arguments), and each step's position in both."""

    identity: list[JsonObject]
    full: list[JsonObject]
    positions: Mapping[str, int]


def canonical_form(nodes: Sequence[Node]) -> Canonical:
    """Work out the canonical form of steps without cycles, given in any order.

    Independent steps that equal each other in everything are interchangeable, so their order is free. Equal steps in
    graphs so symmetric that colour refinement cannot tell inequivalent places apart (two triangles and a hexagon of
    equal calls) still get a correct form, but then it may depend on the order posted: such a post is a new intent.
    """
    stated = {node.step_id: _stated(node) for node in nodes}
    identity = {node.step_id: _identity(node, stated[node.step_id]) for node in nodes}
    line = _line(nodes, identity, stated)
    positions = {node.step_id: number for number, node in enumerate(line)}
    needs = direct_needs(line)

    def form(arguments: Mapping[str, JsonObject]) -> list[JsonObject]:
        return [
            {
                "tool": node.contract.name,
                "arguments": _positioned(arguments[node.step_id], positions),
                "needs": sorted(positions[need] for need in needs[node.step_id]),
            }
            for node in line
        ]

    return Canonical(form(identity), form(stated), positions)


_OTHERWISE = f"${FALLBACK}"
"""Where a fallback stands among the arguments of its step: no argument has such a name."""


def _stated(node: Node) -> JsonObject:
    stated: JsonObject = shape_of(node.contract.input).without_defaults(node.arguments)
    if node.fallback is None:
        return stated
    return stated | {_OTHERWISE: {"tool": node.fallback.contract.name, "arguments": _stated(node.fallback)}}


def _identity(node: Node, arguments: JsonObject) -> JsonObject:
    names = node.contract.identity_fields
    said = {key: value for key, value in arguments.items() if names is None or key in names}
    if node.fallback is None:
        return said
    otherwise: JsonObject = arguments[_OTHERWISE]
    return said | {_OTHERWISE: otherwise | {"arguments": _identity(node.fallback, otherwise["arguments"])}}


def _positioned(arguments: JsonObject, positions: Mapping[str, int]) -> JsonObject:
    """Name bound steps by position; a literal can never look like this, since a literal has no `$from`."""
    return {key: _renamed(value, positions) for key, value in arguments.items()}


def _renamed(value: JsonValue, positions: Mapping[str, int] | None) -> JsonValue:
    binding = binding_of(value)
    if binding is not None:
        step_id, source = binding
        return {FROM: [None if positions is None else positions[step_id], *source]}
    if (items := as_array(value)) is not None:
        return [_renamed(item, positions) for item in items]
    if (given := as_object(value)) is not None:
        return {key: _renamed(item, positions) for key, item in given.items()}
    return value


def _line(nodes: Sequence[Node], identity: Mapping[str, JsonObject], stated: Mapping[str, JsonObject]) -> list[Node]:
    line = ordered(nodes)
    if all(before.step_id in node.needs for before, node in pairwise(line)):
        return line  # a chain has one order only
    by_identity, by_all = _Colours(nodes, identity), _Colours(nodes, stated)
    while (twins := by_identity.first_twins()) is not None:
        chosen = min(twins, key=by_all.ranks.__getitem__)
        by_identity.single_out(chosen)
        by_all.single_out(chosen)
    return ordered(nodes, by_identity.ranks)


class _Colours:
    """Ranks that follow from contents alone, refined until neighbours tell nothing more.

    Steps of one rank are interchangeable (see `canonical_form` for the exception); singling one out and refining
    again orders the rest. The form of the key depends on the identity fields only, whoever is singled out; that the
    choice goes by all arguments makes the form of the digest canonical as well.
    """

    def __init__(self, nodes: Sequence[Node], arguments: Mapping[str, JsonObject]) -> None:
        self._links = list(_links(nodes, arguments))
        self.ranks = self._refined(_contents(nodes, arguments))

    def first_twins(self) -> list[str] | None:
        """Find the steps of the lowest rank that several share, as posted."""
        classes: dict[int, list[str]] = {}
        for step_id, rank in self.ranks.items():
            classes.setdefault(rank, []).append(step_id)
        shared = [rank for rank, members in classes.items() if len(members) > 1]
        return classes[min(shared)] if shared else None

    def single_out(self, chosen: str) -> None:
        """Let one step come before all others of its rank."""
        self.ranks = self._refined({step_id: 2 * rank + (step_id != chosen) for step_id, rank in self.ranks.items()})

    def _refined(self, ranks: Ranks) -> Ranks:
        """Tell steps apart by their neighbours' ranks, in both directions, until nothing changes."""
        while True:
            after: dict[str, list[_Neighbour]] = {step_id: [] for step_id in ranks}
            before: dict[str, list[_Neighbour]] = {step_id: [] for step_id in ranks}
            for source, user, target, path in self._links:
                after[source].append((ranks[user], target, path))
                before[user].append((ranks[source], target, path))
            finer = _ranked(
                {
                    step_id: (rank, tuple(sorted(before[step_id])), tuple(sorted(after[step_id])))
                    for step_id, rank in ranks.items()
                }
            )
            if len(set(finer.values())) == len(set(ranks.values())):
                return finer
            ranks = finer


def _contents(nodes: Sequence[Node], arguments: Mapping[str, JsonObject]) -> Ranks:
    """Rank steps by what they are, whoever feeds them."""
    return _ranked(
        {node.step_id: canonical_json([node.contract.name, _renamed(arguments[node.step_id], None)]) for node in nodes}
    )


def _links(
    nodes: Sequence[Node], arguments: Mapping[str, JsonObject]
) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """List which step feeds which, and how: target and source path of a binding, nothing for a mere need.

    Of the bindings only those inside `arguments` count; every need counts.
    """
    direct = direct_needs(ordered(nodes))
    for node in nodes:
        for need in direct[node.step_id]:
            yield need, node.step_id, (), ()
        yield from _fed(node, node, arguments[node.step_id], ())
        if node.fallback is not None:
            otherwise = arguments[node.step_id][_OTHERWISE]["arguments"]
            yield from _fed(node, node.fallback, otherwise, (_OTHERWISE,))


def _fed(
    node: Node, call: Node, arguments: JsonObject, at: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    for binding in call.bindings:
        if binding.target[0] in arguments:
            operand = () if binding.operand is None else (binding.operand,)
            yield binding.step_id, node.step_id, (*at, *map(str, (*binding.target, *operand))), binding.source


def _ranked(values: Mapping[str, JsonValue]) -> Ranks:
    """Number the distinct values in their own order."""
    number = {value: index for index, value in enumerate(sorted(set(values.values())))}
    return {step_id: number[value] for step_id, value in values.items()}
