"""The bank's process: it opens its book, says where it listens, and serves until a signal."""

import socket
import sys
from pathlib import Path

import uvicorn

from worker.bank.app import make_app
from worker.bank.book import Book
from worker.bank.connections import Connections
from worker.bank.rules import Bank, Clock


def serve(book_path: Path, *, host: str, port: int, key_lifetime_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT; port 0 takes a free one. Raises BookError, and OSError if it cannot listen."""
    book = Book.open(book_path)
    try:
        bank = Bank(book, Clock(behind=book.last_at), key_lifetime_seconds=key_lifetime_seconds)
        with socket.create_server((host, port)) as listening:
            address = listening.getsockname()
            sys.stdout.write(f"The bank listens at http://{address[0]}:{address[1]}; its book is {book_path}.\n")
            sys.stdout.flush()
            config = uvicorn.Config(
                make_app(bank), http=Connections, loop="asyncio", log_level="warning", timeout_graceful_shutdown=2
            )
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        book.close()
