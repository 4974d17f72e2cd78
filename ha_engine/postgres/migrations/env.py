"""Alembic's entry: runs the migrations on the connection and schema that ``upgrade`` hands over."""

from __future__ import annotations

from alembic import context

_attributes = context.config.attributes

context.configure(
    connection=_attributes["connection"],
    version_table_schema=_attributes["schema"],
    version_table="schema_version",
)
context.run_migrations()
