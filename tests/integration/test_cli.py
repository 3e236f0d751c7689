"""Every command as a person types it: a process of its own, JSON on standard output, the exit code that is promised."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.house import ANNA, ANNAS, CASH, GATED_CENTS, POOR, TENANT, freeze_and_debit, open_accounts, session
from worker.stack import LocalStack
from worker.stack.keeper import make_run_directory
from worker.stack.processes import wait_until
from worker.stack.temporal import free_port

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


@pytest.fixture(scope="module")
def shell(stack: LocalStack, empty_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell with a worker that stops once before a transfer, until it is told to go on."""
    url = stack.create_database(template=empty_template)
    open_accounts(url)
    faults = tmp_path_factory.mktemp("faults")
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


def test_a_post_commits_and_a_repeat_says_so(shell: Shell) -> None:
    body = freeze_and_debit(session())

    first = shell.run("intent", "post", "-", "--json", "--key", "my-key-1", body=body)
    again = shell.run("intent", "post", "-", body=body)

    assert (first.exit_code, first.data["outcome"], first.errors) == (0, "COMMITTED", "")
    assert again.exit_code == 0
    assert again.output.startswith(f"{first.intent_id}  COMMITTED  (the answer to an earlier post")
    assert "debit_frozen_funds@1  DONE  #" in again.output


