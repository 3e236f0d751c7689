"""The command line without servers: help that is instant and whole, and usage errors that end with 2."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from worker.cli.app import run

COMMANDS = (
    "intent post",
    "intent show",
    "intent list",
    "intent cancel",
    "why",
    "key",
    "plan",
    "approvals",
    "approve",
    "deny",
    "parked",
    "resolve",
    "unlock",
    "sweep",
    "check",
    "tools",
    "ledger",
    "worker",
    "bank",
    "db upgrade",
    "up",
    "down",
    "demo",
)
# Not pydantic: typer itself reads the options of a command with it, which costs a tenth of a second.
HEAVY = (
    "temporalio",
    "psycopg",
    "rich",
    "sqlalchemy",
    "alembic",
    "structlog",
    "uvloop",
    "contracts",
    "activities",
    "fastapi",
)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from worker.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "assert run(['intent', 'post', '--help']) == 0\n"
        "sys.stderr.write(' '.join(sorted(sys.modules)))"
    )

    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)

    assert {name.partition(".")[0] for name in done.stderr.split()} & set(HEAVY) == set()


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    listed = capsys.readouterr().out
    assert [name for name in {command.split()[0] for command in COMMANDS} if f"\n  {name} " not in listed] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: backstay {command}")
    if command not in {"worker", "bank", "demo"}:
        assert "--json" in shown


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    written = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))

    assert run(["--version"]) == 0

    assert capsys.readouterr().out == f"backstay {written['project']['version']}\n"


def test_help_names_what_stands_beside_up_and_down(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "make status" in shown
    assert "make clean" in shown


def test_an_approval_that_was_taken_ends_with_0_and_the_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run(["approve", "--help"])

    assert "Exit code 0: the approval was taken, although the saga may still run" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense",
        "intent",
        "intent post",
        "intent post /no/such/file.json",
        "intent post - --wait -1",
        "intent list --state lost",
        "intent list --limit 0",
        "intent show -",
        "intent show 7",
        "intent cancel int_",
        "why int_abc",
        "approve",
        "approve last",
        "resolve int_abcdefgh",
        "resolve int_abcdefgh forwards",
        "resolve int_abcdefgh retry",
        "resolve int_abcdefgh debit close",
        "resolve int_abcdefgh debit retry now",
        "db",
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_right(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments.split()) == 2

    told = capsys.readouterr()
    assert "Usage: backstay" in told.err + told.out
    assert "Traceback" not in told.err


def test_a_fault_of_ours_is_one_sentence_and_ends_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> int:
        raise ZeroDivisionError("by nobody")

    monkeypatch.setattr("worker.demo.run", broken)

    assert run(["demo"]) == 70
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "Traceback" not in told
