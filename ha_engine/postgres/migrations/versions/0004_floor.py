"""Add the schema's floor, and the engine that each node ran last, on which the floor depends."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    # RULES.md#r32: the table has one row, so all engines see one floor. Engines that know no floor
    # refuse each version of the schema that they do not know, so the floor begins here.
    floor = op.create_table(
        "schema_floor",
        sa.Column("is_only", sa.Boolean, primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
        sa.CheckConstraint("is_only", name="schema_floor_is_one_row"),
        schema=schema,
    )
    op.bulk_insert(floor, [{"is_only": True, "version": revision}])
    op.create_table(
        "node_engine",
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("schema_version", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        schema=schema,
    )
