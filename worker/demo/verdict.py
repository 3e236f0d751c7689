"""The end: the invariants are checked by plain SQL, the intents are counted, and one line says it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from worker.check import INVARIANTS, check
from worker.demo.claims import DemoFailedError, hold

if TYPE_CHECKING:
    from worker.check import Report
    from worker.demo.screen import Screen
    from worker.demo.world import World

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


async def close_books(world: World) -> str:
    """Check the invariants, count the intents, and return the last line. Raises DemoFailedError."""
    report = await check(world.stack.database_url)
    world.screen.scene(
        0,
        "The books",
        f"The design's seven invariants, as {len(report.checks)} plain SQL queries that look for whatever breaks "
        f"them; psql alone gives the same answers ({INVARIANTS.parent.name}/{INVARIANTS.name}).",
    )
    broken = show(report, world.screen)
    hold("broken invariants", [], broken)
    tally = world.tables.tally()
    hold("every intent is final", tally.intents, tally.committed + tally.compensated + tally.not_applied)
    duplicates = len(world.accepted) - tally.intents
    marked = sum(envelope.meta.duplicate for envelope in world.accepted)
    hold("answers marked as duplicates, of the accepted posts beyond the intents in the table", duplicates, marked)
    money_conserved = MONEY_CONSERVED in {found.name for found in report.checks if found.ok}
    hold("money is conserved", expected=True, found=money_conserved)
    return (
        f"DEMO OK intents={tally.intents} committed={tally.committed} compensated={tally.compensated}"
        f" not_applied={tally.not_applied} parked_resolved={tally.parked_resolved} duplicates={duplicates}"
        f" money_conserved={str(money_conserved).lower()}"
    )


def show(report: Report, screen: Screen) -> list[str]:
    """Print what became of each of the seven invariants, and list the queries that found one broken.

    Nothing is taken for checked: every one needs a query or a reason. Raises DemoFailedError.
    """
    broken: list[str] = []
    for number, title in TITLES.items():
        queries = [found for found in report.checks if found.name.startswith(str(number))]
        not_yet = [reason for reason in report.not_yet if reason.startswith(str(number))]
        if not queries and not not_yet:
            raise DemoFailedError(f"{INVARIANTS.name} says nothing about invariant {number}")
        if queries and all(found.ok for found in queries):
            screen.verdict("ok", f"{number}  {title}")
        for reason in not_yet:
            screen.verdict("not yet", f"{number}  {reason[1:].strip()}")
    for found in report.checks:
        if not found.ok:
            rows = [" ".join(map(str, row.values())) for row in found.violations[:VIOLATIONS_SHOWN_MAX]]
            more = found.violation_count - len(rows)
            screen.verdict("VIOLATED", f"{found.name}: {'; '.join(rows)}{f'; {more} more' if more else ''}")
            broken.append(found.name)
    return broken
