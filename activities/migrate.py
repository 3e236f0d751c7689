"""Migrations: bring a database to the schema of this version. Alembic keeps the order, plain SQL files do the work."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from alembic.config import Config
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK_NAME = "backstay-migrations"
VERSION_TABLE = "backstay_migration"
VERSION_SCHEMA = "public"


def upgrade(database_url: str) -> None:
    """Bring the database to the newest schema; do nothing if it is there. Two processes may do so at once.

    The user of the URL must be allowed to create roles and tables. Each migration is one transaction.
    """
    from alembic import command  # noqa: PLC0415 - heavy, and rarely needed

    with _connection(database_url) as connection:
        # A lock of the session, so that it spans the migrations' transactions. It goes with the connection.
        connection.exec_driver_sql("select pg_advisory_lock(hashtextextended(%s, 0))", (LOCK_NAME,))
        connection.commit()
        command.upgrade(_config(connection), "head")
        # Every process asks at its start what is pending, also those whose login owns nothing.
        connection.exec_driver_sql(f"grant select on {VERSION_SCHEMA}.{VERSION_TABLE} to public")
        connection.commit()


def pending(database_url: str) -> list[str]:
    """List the migrations that this database still lacks, oldest first."""
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - as above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - as above

    options = {"version_table": VERSION_TABLE, "version_table_schema": VERSION_SCHEMA}
    with _connection(database_url) as connection:
        heads = MigrationContext.configure(connection, opts=options).get_current_heads()
        scripts = ScriptDirectory.from_config(_config(connection))
        applied = {script.revision for head in heads for script in scripts.iterate_revisions(head, "base")}
        names = [f"{s.revision} {s.doc}" for s in scripts.walk_revisions() if s.revision not in applied]
    return names[::-1]


def sql_of(name: str) -> str:
    """The text of one migration's SQL file."""
    return (MIGRATIONS / "sql" / name).read_text(encoding="utf-8")


def run_sql_file(name: str) -> None:
    """Execute one SQL file inside the running migration, statement by statement as the server reads it.

    For version scripts only. Whatever role or search path the file takes on, alembic's own row is written as before.
    """
    from alembic import op  # noqa: PLC0415 - as above

    driver: Any = op.get_bind().connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(sql_of(name).encode())  # bytes and no parameters: a % stays a %, several statements may follow
        cursor.execute("reset role; reset search_path")


@contextmanager
def _connection(database_url: str) -> Generator[Connection]:
    import psycopg  # noqa: PLC0415 - as above
    from sqlalchemy import create_engine, pool  # noqa: PLC0415 - as above

    # The creator spares translating libpq's URL (sockets, several hosts, options) into SQLAlchemy's.
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database_url), poolclass=pool.NullPool
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _config(connection: Connection) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def main() -> int:
    """Migrate the database that DATABASE_URL names: `python -m activities.migrate`."""
    database_url = os.environ.get("DATABASE_URL")
    if not database_url:
        sys.stderr.write("Set DATABASE_URL to the database to migrate, like postgresql://user:password@host/backstay\n")
        return 2
    upgrade(database_url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
