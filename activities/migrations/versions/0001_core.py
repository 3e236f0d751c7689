"""core"""  # noqa: D415 - a name, shown by `pending`

from activities.migrate import run_sql_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the SQL file of this number. There is no way back: data is never dropped by a tool."""
    run_sql_file("0001_core.sql")