def test_a_post_from_a_file_takes_what_the_flags_say(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "intent.json"
    file.write_bytes(freeze_and_debit("of-the-file", account="A00000002"))
    flags = ("--session", session(), "--principal", "ben", "--agent", "other", "--business-reference", "INV-1")

    posted = shell.run("intent", "post", str(file), "--json", *flags)
    key = shell.run("key", str(file), "--json", *flags[:4], *flags[6:])

    assert (posted.exit_code, posted.data["outcome"]) == (0, "COMMITTED")
    assert key.data["intent_id"] == posted.intent_id
    assert json.loads(key.data["canonical"])[1] == "ben"


def test_wrong_arguments_name_their_fields_and_end_with_1(shell: Shell) -> None:
    spoken = shell.run("intent", "post", "-", body=freeze_and_debit(session(), amount_cents=-5))
    parsed = shell.posted(amount_cents=-5)

    assert (spoken.exit_code, parsed.exit_code) == (1, 1)
    assert spoken.output == ""
    assert "steps[0].arguments.amount_cents" in spoken.errors
    assert "allowed:" in spoken.errors
    assert (parsed.envelope["status_code"], parsed.envelope["error"]["code"]) == (422, "ARGUMENTS_INVALID")


def test_a_refusal_is_told_with_its_next_step(shell: Shell) -> None:
    poor = shell.run("intent", "post", "-", body=freeze_and_debit(session(), account=POOR))

    assert poor.exit_code == 1
    assert "FUNDS_INSUFFICIENT" in poor.output
    assert "next:" in poor.output


def test_a_gated_intent_is_listed_explained_and_approved(shell: Shell) -> None:
    posted = shell.posted(amount_cents=GATED_CENTS)
    intent_id, beginning = posted.intent_id, posted.intent_id[:16]

    cards = shell.run("approvals", "--json").data["approvals"]
    why = shell.run("why", beginning, "--json")
    listed = shell.run("intent", "list", "--state", "open", "--json")
    approved = shell.run("approve", beginning, "freeze", "--json")
    approved_rest = shell.run("approve", beginning, "--reason", "known customer")
    show = shown_once(shell, intent_id, code=0)

    assert posted.exit_code == 3
    assert {card["step_id"] for card in cards if card["intent_id"] == intent_id} == {"freeze", "debit"}
    assert (why.exit_code, why.data["next_action"]) == (0, "it expires, and nothing is done")
    assert intent_id in {line["intent_id"] for line in listed.data["intents"]}
    assert (approved.exit_code, approved.data["accepted"]) == (0, True)
    assert approved_rest.exit_code == 0
    assert show.data["outcome"] == "COMMITTED"


def test_a_bound_amount_is_announced_and_its_own_card_is_approved(shell: Shell) -> None:
    amount = {"$fn": "min_cents", "of": [{"$from": "read.available_cents"}, GATED_CENTS]}
    intent = json.loads(freeze_and_debit(session(), amount_cents=1))
    freeze, debit = intent["steps"]
    freeze["arguments"]["amount_cents"] = debit["arguments"]["amount_cents"] = amount
    read = {"step_id": "read", "tool": "check_account_balance", "arguments": {"account_id": ANNAS}}
    body = json.dumps({**intent, "steps": [read, freeze, debit]}).encode()

    plan = shell.run("plan", "-", body=body)
    posted = shell.run("intent", "post", "-", "--json", body=body)
    cards = [
        card for card in shell.run("approvals", "--json").data["approvals"] if card["intent_id"] == posted.intent_id
    ]
    unnamed = shell.run("approve", posted.intent_id, "--json")
    answers = [shell.run("approve", posted.intent_id, step_id, "--json") for step_id in ("freeze", "debit")]
    show = shown_once(shell, posted.intent_id, code=0)

    assert "graded when it resolves: amount_cents; it may ask then" in plan.output
    assert "asks people about: nothing" in plan.output
    assert (posted.exit_code, unnamed.exit_code) == (3, 1)
    assert {card["step_id"]: card["arguments"]["amount_cents"] for card in cards} == {
        "freeze": GATED_CENTS,
        "debit": GATED_CENTS,
    }
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert show.data["outcome"] == "COMMITTED"


def test_a_denied_intent_ends_and_comes_too_late_for_an_approval(shell: Shell) -> None:
    intent_id = shell.posted(amount_cents=GATED_CENTS).intent_id

    denied = shell.run("deny", intent_id)
    shown = shown_once(shell, intent_id, code=1)
    late = shell.run("approve", intent_id, "--json")

    assert denied.exit_code == 0
    assert (shown.data["outcome"], shown.data["cause"]) == ("NOT_APPLIED", "denied")
    assert (late.exit_code, late.envelope["error"]["code"]) == (1, "DECISION_LATE")


def test_a_cancelled_intent_ends_and_a_second_cancel_is_no_error(shell: Shell) -> None:
    intent_id = shell.posted("--no-wait", amount_cents=GATED_CENTS).intent_id

    cancelled = shell.run("intent", "cancel", intent_id, "--reason", "changed her mind", "--json")
    shown = shown_once(shell, intent_id, code=1)
    again = shell.run("intent", "cancel", intent_id)

    assert (cancelled.exit_code, again.exit_code) == (0, 0)
    assert shown.data["cause"] == "cancelled"


def test_a_dry_run_writes_nothing_and_tells_what_admission_would_say(shell: Shell) -> None:
    plan = shell.run("plan", "-", "--json", body=freeze_and_debit(session(), amount_cents=GATED_CENTS))
    refused = shell.run("plan", "-", body=freeze_and_debit(session(), account="A99999999"))

    assert (plan.exit_code, plan.data["asks"]) == (0, ["freeze", "debit"])
    assert (refused.exit_code, "OBJECT_NOT_FOUND" in refused.errors) == (1, True)


def test_a_dry_run_shows_its_proof_as_text_table_and_pictures(shell: Shell, tmp_path: Path) -> None:
    body, drawn = freeze_and_debit(session()), tmp_path / "plan.svg"

    text = shell.run("plan", "-", "--svg", str(drawn), body=body)
    told = shell.run("plan", "-", "--mermaid", body=body)
    data = shell.run("plan", "-", "--json", body=body).data
    nowhere = shell.run("plan", "-", "--svg", str(tmp_path / "no" / "plan.svg"), body=body)

    rows = [re.split(" {2,}", line) for line in text.output.splitlines()]
    assert ["landed", "running", "refused", "crash", "cancel"] in rows
    assert [
        "freeze",
        "debit",
        "COMPENSATED (freeze)",
        "COMMITTED",
        "COMPENSATED (freeze) or COMPENSATED (debit, then freeze)",
    ] in rows
    assert "holds: AMOUNTS (freeze, debit): freeze.hold_id: " in text.output
    assert told.output.startswith("flowchart TB\n")
    assert drawn.read_text(encoding="utf-8").startswith("<svg ")
    assert (data["proof"]["sound"], len(data["proof_digest"])) == (True, 64)
    assert nowhere.exit_code == 2


def test_a_refused_compensation_parks_and_is_resolved_step_by_step(shell: Shell) -> None:
    shell.sql("select ledger.open_account('A10000001', 'demo-bank', 'anna', 'CURRENT', 'EUR')")
    shell.sql(f"select ledger.fund_account('A10000001', '{CASH}', 10000)")
    chain = json.loads(freeze_and_debit(session(), account="A10000001", amount_cents=500))
    transfer = {"from_account_id": "A10000001", "to_account_id": POOR, "amount_cents": 100, "currency": "EUR"}
    arguments = transfer | {"reason_code": "OWN_ACCOUNTS"}
    chain["steps"].append({"step_id": "transfer", "tool": "transfer_customer_funds", "arguments": arguments})
    posted = shell.run("intent", "post", "-", "--json", "--no-wait", body=json.dumps(chain).encode())
    marker = shell.faults / "pause-before:transfer_customer_funds@1"
    assert wait_until(marker.exists, timeout_seconds=SECONDS_MAX)
    shell.sql("select ledger.close_account('A10000001')")
    (shell.faults / f"{marker.name}.end").touch()

    resting = shown_once(shell, posted.intent_id, code=4)
    parked = shell.run("parked", "--json").data["parked"]
    empty = shell.run("resolve", posted.intent_id, "debit", "skip", "--json")
    done = shell.run("resolve", posted.intent_id, "debit", "skip", "--evidence", "repaid in cash")
    shown = shown_once(shell, posted.intent_id, code=1)

    assert resting.data["outcome"] == "PARKED"
    assert {step["step_id"]: step["state"] for step in resting.data["steps"]} == {
        "freeze": "DONE",
        "debit": "PARKED",
        "transfer": "REFUSED",
    }
    assert resting.data["steps"][2]["error"]["code"] == "WRONG_STATE"
    assert [line["reason"] for line in parked if line["intent_id"] == posted.intent_id] == ["COMPENSATION_REFUSED"]
    assert (empty.exit_code, empty.envelope["error"]["code"]) == (1, "RESOLUTION_INVALID")
    assert done.exit_code == 0
    assert shown.data["outcome"] == "COMPENSATED"
    assert "repaid in cash" in json.dumps(shown.data["steps"])


def test_the_example_of_open_intents_runs_and_says_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "open-intents.md").read_text(encoding="utf-8")
    for name, step in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(step, encoding="utf-8")
    (shown,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (written,) = set(re.findall(r"int_[a-z2-7]{26}", shown))
    intent_id, said = "", ""
    for line in (line for line in shown.splitlines() if line.startswith("$ backstay ")):
        words = line.replace(written, intent_id).split()[2:]
        done = shell.run(*(str(tmp_path / word) if word.endswith(".json") else word for word in words))
        intent_id = intent_id or re.findall(r"int_[a-z2-7]{26}", done.output)[0]
        said += f"{line}\n{done.output}{done.errors}"

    assert neutral(said) == neutral(shown)


def test_the_example_of_reservations_runs_and_says_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reservations.md").read_text(encoding="utf-8")
    for name, intent in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(intent, encoding="utf-8")
    for shown in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        (line, *_) = shown.splitlines()
        words = line.removeprefix("$ backstay ").split()
        done = shell.run(*(str(tmp_path / word) if word.endswith(".json") else word for word in words))

        assert neutral(f"{line}\n{done.output}{done.errors}") == neutral(shown)


def neutral(text: str) -> str:
    """Words without ids, numbers and times."""
    return re.sub(r"int_[a-z2-7]{26}|[0-9a-f]{64}|\b[HCM]\w{5,}|#\d+|\d{4}-\d\d-\d\dT[\d:.+Z]+|\b\d{5,}\b", "_", text)


def test_an_open_intent_is_aborted_and_tells_what_comes_too_late(shell: Shell) -> None:
    chat = session()
    opened = shell.run("intent", "open", "trip", "--session", chat, "--json")
    step = json.loads(freeze_and_debit(chat))["steps"][0]

    added = shell.run("intent", "add", opened.intent_id, "-", "--json", body=json.dumps(step).encode())
    why = shell.run("why", opened.intent_id)
    aborted = shell.run("intent", "abort", opened.intent_id, "--json")
    late = shell.run("intent", "commit", opened.intent_id, "--json")

    assert (opened.exit_code, added.exit_code, aborted.exit_code, late.exit_code) == (0, 0, 0, 1)
    assert added.data["step"]["state"] == "DONE"
    assert "the next step, commit or abort" in why.output
    assert (aborted.data["outcome"], late.data["outcome"]) == ("COMPENSATED", "COMPENSATED")


def test_the_operators_commands_answer(shell: Shell) -> None:
    swept = shell.run("sweep", "--json")
    page = shell.run("ledger", "A00000001", "--json")
    tools = shell.run("tools", "--json")
    tool = shell.run("tools", "freeze_account_funds", "--json")
    migrated = shell.run("db", "upgrade", "--json")

    assert (swept.exit_code, swept.data["started"]) == (0, [])
    assert (page.exit_code, page.data["state"]) == (0, "ACTIVE")
    assert "freeze_account_funds@1" in {line["tool"] for line in tools.data["tools"]}
    assert tool.data["input"]["properties"]["amount_cents"]["type"] == "integer"
    assert (migrated.exit_code, migrated.data["applied"]) == (0, [])


def test_what_is_not_there_is_a_404_and_ends_with_1(shell: Shell) -> None:
    intent = shell.run("why", f"int_{'a' * 26}", "--json")
    account = shell.run("ledger", "A99999999")
    tool = shell.run("tools", "freeze_acount_funds")

    assert (intent.exit_code, intent.envelope["status_code"]) == (1, 404)
    assert (account.exit_code, "OBJECT_NOT_FOUND" in account.errors) == (1, True)
    assert (tool.exit_code, "Did you mean freeze_account_funds@1" in tool.errors) == (1, True)


def test_the_check_is_fine_and_says_what_it_does_not_check_yet(shell: Shell) -> None:
    found = shell.run("check", "--json")

    assert (found.exit_code, found.data["ok"]) == (0, True)
    assert all(check["ok"] for check in found.data["checks"])
    assert found.data["not_yet"]


def test_the_check_finds_what_is_wrong_and_ends_with_1(stack: LocalStack, empty_template: str, tmp_path: Path) -> None:
    url = stack.create_database(template=empty_template)
    open_accounts(url)
    other = Shell(url, environment_of(stack, url), tmp_path)
    other.sql("update ledger.accounts set balance_cents = balance_cents + 1 where account_id = 'A00000001'")

    found = other.run("check", "--json")
    spoken = other.run("check")

    stack.drop_database(url)
    assert (found.exit_code, found.envelope["error"]["code"], found.data["ok"]) == (1, "MISMATCH", False)
    assert any(check["violations"] for check in found.data["checks"])
    assert (spoken.exit_code, "VIOLATED by 1" in spoken.output) == (1, True)


def test_ctrl_c_ends_the_waiting_with_130_and_says_that_the_intent_goes_on(shell: Shell) -> None:
    nobody = Shell(shell.url, shell.environment | {"BACKSTAY_TASK_QUEUE": session()}, shell.faults)
    waiting = nobody.start("intent", "post", "-", "--wait", "60")
    theirs = session()
    assert waiting.stdin is not None
    waiting.stdin.write(freeze_and_debit(theirs))
    waiting.stdin.close()
    waiting.stdin = None
    assert not wait_until(lambda: waiting.poll() is not None, timeout_seconds=5)

    waiting.send_signal(signal.SIGINT)
    output, errors = waiting.communicate(timeout=SECONDS_MAX)

    told = re.fullmatch(r"Stopped waiting\. Intent (int_[a-z2-7]{26}) was accepted and goes on: .*\n", errors.decode())
    assert (waiting.returncode, output) == (130, b"")
    assert told is not None
    assert nobody.run("intent", "show", told.group(1)).exit_code == 3


@pytest.mark.parametrize(
    "closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"], ids=["output", "errors", "input", "all of them"]
)
def test_a_closed_stream_changes_no_exit_code_and_is_nobody_elses(shell: Shell, closed: str) -> None:
    file = shell.faults / f"{session()}.json"
    file.write_bytes(freeze_and_debit(session()))

    posted = shell.redirected(closed, "intent", "post", str(file), "--json")

    assert (posted.exit_code, posted.errors) == (0, "")
    assert not posted.output or posted.data["outcome"] == "COMMITTED"


