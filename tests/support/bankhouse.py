"""A bank of one test: a real process on loopback, killed and started again by its id, judged by its own book."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from collections.abc import Generator

REPOSITORY = Path(__file__).resolve().parents[2]
KEY_LIFETIME_SECONDS = 86_400
BOUND_SECONDS = 20


class BankHouse:
    """One bank, its address and its book."""

    def __init__(self, book: Path, *, key_lifetime_seconds: float = KEY_LIFETIME_SECONDS) -> None:
        """Start it on a free port."""
        self.book = book
        self._key_lifetime_seconds = key_lifetime_seconds
        self.url = ""
        self._process = self._start(0)

    @property
    def port(self) -> int:
        """Where it listens, also after it was started again."""
        return int(self.url.rpartition(":")[2])

    def entries(self) -> list[dict[str, Any]]:
        """Read the book as it lies on the disk: what really happened."""
        return [json.loads(line) for line in self.book.read_bytes().split(b"\n")[:-1]]

    def moved(self, kind: str, party: str | None = None) -> list[int]:
        """List the cents of each movement of a kind, oldest first."""
        return [
            entry["moved_cents"]
            for entry in self.entries()
            if entry["event"] == "LANDED"
            and entry["order"]["kind"] == kind
            and party in (None, entry["order"]["party"])
        ]

    def switch(self, name: str, times: int | None = 1, **details: Any) -> None:  # noqa: ANN401
        """Have something go wrong for the next requests; None: until it is switched off with 0."""
        self._post("/switches", {name: {"times": times, **details}})

    async def outlast(self, milliseconds: int) -> None:
        """Come back when whatever was on its way to the bank for so long has come: what was sent behind it landed."""
        key = f"outlast-{uuid.uuid4().hex}"
        self.switch("arrives_late", milliseconds=milliseconds, on=["payouts"])
        order = {"account_id": "B99999999", "payee_id": "P00000009", "amount_cents": 1, "currency": "EUR"}
        with suppress(httpx2.TransportError):
            self.order("payouts", key, order)
        async with asyncio.timeout(BOUND_SECONDS):
            while not any(entry["key"] == key for entry in self.entries()):  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.02)

    def order(self, door: str, key: str, body: dict[str, Any]) -> None:
        """Order something as another customer would. Raises httpx2.HTTPError."""
        with httpx2.Client(trust_env=False, verify=False) as client:
            headers = {"Idempotency-Key": key}
            client.post(f"{self.url}/{door}", json=body, headers=headers).raise_for_status()

    def switches(self) -> dict[str, Any]:
        """What is on."""
        with httpx2.Client(trust_env=False, verify=False) as client:
            found: dict[str, Any] = client.get(f"{self.url}/switches").json()
        return found

    def advance(self, seconds: int) -> None:
        """Move the bank's clock forward."""
        self._post("/clock", {"advance_seconds": seconds})

    def command(self, port: int) -> list[str]:
        """What starts it."""
        book = ("--port", str(port), "--book", str(self.book))
        return [sys.executable, "-m", "worker.bank", *book, "--key-lifetime-seconds", str(self._key_lifetime_seconds)]

    @property
    def is_up(self) -> bool:
        """True while its process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self._process.send_signal(signal.SIGKILL)
        self._wait()

    def start_again(self) -> None:
        """Start it on the same book and port."""
        self._process = self._start(self.port)

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
        self._wait()

    def _wait(self) -> None:
        self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        with httpx2.Client(trust_env=False, verify=False) as client:
            client.post(f"{self.url}{path}", json=body).raise_for_status()

    def _start(self, port: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(port),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "listens at " in said, said
        self.url = said.split("listens at ")[1].partition(";")[0]
        return process


@contextmanager
def open_bank(directory: Path, *, key_lifetime_seconds: float = KEY_LIFETIME_SECONDS) -> Generator[BankHouse]:
    """Run a bank for as long as the block does."""
    house = BankHouse(directory / "book.jsonl", key_lifetime_seconds=key_lifetime_seconds)
    try:
        yield house
    finally:
        house.close()
