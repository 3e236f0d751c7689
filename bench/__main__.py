"""`python -m bench`: measure, interleaved and shuffled in each round, and say how Backstay stands."""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from bench.arena import Arena, BenchError, Corner, arena, as_json
from bench.checks import check_batch, check_invariants, check_tables
from bench.figures import Figures, Sample
from bench.report import EVENTS_BAR, Flood, bars, chains, events, last_line, table
from bench.scenarios import ACCOUNTS, BACKSTAY, CONTENDERS, FULL, QUICK, WARM_UP, Order, Scenario, chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOOD = "flood"
FLOOD_OFFERED = 10_000
FLOOD_IN_FLIGHT = 256
DRAIN_SECONDS_MAX = 240.0
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What this run measures."""

    scenarios: tuple[Scenario, ...]
    rounds: int
    flood_seconds: float


def _batch(ring: Arena, corner: Corner, scenario: Scenario, round_number: int) -> Sample:
    """Measure one batch and check what it left."""
    orders = scenario.orders(corner.name, round_number)
    before = ring.cpu(corner)
    answer: dict[str, Any] = corner.ask(do="batch", orders=as_json(orders), concurrency=scenario.concurrency)
    used = ring.cpu(corner).since(before)
    check_batch(corner, orders, answer["outcomes"])
    return Sample(
        count=len(orders),
        seconds=answer["seconds"],
        latencies=tuple(answer["latencies"]),
        cpu=used,
        events=answer["events"],
        bytes=answer["bytes"],
    )


def _measure(ring: Arena, plan: Plan) -> Figures:
    figures = Figures()
    for scenario in WARM_UP:
        for corner in ring.corners.values():
            _batch(ring, corner, scenario, 0)
    for round_number in range(1, plan.rounds + 1):
        begun = time.monotonic()
        psutil.cpu_percent()
        bouts = [(scenario, name) for scenario in plan.scenarios for name in scenario.contenders]
        random.shuffle(bouts)
        bouts.sort(key=lambda bout: _place(plan, bout[0], round_number))  # contenders shuffled inside each scenario
        for scenario, name in bouts:
            figures.add(scenario.name, name, _batch(ring, ring.corners[name], scenario, round_number))
        done = {check_invariants(corner) for corner in ring.corners.values()}
        print(
            f"round {round_number}/{plan.rounds}: {time.monotonic() - begun:.0f} s,"
            f" machine {psutil.cpu_percent():.0f} % busy; checked: per intent 1 claim, n effects, n + 2 audit rows;"
            f" {', '.join(sorted(done))}",
            flush=True,
        )
    return figures


def _place(plan: Plan, scenario: Scenario, round_number: int) -> float:
    """Shuffle the scenarios too, the same way for all contenders of a round: ratios are of neighbours in time."""
    return random.Random(f"{round_number}/{plan.scenarios.index(scenario)}").random()  # noqa: S311 - no secret


def _flood(ring: Arena, seconds: float) -> Flood:
    """Flood Backstay; count what is final by the database's clock; then let it drain and check every intent."""
    corner = ring.corners[BACKSTAY]
    draw = random.Random(FLOOD)  # noqa: S311 - no secret
    orders = [Order(f"{FLOOD}.{number}", draw.randint(1, ACCOUNTS)) for number in range(FLOOD_OFFERED)]
    answer = corner.ask(do=FLOOD, orders=as_json(orders), in_flight=FLOOD_IN_FLIGHT, seconds=seconds)
    memory = ring.memory_mb(corner)
    begun = time.monotonic()
    with psycopg.connect(corner.database_url, autocommit=True) as connection:
        while True:
            row = connection.execute(
                "select count(*) filter (where final_at <= to_timestamp(%s)), count(final_at), count(*)"
                " from backstay.intents where session_id like %s",
                (answer["begun"] + seconds, f"{FLOOD}.%"),
            ).fetchone()
            assert row is not None
            if row[1] == answer["started"]:
                break
            if time.monotonic() - begun > DRAIN_SECONDS_MAX:
                raise BenchError(f"The flood did not drain: {row[1]} of {answer['started']} are final.")
            time.sleep(0.2)
        names = connection.execute(
            "select session_id from backstay.intents where session_id like %s", (f"{FLOOD}.%",)
        ).fetchall()
    landed = {name for (name,) in names}
    check_tables(corner, [order for order in orders if order.order_id in landed])
    check_invariants(corner)
    return Flood(
        seconds=seconds,
        offered=FLOOD_OFFERED,
        started=answer["started_in_time"],
        deferred=answer["deferred"],
        completed=row[0],
        drained_seconds=time.monotonic() - begun,
        server_mb=memory[0],
        worker_mb=memory[1],
    )


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 rounds of fewer scenarios: a look, not a measurement")
    parser.add_argument("--rounds", type=int, help=f"rounds; {ROUNDS} are the least that count (2 when quick)")
    parser.add_argument("--only", action="append", default=[], help="scenarios whose name begins so; may be repeated")
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="only these contenders")
    parser.add_argument("--no-flood", action="store_true", help="leave the flood out")
    parser.add_argument("--strict", action="store_true", help="exit 3 when a bar is missed")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """Run the benchmark. Exit codes: 0 measured, 1 a check failed (no figures), 3 a bar missed (with --strict)."""
    asked = _arguments(given)
    names = tuple(asked.contender or CONTENDERS)
    scenarios = chosen(QUICK if asked.quick else FULL, asked.only)
    scenarios = tuple(
        replace(scenario, contenders=tuple(name for name in scenario.contenders if name in names))
        for scenario in scenarios
    )
    plan = Plan(scenarios, asked.rounds or (2 if asked.quick else ROUNDS), 15.0 if asked.quick else 40.0)
    with_flood = not asked.no_flood and BACKSTAY in names and (not asked.only or FLOOD in asked.only)
    begun = time.monotonic()
    try:
        with arena(names) as ring:
            figures = _measure(ring, plan)
            flood = _flood(ring, plan.flood_seconds) if with_flood else None
    except BenchError as error:
        print(f"bench: {error} No figures.", file=sys.stderr)
        return 1
    for scenario in plan.scenarios:
        print(f"\n{table(figures, scenario)}")
    if any(scenario.name.startswith("chain-") for scenario in plan.scenarios):
        print(f"\n{chains(figures, plan.scenarios)}")
    if flood is not None:
        print(
            f"\nflood: {flood.offered} offered, {FLOOD_IN_FLIGHT} starts in flight; in {flood.seconds:.0f} s"
            f" {flood.started} started, {flood.completed} completed ({flood.rate:.1f}/s), {flood.deferred} times"
            f" deferred; drained after {flood.drained_seconds:.1f} s more, all checked;"
            f" server {flood.server_mb:.0f} MB, worker {flood.worker_mb:.0f} MB"
        )
    found, counted = bars(figures, flood), events(figures)
    print(f"\n{plan.rounds} rounds in {time.monotonic() - begun:.0f} s; medians; ratios within a round, median [range]")
    for bar in found:
        print(bar.line())
    if counted is None or any(bar.value is None for bar in found):
        print("Not everything was measured: no BENCH line.")
        return 0
    enough = counted[0] <= EVENTS_BAR[0]
    print(
        f"  {'met   ' if enough else 'MISSED'} events={counted[0]}/{counted[1]}, bar <= {EVENTS_BAR[0]}/{EVENTS_BAR[1]}"
    )
    print(last_line(found, counted))
    return 3 if asked.strict and not (enough and all(bar.is_met for bar in found)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
