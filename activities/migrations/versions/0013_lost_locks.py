"""lost locks"""  # noqa: D415 - a name, shown by `pending`

from activities.migrate import run_sql_file

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Run the SQL file of this number. There is no way back: data is never dropped by a tool."""
    run_sql_file("0013_lost_locks.sql")
