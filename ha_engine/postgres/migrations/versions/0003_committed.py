"""Add the commit position to the lease row, by which a node detects that its disk went back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # RULES.md#r8: 0 is the position of a row that an earlier version of the engine wrote.
    for name in ("committed_epoch", "committed_sequence"):
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        op.add_column("lease", column, schema=context.config.attributes["schema"])
