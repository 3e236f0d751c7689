"""Real histories, read by an independent decoder and fed to the reducer, ask for what the histories show was done.

200 random sagas run on the real servers with faults, messages, cancels and terminations (`pytest -m slow`); the
everyday suite runs 40 of them. The seed is printed; BACKSTAY_SEED runs one again.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.replay.agreement import disagreement
from tests.replay.crowd import Crowd
from tests.replay.reader import Read, Reader
from tests.replay.replaying import one_less, one_more, other_order, stored
from tests.support.sagas import serve
from workflows import events as on
from workflows.reducer import Advance
from workflows.state import State

HISTORIES = Path(__file__).parent / "histories"
EVERYDAY = 40
ALL = 200


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_history_shows_the_commands_of_the_reducer(path: Path) -> None:
    read = Reader().through(stored(path.parent)[path.stem].events)

    assert disagreement(read) is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (one_more, "committed"),
        (other_order, "compensated_refused"),
        (other_order, "parked_then_retried"),
        (one_less, "committed_approved_by_signal"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_changed_reducer_disagrees_with_what_a_history_shows(
    changed: Callable[[State, on.Event], Advance], name: str
) -> None:
    read = Reader().through(stored(HISTORIES)[name].events)

    assert disagreement(read, changed) is not None


async def agree(client: Client, database_url: str, task_queue: str, count: int) -> Counter[str]:
    """Run so many sagas; return how many of each end agreed."""
    seed = int(os.environ.get("BACKSTAY_SEED") or random.SystemRandom().randrange(2**32))
    print(f"BACKSTAY_SEED={seed} count={count}")  # noqa: T201 - how to run it again
    async with serve(client, database_url, task_queue) as sagas:
        crowd = Crowd(sagas, seed)
        histories = await crowd.run(count)
    seen: Counter[str] = Counter()
    problems: list[str] = []
    for name, history in histories:
        read = Read()
        try:
            Reader(read).through(history.events)
            problem = disagreement(read)
        except AssertionError as error:
            problem = f"not readable: {error}"
        if problem:
            problems.append(f"{name} (seed {seed}): {problem}")
            if keep := os.environ.get("BACKSTAY_KEEP_HISTORIES"):
                (Path(keep) / f"{name}.json").write_text(history.to_json(), encoding="utf-8")
        end = read.shown[-1].end if read.ended else None
        seen[" ".join(map(str, end)) if end else "terminated"] += 1
        seen.update(read.features)
    print(dict(seen))  # noqa: T201 - what the seed gave
    assert not problems, "\n".join(problems)
    assert len(histories) >= count
    return seen


@pytest.mark.situation(15)
async def test_the_reducer_does_what_real_histories_show(
    temporal_client: Client, database_url: str, task_queue: str
) -> None:
    seen = await agree(temporal_client, database_url, task_queue, EVERYDAY)

    assert seen["COMMITTED none False False"]


@pytest.mark.slow
async def test_the_reducer_does_what_two_hundred_real_histories_show(
    temporal_client: Client, database_url: str, task_queue: str
) -> None:
    seen = await agree(temporal_client, database_url, task_queue, ALL)

    causes = {"none", "refused", "denied", "cancelled", "rejected", "interrupted"}
    assert causes <= {key.split()[1] for key in seen if key.endswith(("True", "False"))}
    assert {"fallback to an ordinary activity", "parked COMPENSATION_REFUSED", "parked INTERRUPTED"} <= set(seen)
    assert {"decide by update", "decide by signal", "cancel by signal", "cancel by temporal"} <= set(seen)
