"""A shell in which `backstay` is typed: every command a process of its own, beside one worker."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.support.house import ANNA, TENANT, freeze_and_debit, open_accounts, session
from worker.stack import LocalStack
from worker.stack.processes import wait_until

BACKSTAY = (sys.executable, "-c", "from worker.cli import main; main()")
ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 90


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    exit_code: int
    output: str
    errors: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The JSON on standard output, all of it."""
        found: dict[str, Any] = json.loads(self.output)
        return found

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = self.envelope["data"]
        return found

    @property
    def intent_id(self) -> str:
        found: str = self.envelope["meta"]["intent_id"]
        return found


@dataclass(frozen=True)
class Shell:
    """A shell in which `backstay` finds one database, one Temporal and one worker."""

    url: str
    environment: dict[str, str]
    faults: Path
    extra: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, *arguments: str, body: bytes = b"") -> Ran:
        """Run `backstay` to its end."""
        done = subprocess.run(
            (*BACKSTAY, *arguments),
            input=body,
            capture_output=True,
            env=self.environment,
            cwd=ROOT,
            timeout=SECONDS_MAX,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def redirected(self, redirection: str, *arguments: str) -> Ran:
        """Run `backstay` to its end, with streams as a shell redirects or closes them."""
        done = subprocess.run(
            ("/bin/sh", "-c", f"{shlex.join([*BACKSTAY, *arguments])} {redirection}"),
            capture_output=True,
            env=self.environment,
            cwd=ROOT,
            timeout=SECONDS_MAX,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `backstay` and leave it running."""
        return subprocess.Popen(
            (*BACKSTAY, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=ROOT,
        )

    def sql(self, statement: str) -> None:
        """Change the tables as their owner."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def posted(self, *arguments: str, amount_cents: int | None = None) -> Ran:
        """Post the reference chain of a conversation of its own."""
        body = freeze_and_debit(session(), amount_cents=amount_cents)
        return self.run("intent", "post", "-", "--json", *arguments, body=body)


def environment_of(stack: LocalStack, url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKSTAY_", "TEMPORAL_"))}
    return kept | {
        "DATABASE_URL": url,
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "BACKSTAY_TASK_QUEUE": session(),
        "BACKSTAY_TENANT": TENANT,
        "BACKSTAY_PRINCIPAL": ANNA.principal,
        "BACKSTAY_AGENT": ANNA.agent,
        "BACKSTAY_APPROVER": "carl",
        "BACKSTAY_OPERATOR": "olga",
        "BACKSTAY_STATE_DIR": str(stack.directory / "cli-state"),
        **more,
    }


def shown_once(shell: Shell, intent_id: str, *, code: int) -> Ran:
    """Show an intent as soon as the tables say that it has ended, or parked where the code is 4."""
    reached = "parked_reason is not null" if code == 4 else "final_at is not null"
    query = f"select 1 from backstay.intents where intent_id = %s and {reached}"  # noqa: S608 - constants
    with psycopg.connect(shell.url, autocommit=True) as connection:
        assert wait_until(
            lambda: connection.execute(query.encode(), (intent_id,)).fetchone() is not None, timeout_seconds=SECONDS_MAX
        )
    shown = shell.run("intent", "show", intent_id, "--json")
    assert shown.exit_code == code
    return shown


@contextmanager
def open_shell(stack: LocalStack, template: str, faults: Path) -> Generator[Shell]:
    """A shell with a worker that stops once before a transfer, until it is told to go on."""
    url = stack.create_database(template=template)
    open_accounts(url)
    environment = environment_of(
        stack, url, BACKSTAY_FAULTS="pause-before:transfer_customer_funds@1", BACKSTAY_FAULTS_DIR=str(faults)
    )
    made = Shell(url, environment, faults)
    worker = made.start("worker")
    assert worker.stdout is not None
    assert worker.stderr is not None
    try:
        assert worker.stdout.readline().startswith(b"ready: task queue"), worker.stderr.read().decode()
        yield made
        worker.send_signal(signal.SIGTERM)
        _, logs = worker.communicate(timeout=SECONDS_MAX)
        assert worker.returncode == 0
        assert [json.loads(line)["event"] for line in logs.splitlines()][-1] == "stopped"
    finally:
        worker.kill()
        worker.wait()
        stack.drop_database(url)
