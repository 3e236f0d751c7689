"""Reading the objects that steps name, by the queries of the packs that know them."""

from collections.abc import Iterable

from activities.database import Transaction
from activities.tool import Pack
from contracts.objects import literals
from contracts.planning import ObjectState
from contracts.proposal import ProposedStep


async def read_objects(
    transaction: Transaction, packs: Iterable[Pack], steps: Iterable[ProposedStep]
) -> dict[str, ObjectState]:
    """Read every object that a literal names: `kind:id` to its state."""
    wanted: dict[str, set[str]] = {}
    for step in steps:
        for kind, object_id in literals(step, step.contract):
            wanted.setdefault(kind, set()).add(object_id)
    found: dict[str, ObjectState] = {}
    for pack in packs:
        for kind, query in pack.resources.items():
            if kind in wanted:
                rows = await transaction.all(query, (sorted(wanted[kind]),))
                found.update({f"{kind}:{row['object_id']}": ObjectState(**row) for row in rows})
    return found
