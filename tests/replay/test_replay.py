"""Stored histories of every end state replay with an emptied registry, and a changed saga is found out."""

import base64
import binascii
import json
import re
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.replay.reader import Read, Reader
from tests.replay.replaying import stored

ROOT = Path(__file__).parents[2]
HISTORIES = Path(__file__).parent / "histories"
ENDS = {
    ("COMMITTED", "none", False, False),
    ("COMMITTED", "none", True, False),
    ("NOT_APPLIED", "rejected", False, False),
    ("NOT_APPLIED", "rejected", False, True),
    ("NOT_APPLIED", "denied", False, False),
    ("NOT_APPLIED", "expired", False, False),
    ("NOT_APPLIED", "cancelled", False, False),
    ("NOT_APPLIED", "refused", False, False),
    ("NOT_APPLIED", "deadline", False, False),
    ("COMPENSATED", "refused", False, False),
    ("COMPENSATED", "cancelled", False, False),
    ("COMPENSATED", "denied", False, False),
    ("COMPENSATED", "interrupted", False, False),
}
"""Outcome, cause, whether a duplicate, whether the run failed."""
WAYS = {
    "a step rested",
    "parked COMPENSATION_REFUSED",
    "parked INTERRUPTED",
    "parked STUCK_AFTER_PIVOT",
    "resolved done",
    "resolved skip",
    "resolved retry",
    "resolved close",
    "resolved forward",
    "decide by update",
    "decide by signal",
    "resolve by update",
    "resolve by signal",
    "cancel by update",
    "cancel by signal",
    "cancel by temporal",
    "fallback to an ordinary activity",
}


@cache
def replayed(change: str = "none") -> dict[str, Any]:
    """Replay all stored histories in a fresh interpreter that cannot import a pack."""
    command = [sys.executable, "-m", "tests.replay.replaying", str(HISTORIES), change]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@cache
def reads() -> dict[str, Read]:
    """What each stored history says."""
    return {name: Reader().through(history.events) for name, history in stored(HISTORIES).items()}


def decoded(value: Any) -> str:  # noqa: ANN401 - JSON
    """All text of a history, payloads decoded."""
    if isinstance(value, dict):
        return "\n".join(decoded(one) for one in value.values())  # pyright: ignore[reportUnknownVariableType] - JSON
    if isinstance(value, list):
        return "\n".join(decoded(one) for one in value)  # pyright: ignore[reportUnknownVariableType] - JSON
    text = str(value)
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return text


@pytest.mark.situation(15)
def test_every_stored_history_replays_with_an_emptied_registry() -> None:
    answer = replayed()

    assert answer["imported"] == []
    assert set(answer["failures"]) == {path.stem for path in HISTORIES.glob("*.json")}
    assert {name: failure for name, failure in answer["failures"].items() if failure} == {}


@pytest.mark.situation(15)
@pytest.mark.parametrize("change", ["extra", "order", "less"])
def test_a_changed_saga_does_not_replay(change: str) -> None:
    failures = replayed(change)["failures"]

    assert "NondeterminismError" in " ".join(failure for failure in failures.values() if failure)


def test_compensating_in_another_order_does_not_replay() -> None:
    failure = replayed("order")["failures"]["compensated_refused"]

    assert "'debit_frozen_funds@1.compensate' does not match" in failure


def test_starting_independent_steps_in_another_order_does_not_replay() -> None:
    failures = replayed("started")["failures"]

    assert {name for name, failure in failures.items() if failure} == {"committed_two_at_once"}


def test_an_extra_command_does_not_replay_whatever_the_end() -> None:
    failures = replayed("extra")["failures"]

    settled = {name for name, read in reads().items() if any(shown.kind == "settle" for shown in read.shown)}
    assert {name for name, failure in failures.items() if failure} == settled


def test_every_end_state_is_stored() -> None:
    assert {read.shown[-1].end for read in reads().values()} == ENDS


def test_every_way_to_an_end_is_stored() -> None:
    assert set().union(*(read.features for read in reads().values())) == WAYS


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_history_names_no_machine_process_or_path(path: Path) -> None:
    raw = path.read_text(encoding="utf-8")
    text = decoded(json.loads(raw))

    assert set(re.findall(r'"identity": "([^"]*)"', raw)) <= {"worker"}
    assert "stackTrace" not in raw
    assert not re.search(r"\d+@[\w.-]+-[0-9a-f]{32}|site-packages|\.py\b|(?<![\w@])/(?:home|root|tmp|usr|work)/", text)
    assert not re.search(rf"@{re.escape(socket.gethostname())}\b", text)
    assert str(ROOT) not in text
