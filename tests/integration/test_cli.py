"""Every command as a person types it: a process of its own, JSON on standard output, the exit code that is promised."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.house import ANNAS, GATED_CENTS, POOR, freeze_and_debit, open_accounts, session
from tests.support.shell import SECONDS_MAX, Shell, environment_of, shown_once
from worker.stack import LocalStack
from worker.stack.keeper import make_run_directory
from worker.stack.processes import wait_until
from worker.stack.temporal import free_port


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
