"""late grades"""  # noqa: D415 - a name, shown by `pending`

from activities.migrate import run_sql_file

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Run the SQL file of this number. There is no way back: data is never dropped by a tool."""
    run_sql_file("0009_late_grades.sql")
