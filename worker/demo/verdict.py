"""The end: the invariants are checked by plain SQL, the intents are counted, and one line says it all."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import activities
from worker.demo.claims import DemoFailedError, hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.demo.screen import Screen
    from worker.demo.tables import Tables
    from worker.demo.world import World

INVARIANTS: Final = Path(activities.__file__).parent / "invariants.sql"
MONEY_CONSERVED: Final = "1a money_conserved"
VIOLATIONS_SHOWN_MAX: Final = 3
TITLES: Final = {
    1: "money is conserved, balances equal their movements",
    2: "no captured debit without its hold, no hold left open",
    3: "each intent landed whole, or left nothing, or is parked",
    4: "a compensated step never lands afterwards",
    5: "no gated step ran without a valid, unspent decision",
    6: "each effect and refusal has its audit row, unaltered",
    7: "released histories replay",
}
_NAME: Final = re.compile(r"^-- name: ((\d)\S* \S+)$")
_NOT_YET: Final = re.compile(r"^-- not yet: (\d) (.+)$")


@dataclass(slots=True)
class Invariant:
    """One of the seven: the queries that would find it broken, and what cannot be checked yet."""

    number: int
    queries: dict[str, str] = field(default_factory=dict[str, str])
    not_yet: list[str] = field(default_factory=list[str])


def close_books(world: World) -> str:
    """Check the invariants, count the intents, and return the last line. Raises DemoFailedError."""
    invariants = read_invariants(INVARIANTS.read_text(encoding="utf-8"))
    queries = sum(len(invariant.queries) for invariant in invariants)
    world.screen.scene(
        0,
        "The books",
        f"The design's seven invariants, as {queries} plain SQL queries that look for whatever breaks them; psql "
        f"alone gives the same answers ({INVARIANTS.parent.name}/{INVARIANTS.name}).",
    )
    broken = check_invariants(invariants, world.tables, world.screen)
    hold("broken invariants", [], broken)
    tally = world.tables.tally()
    hold("every intent is final", tally.intents, tally.committed + tally.compensated + tally.not_applied)
    duplicates = len(world.accepted) - tally.intents
    marked = sum(envelope.meta.duplicate for envelope in world.accepted)
    hold("answers marked as duplicates, of the accepted posts beyond the intents in the table", duplicates, marked)
    money_conserved = MONEY_CONSERVED not in broken
    return (
        f"DEMO OK intents={tally.intents} committed={tally.committed} compensated={tally.compensated}"
        f" not_applied={tally.not_applied} parked_resolved={tally.parked_resolved} duplicates={duplicates}"
        f" money_conserved={str(money_conserved).lower()}"
    )


def check_invariants(invariants: Sequence[Invariant], tables: Tables, screen: Screen) -> list[str]:
    """Ask every query, print what each invariant came to, and list the queries that found it broken."""
    broken: list[str] = []
    for invariant in invariants:
        found: list[str] = []
        for name, query in invariant.queries.items():
            rows = tables.ask(query)
            if rows:
                shown = "; ".join(f"{row['subject']} {row['detail']}" for row in rows[:VIOLATIONS_SHOWN_MAX])
                more = f"; {len(rows) - VIOLATIONS_SHOWN_MAX} more" if len(rows) > VIOLATIONS_SHOWN_MAX else ""
                found.append(name)
                screen.verdict("VIOLATED", f"{name}: {shown}{more}")
        if invariant.queries and not found:
            screen.verdict("ok", f"{invariant.number}  {TITLES[invariant.number]}")
        broken += found
        for what in invariant.not_yet:
            screen.verdict("not yet", f"{invariant.number}  {what}")
    return broken


def read_invariants(text: str) -> list[Invariant]:
    """Read the file: `-- name:` before each statement, `-- not yet:` for what is missing. Raises DemoFailedError.

    Nothing is taken for checked: all seven invariants have to be there, with a query or a reason.
    """
    found = {number: Invariant(number) for number in TITLES}
    name, number, lines = "", 0, list[str]()
    for line in text.splitlines():
        if match := _NOT_YET.match(line):
            found[int(match[1])].not_yet.append(match[2])
        elif match := _NAME.match(line):
            name, number, lines = match[1], int(match[2]), []
        elif name and not line.startswith("--"):
            lines.append(line)
            if line.rstrip().endswith(";"):
                found[number].queries[name] = "\n".join(lines).rstrip().rstrip(";")
                name = ""
    if empty := [number for number, invariant in found.items() if not (invariant.queries or invariant.not_yet)]:
        raise DemoFailedError(f"{INVARIANTS.name} says nothing about invariants {empty}")
    return list(found.values())
