"""The four packages are ours, or no process starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import worker.identity
from worker.identity import PACKAGES, IdentityError, check_identity

REPOSITORY = Path(worker.identity.__file__).resolve().parents[1]


def test_our_own_packages_are_accepted() -> None:
    check_identity()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_stranger_of_the_same_name_is_named_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()

    finished = _check(path=[tmp_path, REPOSITORY], load=REPOSITORY / "worker" / "identity.py")

    assert finished.returncode == 1
    assert f"{name} is {tmp_path / name}, not {REPOSITORY / name}" in finished.stderr
    assert "environment of its own" in finished.stderr


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").touch()
    identity = tmp_path / "worker" / "identity.py"
    identity.write_text((REPOSITORY / "worker" / "identity.py").read_text())

    finished = _check(path=[tmp_path], load=identity)

    assert finished.returncode == 1
    assert "contracts is missing" in finished.stderr


def test_packages_side_by_side_in_another_place_are_accepted_as_a_wheel_puts_them(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    identity = tmp_path / "worker" / "identity.py"
    identity.write_text((REPOSITORY / "worker" / "identity.py").read_text())

    finished = _check(path=[tmp_path], load=identity)

    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_namespace_package_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without __init__.py, such as somebody's `contracts/`, has no origin."""
    monkeypatch.setattr(worker.identity, "PACKAGES", ("tests",))

    with pytest.raises(IdentityError, match="tests is missing"):
        check_identity()


def _check(*, path: list[Path], load: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of the check in a bare interpreter that finds packages only on this path."""
    program = f"""
import importlib.util, sys
sys.path[:0] = {[str(entry) for entry in path]!r}
spec = importlib.util.spec_from_file_location("identity", {str(load)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    module.check_identity()
except module.IdentityError as error:
    sys.exit(str(error))
"""
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
