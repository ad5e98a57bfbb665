"""Alembic's environment: revisions run on the connection that ``storage.migrations.upgrade`` passes."""

from __future__ import annotations

from alembic import context

from storage.migrations import VERSION_TABLE
from storage.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
