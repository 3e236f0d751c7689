"""The keeper: one small process that ends a temporary stack when its owner is gone, however it went.

It reads from a pipe that only the owner holds open. When that ends (exit, SIGKILL, a crash), it ends the servers and
removes their data. It needs nothing from the system but pipes, so it also works where the kernel cannot be asked to
signal children (macOS) and where the owner started the servers from a thread that ended.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worker.stack.layout import backstay_root, make_directory
from worker.stack.processes import ProcessRecord
from worker.stack.state import write_whole

RUN_PREFIX = "run-"
RECORDS_FILE = "processes.json"
OWNER = "owner"
YOUNG_SECONDS = 60.0  # a directory without an owner may still be in the making
POSTGRES_TIMEOUT_SECONDS = 10.0


def make_run_directory() -> Path:
    """Make a directory for one temporary stack that this process owns; first bury those whose owners are gone."""
    root = backstay_root()
    for directory in root.glob(f"{RUN_PREFIX}*"):
        if is_abandoned(directory):
            bury(directory)
    directory = root / f"{RUN_PREFIX}{secrets.token_hex(4)}"
    make_directory(directory)
    write_records(directory, {OWNER: ProcessRecord.of(os.getpid())})
    return directory


def write_records(directory: Path, records: dict[str, ProcessRecord]) -> None:
    """Note who owns a temporary stack and which servers it has."""
    text = json.dumps({name: asdict(record) for name, record in records.items()})
    write_whole(directory / RECORDS_FILE, text)


def read_records(directory: Path) -> dict[str, ProcessRecord]:
    """Read what write_records() noted; nothing if it is not there."""
    try:
        data: dict[str, dict[str, Any]] = json.loads((directory / RECORDS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {name: ProcessRecord(**record) for name, record in data.items()}


def is_abandoned(directory: Path) -> bool:
    """True if the owner of this temporary stack is gone."""
    records = read_records(directory)
    if OWNER in records:
        return not records[OWNER].is_alive()
    try:
        return time.time() - directory.stat().st_mtime > YOUNG_SECONDS
    except FileNotFoundError:
        return False


def bury(directory: Path) -> None:
    """End the servers of a temporary stack and remove its data. Harmless if that has been done."""
    for name, record in read_records(directory).items():
        if name == "postgres":
            record.stop(signal.SIGQUIT, timeout_seconds=POSTGRES_TIMEOUT_SECONDS)  # at once: its data goes next
        elif name != OWNER:
            record.kill_with_children()
    shutil.rmtree(directory, ignore_errors=True)


def start_keeper(directory: Path) -> subprocess.Popen[bytes]:
    """Start the keeper of one temporary stack; it acts when this process is gone, and is killed when not needed."""
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-c", "from worker.stack.keeper import main; main()", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parents[2],
        start_new_session=True,
    )


def main() -> None:
    """Wait for the end of the owner, then bury its stack."""
    sys.stdin.buffer.read()
    bury(Path(sys.argv[1]))
