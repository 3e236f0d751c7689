"""Change the core in every small way and see which changes no test notices: `make mutants`.

mutmut makes the changes, one at a time, in a copy of the tree, and runs the tests that come by the changed function.
`python -m tests.mutants keys` does one group; the others are reducer and barrier. It says which survived, and ends
with 1 where fewer than nine in ten were noticed; `docs/mutants.md` says why those that are left are. `--sample` tries
one in five.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activities import migrate
from tests.conftest import KEPT_STACK, TEMPLATE
from worker.stack import LocalStack

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("activities", "contracts", "worker", "workflows")
FILES: Final = ("examples", "docs", "README.md", "CHANGELOG.md")
NOTICED_PERCENT_MIN: Final = 90
NICENESS: Final = 10
SAMPLE: Final = ("*__mutmut_*3", "*__mutmut_*7")
MISSED: Final = (0, 33)
"""Exit codes of mutmut for a change that no test noticed, or that none came by."""


@dataclass(frozen=True)
class Group:
    """What is changed, and the tests that should notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: str = ""
    """Words in the names of tests that take too long to be run a thousand times."""


GROUPS: Final = {
    "keys": Group(
        ("contracts/keys.py",),
        ("tests/unit/test_keys.py", "tests/unit/test_golden_keys.py"),
    ),
    "reducer": Group(
        tuple(f"workflows/{name}.py" for name in ("reducer", "forward", "backward", "moves")),
        tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "unit").glob("test_reducer*.py"))),
    ),
    "barrier": Group(
        ("activities/barrier.py",),
        ("tests/integration/test_barrier_told.py", "tests/integration/test_barrier.py"),
        without="unseen or deadlock or in_time",
    ),
}


def config(group: Group) -> str:
    """What mutmut reads at the end of pyproject.toml."""
    which = ["-k", f"not ({group.without})"] if group.without else []
    values = {
        "source_paths": list(SOURCES),
        "only_mutate": list(group.sources),
        "pytest_add_cli_args_test_selection": list(group.tests),
        "pytest_add_cli_args": ["-m", "not slow", "-p", "no:cacheprovider", *which],
        "also_copy": list(FILES),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(
        ["", "[tool.mutmut]", *lines, "use_git_change_detection = false", "track_dependencies = false", ""]
    )


def run(group: Group, root: Path, kept: Path, patterns: Sequence[str]) -> dict[str, int]:
    """Try changes in a copy of the tree, all without patterns; how the tests ended, by the name of the change."""
    for name in (*SOURCES, "tests", *FILES, "pyproject.toml"):
        source, target = ROOT / name, root / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    with (root / "pyproject.toml").open("a") as file:
        file.write(config(group))
    mutmut = [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *patterns]
    subprocess.run(mutmut, cwd=root, check=True, env=os.environ | {KEPT_STACK: str(kept)})
    results: dict[str, int | None] = {}
    for path in group.sources:
        results |= json.loads((root / "mutants" / f"{path}.meta").read_text())["exit_code_by_key"]
    return {change: code for change, code in results.items() if code is not None}


def main(arguments: Sequence[str]) -> int:
    """Do the groups and print what survived; 1 when too much did."""
    names = [argument for argument in arguments if argument != "--sample"]
    patterns = SAMPLE if "--sample" in arguments else ()
    poor = False
    os.nice(NICENESS)
    with LocalStack.temporary(temporal=False, fsync=False) as stack:
        migrate.upgrade(stack.create_database(TEMPLATE))
        for name in names or GROUPS:
            with tempfile.TemporaryDirectory() as directory:
                results = run(GROUPS[name], Path(directory), stack.directory, patterns)
            missed = sorted(change for change, code in results.items() if code in MISSED)
            percent = 100 * (len(results) - len(missed)) / len(results)
            poor |= percent < NOTICED_PERCENT_MIN
            report = [
                *missed,
                f"MUTANTS {name} noticed={len(results) - len(missed)} of={len(results)} ({percent:.1f} %)",
            ]
            print("\n".join(report), flush=True)  # noqa: T201 - its report
    return int(poor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
