"""Create the tables of snapshots: revisions, chunks, and references from revisions to chunks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    _create_chunk(schema)
    _create_revision(schema)
    _create_revision_chunk(schema)


def _create_chunk(schema: str) -> None:
    # RULES.md#i10: a chunk is named by the digest of its content, so a reader can detect damage.
    op.create_table(
        "chunk",
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.LargeBinary, nullable=False),
        schema=schema,
    )
    quoted = op.get_bind().dialect.identifier_preparer.quote(schema)
    # Chunks are compressed already, so the server should not try to compress them again.
    op.execute(f"ALTER TABLE {quoted}.chunk ALTER COLUMN stored SET STORAGE EXTERNAL")


def _create_revision(schema: str) -> None:
    # RULES.md#i9: a revision is one row, and becomes visible only when the row is complete. Only
    # the writer of a revision reads the row before the revision is visible.
    op.create_table(
        "revision",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("group_name", sa.Text, nullable=False, index=True),
        sa.Column("taken_by", sa.Text, nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("visible_at", sa.DateTime(timezone=True)),
        # No cleanup deletes a revision before ``pinned_until``, since a restore may be reading it.
        sa.Column("pinned_until", sa.DateTime(timezone=True)),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("written_epoch", sa.BigInteger),
        sa.Column("written_sequence", sa.BigInteger),
        sa.Column("bytes_total", sa.BigInteger),
        sa.Column("bytes_new", sa.BigInteger),
        sa.Column("manifest", sa.LargeBinary),
        sa.Column("manifest_digest", sa.LargeBinary),
        sa.CheckConstraint(
            "visible_at IS NULL OR (epoch IS NOT NULL AND sequence IS NOT NULL"
            " AND written_epoch IS NOT NULL AND written_sequence IS NOT NULL"
            " AND bytes_total IS NOT NULL AND bytes_new IS NOT NULL"
            " AND manifest IS NOT NULL AND manifest_digest IS NOT NULL)",
            name="revision_is_complete_when_visible",
        ),
        schema=schema,
    )


def _create_revision_chunk(schema: str) -> None:
    # RULES.md#i9, RULES.md#r29: the foreign key prevents the deletion of a chunk that a new
    # revision refers to.
    op.create_table(
        "revision_chunk",
        sa.Column(
            "revision_id",
            sa.BigInteger,
            sa.ForeignKey(f"{schema}.revision.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "digest",
            sa.LargeBinary,
            sa.ForeignKey(f"{schema}.chunk.digest"),
            primary_key=True,
            index=True,
        ),
        schema=schema,
    )
