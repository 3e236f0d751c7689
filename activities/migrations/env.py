"""Alembic's entry point: runs the migrations over the connection that activities.migrate gives."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transaction_per_migration=True,
    version_table="backstay_migration",
    version_table_schema="public",
)
with context.begin_transaction():
    context.run_migrations()
