"""The bank's book: append-only, one JSON line per entry, on the disk before anybody is told.

A killed bank comes up with the same book. A last line without its end was never answered, so it is cut off.
"""

import fcntl
import os
from collections import defaultdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from worker.bank.wire import Currency, Kind, Wire


class Event(StrEnum):
    """What an entry says of its key."""

    ACCEPTED = "ACCEPTED"
    LANDED = "LANDED"
    DECLINED = "DECLINED"
    FENCED = "FENCED"


class Order(Wire):
    """An order, as the book keeps it. No amount: all that is left of the charge."""

    kind: Kind
    party: str
    account_id: str | None = None
    amount_cents: int | None
    currency: Currency
    reference: str
    client_reference: str = ""


class Entry(Wire):
    """One line. Only LANDED moves money; `order` is absent in FENCED, `due_at` is there in ACCEPTED alone."""

    number: int
    at: datetime
    event: Event
    key: str
    order: Order | None = None
    moved_cents: int = 0
    due_at: datetime | None = None


class BookError(RuntimeError):
    """The book cannot be used; the text says why."""


class Book:
    """The entries in memory and on disk; one process at a time."""

    def __init__(self, file: int, entries: list[Entry]) -> None:
        """Go on after `entries`; `open` is how a book is opened."""
        self._file = file
        self._entries: list[Entry] = []
        self._pending: dict[str, Entry] = {}
        self._by_key: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            self._add(entry)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the book, or begin one. Raises BookError if it is in use or damaged."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise BookError(f"{path} is in use by another bank; end that one, or name another book.") from error
        try:
            entries, length_bytes = _read(path)
        except BookError:
            os.close(file)
            raise
        os.ftruncate(file, length_bytes)
        os.fsync(file)
        _sync_directory(path.parent)
        return cls(file, entries)

    def close(self) -> None:
        """Let the book go."""
        os.close(self._file)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def of_key(self, key: str) -> tuple[Entry, ...]:
        """List what the book says of a key, oldest first."""
        return tuple(self._by_key.get(key, ()))

    @property
    def pending(self) -> tuple[Entry, ...]:
        """List what was accepted and has come to nothing yet, oldest first."""
        return tuple(self._pending.values())

    @property
    def last_at(self) -> datetime | None:
        """When the last entry was made; None in an empty book."""
        return self._entries[-1].at if self._entries else None

    def append(
        self,
        event: Event,
        key: str,
        *,
        at: datetime,
        order: Order | None = None,
        moved_cents: int = 0,
        due_at: datetime | None = None,
    ) -> Entry:
        """Write one entry; it is on the disk when this returns."""
        number = len(self._entries) + 1
        entry = Entry(number=number, at=at, event=event, key=key, order=order, moved_cents=moved_cents, due_at=due_at)
        line = entry.model_dump_json().encode() + b"\n"
        if not _is_written(self._file, line):
            os._exit(70)  # nobody knows what is on the disk; the next start reads it, going on would write behind it
        self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._by_key[entry.key].append(entry)
        self._pending.pop(entry.key, None)
        if entry.event is Event.ACCEPTED:
            self._pending[entry.key] = entry


def _is_written(file: int, line: bytes) -> bool:
    try:
        whole = os.write(file, line) == len(line)
        os.fsync(file)
    except OSError:
        return False
    return whole


def _read(path: Path) -> tuple[list[Entry], int]:
    lines = path.read_bytes().split(b"\n")[:-1]
    entries: list[Entry] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            raise BookError(f"{path}, line {number}: is no entry; a book is never edited.") from error
        if entry.number != number:
            raise BookError(f"{path}, line {number}: has number {entry.number}; an entry is missing or was added.")
        entries.append(entry)
    return entries, sum(len(line) + 1 for line in lines)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
