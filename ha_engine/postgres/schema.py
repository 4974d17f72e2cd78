"""The tables of the project's own schema, as the stores use these tables.

The package ``migrations`` creates these tables in a database. A comment above each table in
``migrations`` names the invariant that the table enforces. SQLAlchemy's ``schema_translate_map``
replaces the default schema by the configured schema.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Identity,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA = "ha_engine"

metadata = MetaData(schema=SCHEMA)

lease = Table(
    "lease",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("group_id", Text, nullable=False),
    Column("holder_node", Text),
    Column("holder_process", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("in_sync", JSONB, nullable=False),
    Column("advertise", Text),
    Column("successor", Text),
    Column("paused", Boolean, nullable=False),
    Column("system_identifier", Text),
    Column("timeline", Text),
    Column("committed_epoch", BigInteger, nullable=False),
    Column("committed_sequence", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("written_at", DateTime(timezone=True), nullable=False),
)

lease_history = Table(
    "lease_history",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("group_name", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("holder_node", Text),
    Column("holder_process", Text),
    Column("previous_node", Text),
    Column("previous_process", Text),
    Column("reason", Text),
    Column("outage_seconds", Double),
)

chunk = Table(
    "chunk",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("stored", LargeBinary, nullable=False),
)

revision = Table(
    "revision",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("group_name", Text, nullable=False),
    Column("taken_by", Text, nullable=False),
    Column("begun_at", DateTime(timezone=True), nullable=False),
    Column("visible_at", DateTime(timezone=True)),
    Column("pinned_until", DateTime(timezone=True)),
    Column("epoch", BigInteger),
    Column("sequence", BigInteger),
    Column("written_epoch", BigInteger),
    Column("written_sequence", BigInteger),
    Column("bytes_total", BigInteger),
    Column("bytes_new", BigInteger),
    Column("manifest", LargeBinary),
    Column("manifest_digest", LargeBinary),
)

revision_chunk = Table(
    "revision_chunk",
    metadata,
    Column("revision_id", BigInteger, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
)

schema_floor = Table(
    "schema_floor",
    metadata,
    Column("is_only", Boolean, primary_key=True),
    Column("version", Text, nullable=False),
)

node_engine = Table(
    "node_engine",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("engine", Text, nullable=False),
    Column("schema_version", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False),
)
