"""The pages of `docs/` are true: what they post is taken, and what they show is what is said."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psycopg

from tests.support.shell import ROOT, SECONDS_MAX, Shell
from worker.stack.processes import wait_until

INTENT_ID = r"int_[a-z2-7]{26}"


def page(name: str) -> str:
    """Read a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_example_of_composing_an_intent_is_sound(shell: Shell, tmp_path: Path) -> None:
    whole, late, _fallback = re.findall(r"```json\n(.*?)```", page("intents.md"), re.DOTALL)
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
    findings, _refusal, ends, _with_fallback = re.findall(r"```\n(.*?)```", page("proofs.md"), re.DOTALL)

    printed = shell.run("plan", str(ROOT / "examples" / "intents" / "02-later-step-refuses.json"))

    assert printed.exit_code == 0
    assert {*findings.splitlines(), *ends.splitlines()} <= {line.strip() for line in printed.output.splitlines()}


def test_the_parked_saga_is_repaired_as_its_page_shows(shell: Shell, tmp_path: Path) -> None:
    customer = written_files(shell, "repair.md", tmp_path)
    opening, closing = re.findall(r"```sql\n(.*?)```", page("repair.md"), re.DOTALL)
    landing, parking = re.findall(r"```console\n(.*?)```", page("repair.md"), re.DOTALL)

    shell.sql(opening)
    landed = typed(customer, landing, "", files=tmp_path)
    shell.sql(closing)
    (intent_id,) = set(re.findall(INTENT_ID, landed))
    parked = typed(customer, parking, intent_id)

    assert neutral(landed) == neutral(landing)
    assert neutral(parked) == neutral(parking)


def test_the_example_of_locks_runs_and_says_what_it_shows(shell: Shell, tmp_path: Path) -> None:
    customer = written_files(shell, "locks.md", tmp_path)
    accounts = (ROOT / "examples" / "accounts.sql").read_text(encoding="utf-8")
    shell.sql(accounts[accounts.index("insert into records.files") : accounts.index("commit;")])
    deleting, waiting = re.findall(r"```console\n(.*?)```", page("locks.md"), re.DOTALL)

    def when_it_waits() -> None:
        with psycopg.connect(shell.url, autocommit=True) as connection:
            query = "select 1 from backstay.lock_conflicts"
            assert wait_until(lambda: connection.execute(query).fetchone() is not None, timeout_seconds=SECONDS_MAX)

    deleted = typed(customer, deleting, "", files=tmp_path)
    (intent_id,) = set(re.findall(INTENT_ID, deleted))
    waited = typed(
        customer,
        waiting.replace(re.findall(INTENT_ID, deleting)[0], intent_id),
        "",
        files=tmp_path,
        known={intent_id: intent_id},
        after={"--no-wait": when_it_waits},
    )

    assert neutral(deleted) == neutral(deleting)
    assert neutral(waited) == neutral(waiting)


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


def written_files(shell: Shell, name: str, directory: Path) -> Shell:
    """Write the files that a page shows, and be the customer of the example accounts."""
    for file, text in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", page(name), re.DOTALL):
        (directory / file).write_text(text, encoding="utf-8")
    who = {"BACKSTAY_PRINCIPAL": "demo-customer", "BACKSTAY_AGENT": "demo-agent"}
    return replace(shell, environment=shell.environment | who)


def typed(
    shell: Shell,
    shown: str,
    intent_id: str,
    *,
    files: Path = ROOT,
    known: Mapping[str, str] = MappingProxyType({}),
    after: Mapping[str, Callable[[], None]] = MappingProxyType({}),
) -> str:
    """Type what a page shows, about intents of our own: `intent_id` stands for the page's first, unless it is empty.

    An id that a command prints first stands for the next one of the page; `known` is what others stand for. `after`:
    what to wait for once a line with these words is answered.
    """
    written = list(dict.fromkeys(re.findall(INTENT_ID, shown)))
    ours = dict(known) | ({written[0]: intent_id} if intent_id else {})
    said = ""
    for line in (line for line in shown.splitlines() if line.startswith("$ backstay ")):
        meant = line
        for theirs, own in ours.items():
            meant = meant.replace(theirs, own)
        words = shlex.split(meant)[2:]
        done = shell.run(*(str(files / word) if word.endswith(".json") else word for word in words))
        fresh = [found for found in dict.fromkeys(re.findall(INTENT_ID, done.output)) if found not in ours.values()]
        ours |= dict(zip((theirs for theirs in written if theirs not in ours), fresh, strict=False))
        said += f"{line}\n{done.output}{done.errors}"
        for wait in (wait for words, wait in after.items() if words in line):
            wait()
    return said


def neutral(text: str) -> str:
    """Words without ids, numbers and times."""
    return re.sub(r"int_[a-z2-7]{26}|[0-9a-f]{64}|\b[CDHM]\w{5,}|#\d+|\d{4}-\d\d-\d\dT[\d:.+Z]+|\b\d{5,}\b", "_", text)
