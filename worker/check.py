"""The check: the invariants of DESIGN.md section 9, from the tables alone, in one snapshot that nothing can change.

The statements are plain SQL in `activities/invariants.sql`, so that an auditor can run them with psql. Each block
begins with `-- name: ...` and selects the rows that break the invariant; a line `-- not yet: ...` names one that a
later version will check, and is never counted as fine.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

import activities
from activities.database import ROLE_READONLY
from contracts.base import JsonObject, Record
from contracts.envelope import Envelope, Meta, Status, error_envelope
from contracts.errors import Phase, SagaError
from contracts.reasons import Reason
from worker.answers import now_text

INVARIANTS: Final = Path(activities.__file__ or "").parent / "invariants.sql"
ROWS_SHOWN_MAX: Final = 20
STATEMENT_SECONDS_MAX: Final = 60
_NAME: Final = "-- name:"
_NOT_YET: Final = "-- not yet:"


@dataclass(frozen=True)
class Invariant:
    """Something that must always hold; `statement` selects what breaks it."""

    name: str
    statement: str


class Checked(Record):
    """What one invariant's statement found; at most twenty rows are shown."""

    name: str
    ok: bool
    violation_count: int = 0
    violations: tuple[JsonObject, ...] = ()


class Report(Record):
    """What a check found."""

    ok: bool
    checks: tuple[Checked, ...]
    not_yet: tuple[str, ...] = ()


def parse(text: str) -> tuple[tuple[Invariant, ...], tuple[str, ...]]:
    """Split the file into invariants and what is not checked yet. Raises ValueError on a block without a statement."""
    invariants: list[Invariant] = []
    not_yet: list[str] = []
    name: str | None = None
    lines: list[str] = []

    def close() -> None:
        statement = "\n".join(lines).strip().rstrip(";")
        if name is not None:
            if not any(line.strip() and not line.lstrip().startswith("--") for line in lines):
                raise ValueError(f"the invariant {name!r} has no statement")
            invariants.append(Invariant(name, statement))
        lines.clear()

    for line in text.splitlines():
        if line.startswith(_NAME):
            close()
            name = line.removeprefix(_NAME).strip()
        elif line.startswith(_NOT_YET):
            not_yet.append(line.removeprefix(_NOT_YET).strip())
        else:
            lines.append(line)
    close()
    return tuple(invariants), tuple(not_yet)


async def check(database_url: str, file: Path = INVARIANTS) -> Report:
    """Run every invariant in one read-only snapshot. Raises SagaError(DEPENDENCY_DOWN): the database did not answer."""
    invariants, not_yet = parse(await asyncio.to_thread(file.read_text, encoding="utf-8"))
    options = f"-c role={ROLE_READONLY} -c statement_timeout={STATEMENT_SECONDS_MAX * 1000}"
    try:
        async with await psycopg.AsyncConnection[dict[str, Any]].connect(
            database_url, row_factory=dict_row, options=options, application_name="backstay check", connect_timeout=5
        ) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            checks = [await _checked(connection, invariant) for invariant in invariants]
    except psycopg.Error as error:
        raise SagaError(
            Reason.DEPENDENCY_DOWN,
            f"The check could not run ({type(error).__name__}: {str(error).splitlines()[0]}); run it again.",
            details={"error": type(error).__name__},
        ) from error
    return Report(ok=all(found.ok for found in checks), checks=tuple(checks), not_yet=not_yet)


def envelope_of(report: Report) -> Envelope:
    """Answer with a report: an error when anything is violated."""
    data = report.model_dump(mode="json")
    meta = Meta(timestamp=now_text())
    if report.ok:
        return Envelope(status_code=200, status=Status.SUCCESS, data=data, meta=meta)
    violated = [found.name for found in report.checks if not found.ok]
    error = SagaError(
        Reason.MISMATCH,
        f"{len(violated)} of {len(report.checks)} invariants are violated: {'; '.join(violated)}.",
        details={"violated": violated},
        phase=Phase.VERIFICATION,
    )
    return error_envelope(error.info, meta).model_copy(update={"data": data})


async def _checked(connection: psycopg.AsyncConnection[dict[str, Any]], invariant: Invariant) -> Checked:
    cursor = await connection.execute(invariant.statement.encode())
    rows = await cursor.fetchall()
    shown = tuple({name: _plain(value) for name, value in row.items()} for row in rows[:ROWS_SHOWN_MAX])
    return Checked(name=invariant.name, ok=not rows, violation_count=len(rows), violations=shown)


def _plain(value: object) -> object:
    """Take a database value as JSON."""
    return value if value is None or isinstance(value, bool | int | str) else str(value)
