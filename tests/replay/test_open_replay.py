"""Stored histories of open intents replay with an emptied registry, and a changed saga is found out."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.replay.record_open import SCENES

ROOT = Path(__file__).parents[2]
HISTORIES = Path(__file__).parent / "open_histories"
NAMES = sorted(getattr(scene, "__name__", "") for scene in SCENES)


@cache
def replayed(change: str = "none") -> dict[str, Any]:
    """Replay all stored histories in a fresh interpreter that cannot import a pack."""
    command = [sys.executable, "-m", "tests.replay.replaying", str(HISTORIES), change]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.situation(15)
def test_every_stored_history_of_an_open_intent_replays_with_an_emptied_registry() -> None:
    answer = replayed()

    assert answer["imported"] == []
    assert sorted(answer["failures"]) == NAMES
    assert {name: failure for name, failure in answer["failures"].items() if failure} == {}


@pytest.mark.parametrize("change", ["extra", "order"])
def test_a_changed_saga_of_an_open_intent_does_not_replay(change: str) -> None:
    failures = replayed(change)["failures"]

    assert "NondeterminismError" in " ".join(failure for failure in failures.values() if failure)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_history_of_an_open_intent_names_no_machine_or_process(name: str) -> None:
    raw = (HISTORIES / f"{name}.json").read_text(encoding="utf-8")

    assert set(re.findall(r'"identity": "([^"]*)"', raw)) <= {"worker"}
    assert "stackTrace" not in raw
