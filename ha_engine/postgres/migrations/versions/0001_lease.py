"""Create the table of lease rows, and the table with the history of their holders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

_LEASE_IS_COMPLETE = (
    sa.CheckConstraint("epoch >= 0 AND version >= 1", name="lease_counts_up"),
    sa.CheckConstraint(
        "(holder_node IS NULL) = (holder_process IS NULL)", name="lease_holder_is_whole"
    ),
    sa.CheckConstraint(
        "(system_identifier IS NULL) = (timeline IS NULL)", name="lease_identity_is_whole"
    ),
    sa.CheckConstraint("jsonb_typeof(in_sync) = 'array'", name="lease_in_sync_is_a_list"),
    # RULES.md#i4: only an in-sync member is ever the holder.
    sa.CheckConstraint(
        "holder_node IS NULL"
        " OR in_sync @> jsonb_build_array(jsonb_build_object('node', holder_node))",
        name="lease_holder_is_in_sync",
    ),
)

# RULES.md#i1, RULES.md#i13: this trigger refuses a write that lowers the epoch or does not raise
# the version. The trigger also refuses a second holder in one epoch. The compare-and-set of the
# lease store prevents such writes, so the trigger only guards against a bug in the lease store.
_BACKSTOP = """
CREATE FUNCTION {schema}.lease_never_falls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR NEW.version <= OLD.version THEN
        RAISE EXCEPTION 'lease of group % would fall from (%, %) to (%, %)',
            OLD.group_name, OLD.epoch, OLD.version, NEW.epoch, NEW.version
            USING ERRCODE = 'HA001';
    END IF;
    IF NEW.epoch = OLD.epoch AND NEW.holder_process IS NOT NULL
        AND (NEW.holder_node, NEW.holder_process)
            IS DISTINCT FROM (OLD.holder_node, OLD.holder_process) THEN
        RAISE EXCEPTION 'epoch % of group % would have a second holder', OLD.epoch, OLD.group_name
            USING ERRCODE = 'HA001';
    END IF;
    -- An UPDATE computes its values before it waits for the row's lock; this runs after the wait.
    NEW.expires_at := NEW.expires_at + (clock_timestamp() - NEW.written_at);
    NEW.written_at := clock_timestamp();
    RETURN NEW;
END $$
"""

_TRIGGER = """
CREATE TRIGGER lease_never_falls BEFORE UPDATE ON {schema}.lease
    FOR EACH ROW EXECUTE FUNCTION {schema}.lease_never_falls()
"""


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    _create_lease(schema)
    _create_history(schema)
    quoted = op.get_bind().dialect.identifier_preparer.quote(schema)
    op.execute(_BACKSTOP.format(schema=quoted))
    op.execute(_TRIGGER.format(schema=quoted))


def _create_lease(schema: str) -> None:
    # RULES.md#i1: a group has one lease row, so it has at most one holder. Only a compare-and-set
    # on (holder, epoch, version) changes the lease row.
    op.create_table(
        "lease",
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("group_id", sa.Text, nullable=False),
        sa.Column("holder_node", sa.Text),
        sa.Column("holder_process", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("in_sync", JSONB, nullable=False),
        sa.Column("advertise", sa.Text),
        sa.Column("successor", sa.Text),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("system_identifier", sa.Text),
        sa.Column("timeline", sa.Text),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        *_LEASE_IS_COMPLETE,
        schema=schema,
    )


def _create_history(schema: str) -> None:
    # RULES.md#i1: the statement that changes the holder also writes a line of history, so that
    # people can check the holders later.
    op.create_table(
        "lease_history",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("group_name", sa.Text, nullable=False, index=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("holder_node", sa.Text),
        sa.Column("holder_process", sa.Text),
        sa.Column("previous_node", sa.Text),
        sa.Column("previous_process", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("outage_seconds", sa.Double),
        schema=schema,
    )
