"""Put each bug of the table into a copy of the tree and see which layers catch it: `python -m tests.model.sensitivity`.

A layer catches a bug when its command fails. Every layer passes on the tree as it is; `make test` shows that.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.model.bugs import BUGS, Bug, Layer

ROOT = Path(__file__).parents[2]
FOLDERS = ("activities", "contracts", "worker", "workflows", "tests", "examples")
TIMEOUT_SECONDS = 540


def put_in(bug: Bug, root: Path) -> None:
    """Copy the tree to `root` with the bug in it."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root / name)
    for patch in bug.patches:
        path = root / patch.path
        text = path.read_text()
        if text.count(patch.old) != 1:
            raise AssertionError(
                f"{bug.name}: the text to replace stands {text.count(patch.old)} times in {patch.path}"
            )
        path.write_text(text.replace(patch.old, patch.new))


def caught(bug: Bug, layer: Layer, root: Path) -> bool:
    """Run a layer on a copy; True when it fails."""
    command = {
        "model": ["-m", "tests.model", "--quick"],
        "simulator": ["-m", "tests.model.simulation", "--seed", "1", "--runs", "600"],
    }.get(layer, ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *bug.tests])
    run = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    reported = (
        "MODEL " in run.stdout if layer == "model" else "SIMULATION " in run.stdout if layer == "simulator" else True
    )
    if run.returncode not in (0, 1) or not reported:
        raise AssertionError(f"{bug.name}: {layer} could not run: {run.stdout[-2_000:]}{run.stderr[-2_000:]}")
    return run.returncode == 1


def layers_that_catch(bug: Bug) -> list[Layer]:
    """Which of the layers that should catch a bug do."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        put_in(bug, root)
        return [layer for layer in bug.caught_by if caught(bug, layer, root)]


def table() -> str:
    """The table of the documentation."""
    rows = [f"| {bug.name} | {bug.origin} | {', '.join(bug.caught_by)} |" for bug in BUGS]
    return "\n".join(["| what was taken out | where it is from | caught by |", "|---|---|---|", *rows])


def main(names: list[str]) -> int:
    """Print a line for each bug; return 1 when a layer misses one that it has to catch."""
    missed = 0
    for bug in BUGS:
        if not all(name in bug.name for name in names):
            continue
        found = layers_that_catch(bug)
        missed += found != list(bug.caught_by)
        print(f"{', '.join(found) or 'NOT CAUGHT':<20} {bug.name} ({bug.origin})", flush=True)  # noqa: T201 - its report
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
