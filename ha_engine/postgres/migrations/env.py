"""Alembic's entry point: runs the migrations with the connection and schema from ``upgrade``."""

from __future__ import annotations

from alembic import context

_attributes = context.config.attributes

context.configure(
    connection=_attributes["connection"],
    version_table_schema=_attributes["schema"],
    version_table="schema_version",
)
context.run_migrations()
