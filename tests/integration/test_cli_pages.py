"""The pages of `docs/` are true: what they post is taken, and what they show is what is said."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.house import CASH
from tests.support.shell import ROOT, SECONDS_MAX, Shell, shown_once
from worker.stack.processes import wait_until


def page(name: str) -> str:
    """Read a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_example_of_composing_an_intent_is_sound(shell: Shell, tmp_path: Path) -> None:
    whole, late = re.findall(r"```json\n(.*?)```", page("intents.md"), re.DOTALL)
    bound = json.loads(whole)
    look = {"step_id": "read", "tool": "check_account_balance", "arguments": {"account_id": "A00000001"}}
    bound["steps"] = [look, json.loads(late)]
    (tmp_path / "late.json").write_text(json.dumps(bound), encoding="utf-8")
    (tmp_path / "whole.json").write_text(whole, encoding="utf-8")

    planned = {name: shell.run("plan", str(tmp_path / f"{name}.json"), "--json") for name in ("whole", "late")}

    assert {name: (ran.exit_code, ran.data["proof"]["sound"]) for name, ran in planned.items()} == {
        "whole": (0, True),
        "late": (0, True),
    }


def test_a_proof_reads_as_its_page_shows(shell: Shell) -> None:
    findings, _, ends = re.findall(r"```\n(.*?)```", page("proofs.md"), re.DOTALL)

    printed = shell.run("plan", str(ROOT / "examples" / "intents" / "02-later-step-refuses.json"))

    assert printed.exit_code == 0
    assert {*findings.splitlines(), *ends.splitlines()} <= {line.strip() for line in printed.output.splitlines()}


def test_the_parked_saga_is_repaired_as_its_page_shows(shell: Shell, tmp_path: Path) -> None:
    shell.sql("select ledger.open_account('A10000001', 'demo-bank', 'anna', 'CURRENT', 'EUR')")
    shell.sql(f"select ledger.fund_account('A10000001', '{CASH}', 10000)")
    (chain,) = re.findall(r"```json\n(.*?)```", page("repair.md"), re.DOTALL)
    (tmp_path / "chain.json").write_text(chain, encoding="utf-8")
    posted = shell.run("intent", "post", str(tmp_path / "chain.json"), "--json", "--no-wait")
    marker = shell.faults / "pause-before:transfer_customer_funds@1"
    assert wait_until(marker.exists, timeout_seconds=SECONDS_MAX)
    shell.sql("select ledger.close_account('A10000001')")
    (shell.faults / f"{marker.name}.end").touch()
    resting = shown_once(shell, posted.intent_id, code=4)
    (shown,) = re.findall(r"```console\n(.*?)```", page("repair.md"), re.DOTALL)

    def when_it_rests() -> None:
        shown_once(shell, posted.intent_id, code=4)

    def when_it_ended() -> None:
        shown_once(shell, posted.intent_id, code=1)

    said = typed(shell, shown, posted.intent_id, after={" retry": when_it_rests, " --evidence": when_it_ended})

    assert {step["step_id"]: step["state"] for step in resting.data["steps"]} == {
        "freeze": "DONE",
        "debit": "PARKED",
        "transfer": "REFUSED",
    }
    assert neutral(said) == neutral(shown)


def test_the_example_of_open_intents_runs_and_says_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    for name, step in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", page("open-intents.md"), re.DOTALL):
        (tmp_path / name).write_text(step, encoding="utf-8")
    (shown,) = re.findall(r"```console\n(.*?)```", page("open-intents.md"), re.DOTALL)

    said = typed(shell, shown, "", files=tmp_path)

    assert neutral(said) == neutral(shown)


def test_the_example_of_reservations_runs_and_says_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    for name, intent in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", page("reservations.md"), re.DOTALL):
        (tmp_path / name).write_text(intent, encoding="utf-8")
    for shown in re.findall(r"```console\n(.*?)```", page("reservations.md"), re.DOTALL):
        said = typed(shell, shown, "", files=tmp_path)

        assert neutral(said) == neutral(shown)


def typed(
    shell: Shell,
    shown: str,
    intent_id: str,
    *,
    files: Path = ROOT,
    after: Mapping[str, Callable[[], None]] = MappingProxyType({}),
) -> str:
    """Type what a page shows, about an intent of our own (empty: the one that the first line makes).

    `after`: what to wait for once a line with these words is answered.
    """
    (written,) = set(re.findall(r"int_[a-z2-7]{26}", shown))
    said = ""
    for line in (line for line in shown.splitlines() if line.startswith("$ backstay ")):
        words = shlex.split(line.replace(written, intent_id))[2:]
        done = shell.run(*(str(files / word) if word.endswith(".json") else word for word in words))
        intent_id = intent_id or re.findall(r"int_[a-z2-7]{26}", done.output)[0]
        said += f"{line}\n{done.output}{done.errors}"
        for wait in (wait for words, wait in after.items() if words in line):
            wait()
    return said


def neutral(text: str) -> str:
    """Words without ids, numbers and times."""
    return re.sub(r"int_[a-z2-7]{26}|[0-9a-f]{64}|\b[HCM]\w{5,}|#\d+|\d{4}-\d\d-\d\dT[\d:.+Z]+|\b\d{5,}\b", "_", text)
