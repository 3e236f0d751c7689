"""A contender's process: starter and worker on one event loop. Takes batches on stdin, answers on stdout, in JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import uvloop
from temporalio.service import RPCError

from bench.contenders import Backstay, Contender, contender
from bench.scenarios import PLAIN, Order
from contracts.errors import SagaError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFER_SECONDS = 0.05


async def _batch(who: Contender, orders: list[Order], concurrency: int) -> dict[str, Any]:
    """Work the orders off, never more than `concurrency` at a time; each client takes the next one that is left."""
    latencies: list[float] = []
    outcomes: dict[str, int] = {}
    left = iter(orders)

    async def client() -> None:
        for order in left:
            begun = time.perf_counter()
            outcome = await who.carry_out(order)
            latencies.append(time.perf_counter() - begun)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    return {"seconds": time.perf_counter() - begun, "latencies": latencies, "outcomes": outcomes}


async def _history(who: Contender, order: Order) -> dict[str, int]:
    """Ask how large the order's history is."""
    if who.client is None:
        return {"events": 0, "bytes": 0}
    seen = await who.client.get_workflow_handle(who.workflow_id(order)).describe()
    info = seen.raw_description.workflow_execution_info
    return {"events": info.history_length, "bytes": info.history_size_bytes}


async def _flood(who: Backstay, orders: list[Order], in_flight: int, seconds: float) -> dict[str, Any]:
    """Start as many as go in, until the time is over; what is deferred is not started."""
    started: list[str] = []
    deferred = 0
    end = time.perf_counter() + seconds
    left = iter(orders)

    async def client() -> None:
        nonlocal deferred
        for order in left:
            while time.perf_counter() < end:
                if await who.start(order):
                    started.append(order.order_id)
                    break
                deferred += 1
                await asyncio.sleep(DEFER_SECONDS)
            else:
                return

    begun = time.time()
    clients = [asyncio.create_task(client()) for _ in range(in_flight)]
    await asyncio.sleep(seconds)
    in_time = len(started)
    await asyncio.gather(*clients)
    return {"begun": begun, "started_in_time": in_time, "started": len(started), "deferred": deferred}


def _orders(raw: list[dict[str, Any]]) -> list[Order]:
    return [Order(**order) for order in raw]


def _lines(stream: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - sys.stdin
    for line in stream:
        yield json.loads(line)


async def _serve(channel: TextIO, name: str, database_url: str, temporal_address: str) -> None:
    async with contender(name, database_url, temporal_address) as who:
        print(json.dumps({"ready": True}), file=channel, flush=True)
        lines = _lines(sys.stdin)
        while (asked := await asyncio.to_thread(next, lines, None)) is not None:
            orders = _orders(asked["orders"])
            answer: dict[str, Any]
            try:
                if asked["do"] == "flood":
                    assert isinstance(who, Backstay)
                    answer = await _flood(who, orders, asked["in_flight"], asked["seconds"])
                else:
                    answer = await _batch(who, orders, asked["concurrency"])
                    if answer["outcomes"].keys() <= {"COMMITTED", "COMPENSATED"}:
                        answer |= await _history(who, orders[-1])
            except* (SagaError, RPCError, OSError, RuntimeError) as group:
                answer = {"error": repr(group.exceptions[0])}
            print(json.dumps(answer), file=channel, flush=True)


def main() -> None:
    """Run one contender until stdin ends. Arguments: name, database URL, Temporal address."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)  # a refused step is no news here; alike for all
    name, database_url, temporal_address = sys.argv[1:]
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed must not come between the answers
    serving = _serve(channel, name, database_url, temporal_address)
    if name == PLAIN:
        asyncio.run(serving)  # as the samples do
    else:
        uvloop.run(serving)
    os._exit(0)  # temporalio now and then aborts at interpreter exit, after all work is done


if __name__ == "__main__":
    main()
