"""The state file of `make up`: what runs, under which ids, and how to reach it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from worker.stack.processes import ProcessRecord

if TYPE_CHECKING:
    from pathlib import Path

STATE_FILE = "state.json"


@dataclass(slots=True)
class StackState:
    """What `up` started. Processes are named postgres, temporal, bank and worker; a dead one stays until up or down."""

    database_url: str = ""
    temporal_address: str = ""
    temporal_http_port: int = 0
    ui_url: str | None = None
    bank_url: str = ""
    processes: dict[str, ProcessRecord] = field(default_factory=dict[str, ProcessRecord])

    def is_running(self, name: str) -> bool:
        """True while this process, started by us, runs."""
        record = self.processes.get(name)
        return record is not None and record.is_alive()

    @classmethod
    def load(cls, directory: Path) -> StackState | None:
        """Read what `up` left in this directory; None if there is nothing, or nothing readable."""
        try:
            data: dict[str, Any] = json.loads((directory / STATE_FILE).read_text())
            processes = {name: ProcessRecord(**record) for name, record in data.pop("processes").items()}
            return cls(**data, processes=processes)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def save(self, directory: Path) -> None:
        """Replace the state file, whole or not at all."""
        write_whole(directory / STATE_FILE, json.dumps(asdict(self), indent=2) + "\n")


def write_whole(file: Path, text: str) -> None:
    """Replace a file so that a reader, or the next start after a crash, sees the old or the new text."""
    scratch = file.with_suffix(".new")
    scratch.write_text(text)
    scratch.chmod(0o600)
    os.replace(scratch, file)  # noqa: PTH105 - Path.replace says the same less clearly
