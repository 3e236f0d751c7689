"""Faults on purpose: what the variable may say, and where it is refused."""

import os
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from worker import faults
from worker.faults import Fault, FaultInterceptor, is_local, parse
from worker.settings import SettingsError


def test_the_variable_lists_faults() -> None:
    assert parse("pause-after:debit_frozen_funds@1, kill-before:close_intent,delay:300ms,delay-after:x_y@2=5ms") == (
        Fault("pause", "after", "debit_frozen_funds@1"),
        Fault("kill", "before", "close_intent"),
        Fault("delay", "before", "*", 0.3),
        Fault("delay", "after", "x_y@2", 0.005),
    )
    assert parse("stop-after:debit_frozen_funds@1.compensate")[0].name == "debit_frozen_funds@1.compensate"


@pytest.mark.parametrize(
    "text",
    [
        "kill",
        "kill:x",
        "kill-during:x",
        "delay-before:x",
        "pause-after:x=5ms",
        "delay:5s",
        "delay:99999ms",
        "kill-after:../x",
    ],
)
def test_a_wrong_fault_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="BACKSTAY_FAULTS"):
        parse(text)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("postgresql://me@/db?host=/var/run/postgresql", True),
        ("postgresql:///db", True),
        ("postgresql://127.0.0.1:5432/db", True),
        ("postgresql://localhost,[::1]/db", True),
        ("postgresql://db.example.org/db", False),
        ("postgresql://localhost,db.example.org/db", False),
        ("postgresql://localhost/db?hostaddr=10.0.0.7", False),
    ],
)
def test_faults_happen_on_this_machine_only(url: str, *, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)

    assert is_local(url) is local
    variables = {faults.VARIABLE: "delay:1ms"}
    if local:
        assert len(faults.interceptors(url, variables)) == 1
    else:
        with pytest.raises(SettingsError, match="not on this machine"):
            faults.interceptors(url, variables)


def test_without_the_variable_nothing_is_installed() -> None:
    assert faults.interceptors("postgresql://db.example.org/db", {}) == []


async def test_a_fault_happens_once_where_markers_are_kept_and_each_time_elsewhere(tmp_path: Path) -> None:
    once = FaultInterceptor(parse("fail-after:settle_intent"), tmp_path)
    always = FaultInterceptor(parse("fail-after:settle_intent"))

    with pytest.raises(ApplicationError):
        await once.reach("settle_intent", "after")
    await once.reach("settle_intent", "after")
    await once.reach("settle_intent", "before")
    for _ in range(2):
        with pytest.raises(ApplicationError):
            await always.reach("settle_intent", "after")

    assert os.listdir(tmp_path) == ["fail-after:settle_intent"]  # noqa: PTH208 - no Path operations in a coroutine