def test_an_intent_from_a_closed_input_is_empty(shell: Shell) -> None:
    posted = shell.redirected("<&-", "intent", "post", "-")

    assert (posted.exit_code, "BODY_MALFORMED" in posted.errors, "Traceback" in posted.errors) == (1, True, False)


def test_temporal_or_database_away_is_told_with_the_next_step(shell: Shell) -> None:
    no_temporal = Shell(shell.url, shell.environment | {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, shell.faults)
    no_settings = Shell(
        shell.url, {name: value for name, value in shell.environment.items() if name != "DATABASE_URL"}, shell.faults
    )

    posted = no_temporal.posted()
    worker = no_temporal.run("worker")
    listed = no_settings.run("intent", "list")

    assert (posted.exit_code, posted.envelope["status_code"], posted.envelope["error"]["retryable"]) == (
        1,
        503,
        "always",
    )
    assert (worker.exit_code, "TEMPORAL_ADDRESS" in worker.errors) == (2, True)
    assert (listed.exit_code, "make up" in listed.errors) == (2, True)
    assert "Traceback" not in posted.errors + worker.errors + listed.errors


def test_a_worker_refuses_a_database_that_is_not_migrated(stack: LocalStack, tmp_path: Path) -> None:
    url = stack.create_database()

    worker = Shell(url, environment_of(stack, url), tmp_path).run("worker")

    stack.drop_database(url)
    assert (worker.exit_code, "backstay db upgrade" in worker.errors) == (2, True)


def test_a_worker_refuses_faults_on_a_database_that_is_not_on_this_machine(shell: Shell) -> None:
    far = Shell(shell.url, shell.environment | {"DATABASE_URL": "postgresql://db.example.org/backstay"}, shell.faults)

    worker = far.run("worker")

    assert (worker.exit_code, "BACKSTAY_FAULTS" in worker.errors) == (2, True)


def test_up_gives_every_command_its_servers_and_down_takes_them_away(stack: LocalStack) -> None:
    state = make_run_directory()
    ours = {
        "BACKSTAY_STATE_DIR": str(state / "up"),
        "BACKSTAY_TEMPORAL_PORT": str(free_port()),
        "BACKSTAY_TEMPORAL_UI_PORT": str(free_port()),
        "BACKSTAY_BANK_PORT": str(free_port()),
    }
    others = environment_of(stack, "").items()
    alone = {name: value for name, value in others if not name.startswith(("BACKSTAY_", "TEMPORAL_", "DATABASE_"))}
    here = Shell("", alone | ours, state)
    try:
        up = here.run("up", "--json")
        swept = here.run("sweep", "--json")
        again = here.run("up")
        down = here.run("down", "--json")
        nothing = here.run("down")
    finally:
        here.run("down")
        shutil.rmtree(state)

    assert (up.exit_code, set(up.data["processes"])) == (0, {"postgres", "temporal", "bank", "worker"})
    assert (swept.exit_code, swept.data["looked_at"]) == (0, 0)
    assert (again.exit_code, up.data["temporal_address"] in again.output) == (0, True)
    assert (down.exit_code, set(down.data["stopped"])) == (0, {"postgres", "temporal", "bank", "worker"})
    assert (nothing.exit_code, nothing.output) == (0, "nothing was running\n")


def test_unlock_takes_an_object_from_its_holder_and_who_waited_goes_on(shell: Shell) -> None:
    shell.sql("select ledger.open_account('A20000001', 'demo-bank', 'anna', 'CURRENT', 'EUR')")
    holder = shell.posted(amount_cents=GATED_CENTS).intent_id
    shell.sql(
        "insert into backstay.locks (resource, intent_key, mode, is_held, epoch, ticket, step_ids)"  # noqa: S608 - ours
        " select 'account:A20000001', intent_key, 'EXCLUSIVE', true, epoch, 0, '{}' from backstay.intents"
        f" where intent_id = '{holder}'"
    )
    arguments = {"account_id": "A20000001", "reason_code": "LEGAL_ORDER"}
    step = {"step_id": "lock", "tool": "lock_customer_account", "arguments": arguments}
    body = json.dumps({"protocol": 1, "session_id": session(), "steps": [step]}).encode()
    waiting = shell.run("intent", "post", "-", "--json", "--wait", "2", body=body)
    why = shell.run("why", waiting.intent_id)

    nobody = shell.run("unlock", "account:A20000009")
    taken = shell.run("unlock", "account:A20000001", "--reason", "it hangs", "--json")

    assert waiting.exit_code == 3
    blocked = f"blocked by: account:A20000001: {holder} holds it EXCLUSIVE (by robot for anna)"
    assert blocked in why.output
    assert (nobody.exit_code, nobody.output) == (0, "Nobody held account:A20000009.\n")
    assert taken.data["taken_from"] == [
        {"intent_id": holder, "mode": "EXCLUSIVE", "phase": "ADMITTED", "parked": None, "epoch": 2}
    ]
    assert shown_once(shell, waiting.intent_id, code=0).data["outcome"] == "COMMITTED"
