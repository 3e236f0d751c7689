"""Alembic's entry point: runs the migrations over the connection that activities.migrate gives."""

from alembic import context

from activities.migrate import VERSION_SCHEMA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    transaction_per_migration=True,
    version_table=VERSION_TABLE,
    version_table_schema=VERSION_SCHEMA,
)
with context.begin_transaction():
    context.run_migrations()
