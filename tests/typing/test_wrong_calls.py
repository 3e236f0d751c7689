"""Calls that are wrong by type fail type checking, each on its line, under both checkers; their right twin does not.

A marked line ends in `# wrong: <mypy codes> | <pyright rules>`; `-` stands for a checker that lets it pass.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
WRONG: Final = sorted((HERE / "wrong").glob("*.py"))
RIGHT: Final = HERE / "right.py"
MARK: Final = re.compile(r"# wrong: (?P<mypy>[\w, -]+) \| (?P<pyright>[\w, -]+)$")
MYPY_LINE: Final = re.compile(r"^(?P<file>.+?):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$")
TIMEOUT_SECONDS: Final = 120
Findings = dict[tuple[str, int], set[str]]
"""File name and line, and the kinds of errors there."""


def marked(checker: str) -> Findings:
    """Read what the marks promise of one checker."""
    found: Findings = {}
    for file in WRONG:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if mark := MARK.search(line):
                kinds = {kind.strip() for kind in mark[checker].split(",")} - {"-"}
                if kinds:
                    found[file.name, number] = kinds
    return found


def differences(promised: Findings, reported: Findings) -> list[str]:
    """Name each line of which mark and report do not say the same."""
    return [
        f"{file}:{line}: marked {sorted(promised.get((file, line), set()))},"
        f" reported {sorted(reported.get((file, line), set()))}"
        for file, line in sorted(promised.keys() | reported.keys())
        if promised.get((file, line)) != reported.get((file, line))
    ]


@pytest.fixture(scope="module")
def by_mypy() -> Findings:
    """Run mypy as the project runs it; the cache is one of its own, so that no other run waits for it."""
    command = [
        sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", "--hide-error-context",
        "--cache-dir", str(ROOT / ".mypy_cache" / "wrong_calls"), *map(str, [RIGHT, *WRONG]),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1, f"mypy did not come to a verdict: {done.stdout}{done.stderr}"
    found: Findings = defaultdict(set)
    for line in done.stdout.splitlines():
        if ": note: " in line:
            continue
        error = MYPY_LINE.match(line)
        assert error is not None, f"mypy said something else: {line}"
        found[Path(error["file"]).name, int(error["line"])].add(error["code"])
    return dict(found)


@pytest.fixture(scope="module")
def by_pyright(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Run pyright strictly over the folder that the project's own run leaves out."""
    folder = tmp_path_factory.mktemp("pyright").resolve()
    config = {
        "include": [os.path.relpath(path, folder) for path in (RIGHT, HERE / "wrong")],
        "exclude": ["**/__pycache__"],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [
        sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1, f"pyright did not come to a verdict: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(WRONG) + 1
    found: Findings = defaultdict(set)
    for each in report["generalDiagnostics"]:
        found[Path(each["file"]).name, each["range"]["start"]["line"] + 1].add(each.get("rule", each["severity"]))
    return dict(found)


def test_every_mark_can_be_read_and_every_file_has_some() -> None:
    for file in WRONG:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if "# wrong" in line]
        assert lines, file.name
        assert [line for line in lines if not MARK.search(line)] == []


def test_no_marked_line_passes_both_checkers() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in WRONG)

    assert "# wrong: - | -" not in text


def test_mypy_reports_exactly_the_marked_lines(by_mypy: Findings) -> None:
    assert differences(marked("mypy"), by_mypy) == []


def test_pyright_reports_exactly_the_marked_lines(by_pyright: Findings) -> None:
    assert differences(marked("pyright"), by_pyright) == []


def test_the_right_twin_is_clean(by_mypy: Findings, by_pyright: Findings) -> None:
    assert [place for place in (*by_mypy, *by_pyright) if place[0] == RIGHT.name] == []


def test_an_unmarked_error_and_an_unmet_mark_are_both_noticed() -> None:
    promised: Findings = {("a.py", 1): {"arg-type"}, ("a.py", 2): {"misc"}}

    found = differences(promised, {("a.py", 1): {"arg-type"}, ("b.py", 3): {"call-arg"}})

    assert [line.partition(" ")[0] for line in found] == ["a.py:2:", "b.py:3:"]
