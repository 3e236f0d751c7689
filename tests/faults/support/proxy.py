"""A wire to PostgreSQL that breaks right after a commit: done, and nobody is told.

It stands between a worker and the server on a Unix socket of its own. When the server says that a transaction
committed in which a mark was written, the answer is thrown away and both sides lose the connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

COMMITTED: Final = b"COMMIT\x00"
"""What the server's CommandComplete ends with."""
PORT: Final = 5432
_CHUNK_BYTES: Final = 65_536


class CuttingProxy:
    """Breaks the wire once for each mark."""

    def __init__(self, database_url: str, directory: Path) -> None:
        """Listen in `directory` for what is meant for the server of `database_url`."""
        parts = urlsplit(database_url)
        self._server = Path(parse_qs(parts.query)["host"][0]) / f".s.PGSQL.{PORT}"
        self._socket = directory / f".s.PGSQL.{PORT}"
        self.url = parts._replace(query=f"host={quote(str(directory), safe='')}").geturl()
        self.marks: dict[bytes, int] = {}
        self._wires: set[asyncio.Task[None]] = set()

    def cut_after(self, mark: str) -> None:
        """Break the wire after the next commit of a transaction in which this text was sent."""
        self.marks[mark.encode()] = 0

    def was_cut(self, mark: str) -> bool:
        """True once it was broken for this mark."""
        return self.marks[mark.encode()] > 0

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["CuttingProxy"]:
        """Listen until the block ends."""
        server = await asyncio.start_unix_server(self._accept, str(self._socket))
        try:
            yield self
        finally:
            server.close()
            for wire in self._wires:
                wire.cancel()
            await asyncio.gather(*self._wires, return_exceptions=True)
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = asyncio.current_task()
        assert wire is not None
        self._wires.add(wire)
        wire.add_done_callback(self._wires.discard)
        from_server, to_server = await asyncio.open_unix_connection(str(self._server))
        sent = bytearray()
        ways = {
            asyncio.create_task(self._forth(reader, to_server, sent)),
            asyncio.create_task(self._back(from_server, writer, sent)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, to_server):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytearray) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            sent.extend(chunk)
            writer.write(chunk)
            await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytearray) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if COMMITTED in chunk:
                for mark, count in self.marks.items():
                    if count == 0 and mark in sent:
                        self.marks[mark] += 1
                        return
                sent.clear()
            writer.write(chunk)
            await writer.drain()
