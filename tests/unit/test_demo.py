"""The demo's parts that need no server: examples, the last line of a failure, the verdict over the invariants."""

from __future__ import annotations

import signal
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from activities.catalog import load_packs
from contracts.intent import Caller
from contracts.proposal import propose_body
from contracts.registry import Registry
from worker.check import Checked, Report
from worker.demo import play, verdict
from worker.demo.claims import DemoFailedError, hold, until
from worker.demo.screen import Screen
from worker.demo.world import INTENTS
from worker.stack import LocalStack, StackError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

CALLER = Caller(tenant="demo-bank", principal="demo-customer", agent="demo-agent")
ALL_OK = tuple(Checked(name=f"{number}a holds", ok=True) for number in (1, 2, 3, 4, 5, 6))


def console() -> Console:
    """A log, not a terminal."""
    return Console(file=StringIO(), width=80, highlight=False)


def printed(console: Console) -> str:
    """What was printed to it."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("file", sorted(INTENTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_example_is_an_intent_that_the_door_takes(file: Path) -> None:
    registry = Registry.of(
        [tool.contract for pack in load_packs(addresses={"bank": "http://127.0.0.1:1"}) for tool in pack.tools]
    )

    proposal = propose_body(file.read_bytes(), CALLER, registry)

    assert proposal.intent_id.startswith("int_")


def test_a_claim_that_does_not_hold_says_what_was_promised_and_what_is_there() -> None:
    with pytest.raises(DemoFailedError, match="balance: expected 100, found 99"):
        hold("balance", 100, 99)


async def test_waiting_has_an_end_and_says_for_what() -> None:
    with pytest.raises(DemoFailedError, match="waited 0 seconds in vain for the moon"):
        await until("the moon", lambda: None, seconds=0.0)


def test_each_invariant_is_told_as_ok_or_not_yet() -> None:
    log = console()
    report = Report(ok=True, checks=ALL_OK, not_yet=("5 two approvers", "7 a test of the code"))

    broken = verdict.show(report, Screen(log))

    assert broken == []
    lines = printed(log).splitlines()
    assert sum("ok " in line for line in lines) == 6
    assert sum("not yet" in line for line in lines) == 2
    assert not any("ok" in line and " 7 " in line for line in lines)


def test_a_broken_invariant_is_not_told_as_ok() -> None:
    log = console()
    found = Checked(name="1b balances", ok=False, violation_count=5, violations=({"subject": "A1"}, {"subject": "A2"}))
    report = Report(ok=False, checks=(*ALL_OK, found), not_yet=("7 a test of the code",))

    broken = verdict.show(report, Screen(log))

    assert broken == ["1b balances"]
    assert "VIOLATED 1b balances: A1; A2; 3 more" in printed(log)
    assert not any("ok" in line and " 1 " in line for line in printed(log).splitlines())


def test_an_invariant_that_nobody_asks_about_is_no_success() -> None:
    with pytest.raises(DemoFailedError, match="nothing about invariant 7"):
        verdict.show(Report(ok=True, checks=ALL_OK, not_yet=()), Screen(console()))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StackError("No\nPostgreSQL here."), "DEMO FAILED No PostgreSQL here."),
        (ZeroDivisionError("a bug"), "DEMO FAILED ZeroDivisionError: a bug"),
    ],
)
def test_whatever_goes_wrong_is_said_by_the_last_line_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def broken() -> AbstractContextManager[LocalStack]:
        raise error

    def leave_alone(number: int, handler: object) -> None:
        """Keep pytest's own handlers."""

    monkeypatch.setattr(LocalStack, "temporary", broken)
    monkeypatch.setattr(signal, "signal", leave_alone)
    log = console()

    code = play.run(log)

    assert code == 1
    assert printed(log).splitlines()[-1] == line
