"""Connections that can be hung up from inside: what a web framework never lets an answer do."""

import asyncio
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_OPEN: Final[dict[tuple[str, int], asyncio.Transport]] = {}


class Connections(H11Protocol):
    """uvicorn's protocol, with its open connections known by the caller's address."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember the connection."""
        super().connection_made(transport)
        if self.client is not None:
            _OPEN[self.client] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self.client is not None:
            _OPEN.pop(self.client, None)
        super().connection_lost(exc)


class HangUp(Response):
    """An ASGI answer: the first half of `reply`, or nothing, and the end of the connection."""

    def __init__(self, reply: bytes = b"") -> None:
        """Send the first half of this; promise the whole of it."""
        super().__init__()
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hang up."""
        del receive
        transport = _OPEN[tuple(scope["client"])]
        if self._reply:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(self._reply)).encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": self._reply[: len(self._reply) // 2], "more_body": True})
            transport.close()
        else:
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
