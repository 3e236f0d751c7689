"""The wire to the bank in somebody else's hands: it delays, doubles and overtakes requests, and swaps answers.

The bank behind it stays honest, so its book says what really happened.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

HOST: Final = "127.0.0.1"
MESSAGE_BYTES_MAX: Final = 65_536
Swap = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""Write what the client hears instead of the bank's true answer."""


@dataclass
class Spoiling:
    """What happens to the next answers at a door; a request that is not passed on never reaches the bank."""

    door: str
    swap: Swap
    times: int | None
    passes: bool


@dataclass(frozen=True)
class Weather:
    """How each message fares, drawn from one seed."""

    random: random.Random
    delay_seconds_max: float = 0.4
    copies_max: int = 2
    lost_rate: float = 0.15

    def delay(self) -> float:
        """How long a message is on its way."""
        return self.random.uniform(0, self.delay_seconds_max)

    def copies(self) -> int:
        """How often a request arrives."""
        return 1 + self.random.randint(0, self.copies_max)

    def is_lost(self) -> bool:
        """True when an answer does not arrive."""
        return self.random.random() < self.lost_rate


class Wire:
    """A port that leads to the bank."""

    def __init__(self) -> None:
        """Nothing is spoilt, and the weather is fine."""
        self.weather: Weather | None = None
        self.passed = 0
        self._spoilings: list[Spoiling] = []
        self._port = 0
        self._under_way: set[asyncio.Task[bytes]] = set()

    def lead_to(self, port: int) -> str:
        """Lead to this port; the wire's own address is returned."""
        self._port = port
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def spoil(self, swap: Swap, *doors: str, times: int | None = 1, passes: bool = True) -> None:
        """Swap the next answers at each of the doors; None: until `mend`."""
        self._spoilings += [Spoiling(door, swap, times, passes) for door in doors]

    def mend(self) -> None:
        """Spoil nothing more."""
        self._spoilings.clear()
        self.weather = None

    async def quiet(self) -> None:
        """Come back when nothing is on its way to the bank."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hang up."""
        self._server.close()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            asked = await read_request(reader)
            spoiling = self._spoiling_of(asked)
            answer = await self._ask(asked) if spoiling is None or spoiling.passes else b""
            if spoiling is not None:
                await spoiling.swap(writer, answer)
            elif self.weather is None or not self.weather.is_lost():
                writer.write(answer)
                await writer.drain()
        writer.close()

    def _spoiling_of(self, asked: bytes) -> Spoiling | None:
        path = asked.split(b" ", 2)[1].decode()
        spoiling = next((one for one in self._spoilings if path.startswith(one.door) and one.times != 0), None)
        if spoiling is not None and spoiling.times is not None:
            spoiling.times -= 1
        return spoiling

    async def _ask(self, asked: bytes) -> bytes:
        """Pass a request on, as often as the weather says; the first answer that comes back counts."""
        if self.weather is None:
            return await self._pass_on(asked, 0, 0)
        copies = {
            asyncio.create_task(self._pass_on(asked, self.weather.delay(), self.weather.delay()))
            for _ in range(self.weather.copies())
        }
        for copy in copies:
            self._under_way.add(copy)
            copy.add_done_callback(self._under_way.discard)
        done, _ = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def _pass_on(self, asked: bytes, there_seconds: float, back_seconds: float) -> bytes:
        await asyncio.sleep(there_seconds)
        self.passed += 1
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(asked)
        answer = await reader.read()
        writer.close()
        await asyncio.sleep(back_seconds)
        return answer


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request. Raises IncompleteReadError."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return head + await reader.readexactly(min(int(length.split(b":")[1]), MESSAGE_BYTES_MAX))


async def hang_up(_: asyncio.StreamWriter, __: bytes) -> None:
    """Answer nothing."""


def say(status: int, body: bytes = b"", *headers: str) -> Swap:
    """Answer this instead."""
    head = "\r\n".join([f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *headers, "", ""]).encode()

    async def swap(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(head + body)
        await writer.drain()

    return swap


def repeat(first: bytes, more: Callable[[bytes], bytes], pause_seconds: float = 0) -> Swap:
    """Answer something that never ends; `more` is made of the true answer's body."""

    async def swap(writer: asyncio.StreamWriter, answer: bytes) -> None:
        piece = more(answer.partition(b"\r\n\r\n")[2])
        writer.write(first)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return swap
