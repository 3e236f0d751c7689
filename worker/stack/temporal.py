"""The Temporal dev server: the real server with its database in one file."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from contracts.saga import SEARCH_KEYWORDS, SEARCH_TOOLS
from worker.stack.binaries import temporal_binary
from worker.stack.processes import ProcessRecord, StackError, log_tail, spawn, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMESPACE = "default"
HOST = "127.0.0.1"
DEFAULT_PORT: Final = 7233
DEFAULT_UI_PORT: Final = 8233
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 10.0
START_ATTEMPTS_MAX = 5

SEARCH_ATTRIBUTES: Mapping[str, str] = {**dict.fromkeys(SEARCH_KEYWORDS, "Keyword"), SEARCH_TOOLS: "KeywordList"}

DYNAMIC_CONFIG: Mapping[str, object] = {
    # The dev server hands tasks over in steps of 50 ms unless its transfer queue may be polled more often.
    "history.transferProcessorMaxPollRPS": 2000,
    # From the fourth try of a workflow task on, the server waits 5, 10, 20 ... seconds longer for a worker that may be
    # dead, by default up to 10 minutes: a saga whose workers die again and again would be put off for that long.
    "history.workflowTaskRetryMaxInterval": "10s",
}


@dataclass(slots=True)
class TemporalServer:
    """One Temporal server on one database file.

    Ports that are 0 are chosen free at the first start and kept for later ones, so that clients find it again.
    """

    database: Path
    log: Path
    dies_with_parent: bool
    port: int = 0
    ui_port: int | None = None  # None: no Web UI
    process: ProcessRecord | None = None
    http_port: int = 0
    _fixed: bool = field(init=False)

    def __post_init__(self) -> None:
        self._fixed = self.port != 0

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"{HOST}:{self.port}"

    @property
    def ui_url(self) -> str | None:
        """Where the Web UI answers, if there is one."""
        return None if self.ui_port is None else f"http://{HOST}:{self.ui_port}"

    def start(self) -> None:
        """Have the server running and ready, its namespace and search attributes registered."""
        self.begin_start()
        self.finish_start()

    def begin_start(self) -> None:
        """Start the server without waiting until it is ready."""
        if self.process is not None and self.process.is_alive():
            return
        self._choose_ports()
        self.process = spawn(
            self._command(), log=self.log, dies_with_parent=signal.SIGKILL if self.dies_with_parent else None
        )

    def finish_start(self) -> None:
        """Wait until the server answers; choose other ports if somebody took one in the meantime."""
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            process = self._running()
            if wait_until(lambda: self._answers() or not process.is_alive(), timeout_seconds=START_TIMEOUT_SECONDS):  # noqa: B023
                if process.is_alive():
                    return
                if not self._fixed and attempt < START_ATTEMPTS_MAX:
                    self.port = self.http_port = 0
                    self.begin_start()
                    continue
            break
        raise StackError(f"The Temporal server did not start; the end of {self.log}:\n{log_tail(self.log)}")

    def stop(self) -> None:
        """End the server in order. Do nothing if it does not run."""
        if self.process is not None:
            self.process.stop(signal.SIGTERM, timeout_seconds=STOP_TIMEOUT_SECONDS)
            self.process = None

    def kill(self) -> None:
        """Let the server die at once: SIGKILL."""
        self._running().kill_with_children()
        self.process = None

    def is_polled(self, task_queue: str, *, since: datetime) -> bool:
        """True if a worker has asked this task queue for workflow tasks since then."""
        path = f"/api/v1/namespaces/{NAMESPACE}/task-queues/{quote(task_queue, safe='')}?taskQueueType=1"
        answer = self._get(path) or {}
        return any(datetime.fromisoformat(poller["lastAccessTime"]) >= since for poller in answer.get("pollers", []))

    def _running(self) -> ProcessRecord:
        if self.process is None:
            raise StackError("The Temporal server does not run; start it first.")
        return self.process

    def _choose_ports(self) -> None:
        wanted = {"Temporal": self.port, "its Web UI": self.ui_port or 0}
        for what, port in wanted.items():
            if self._fixed and port and not is_free(port):
                raise StackError(
                    f"Port {port} for {what} is in use by another program; stop that, or choose other ports with "
                    "BACKSTAY_TEMPORAL_PORT and BACKSTAY_TEMPORAL_UI_PORT.",
                )
        self.port = self.port or free_port()
        self.http_port = self.http_port or free_port()
        if self.ui_port == 0:
            self.ui_port = free_port()

    def _command(self) -> list[str]:
        attributes = [f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()]
        config = [f"--dynamic-config-value={name}={json.dumps(value)}" for name, value in DYNAMIC_CONFIG.items()]
        return [
            *(str(temporal_binary()), "server", "start-dev", "--log-level", "warn", "--ip", HOST),
            *("--port", str(self.port), "--http-port", str(self.http_port), "--db-filename", str(self.database)),
            *(["--headless"] if self.ui_port is None else ["--ui-port", str(self.ui_port)]),
            *attributes,
            *config,
        ]

    def _answers(self) -> bool:
        return self._get(f"/api/v1/namespaces/{NAMESPACE}") is not None

    def _get(self, path: str) -> dict[str, Any] | None:
        """Ask the server's HTTP API; None if it does not answer with success."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return json.loads(body) if response.status == http.HTTPStatus.OK else None


def is_free(port: int) -> bool:
    """True if nobody listens on this port here."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
