"""The database of a config, for commands that work without a running node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Engine

from ha_engine.config import Config
from ha_engine.config.sections import DatabaseConfig
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.snapshot_store import CALL_SECONDS, SnapshotStore

PATIENCE_SECONDS = 10.0
"""How long a command waits for one answer of the database. A command may wait longer than a node,
which must renew its lease in time."""


@contextmanager
def opened_engine(
    database: DatabaseConfig, url: str | None = None, patience: float = PATIENCE_SECONDS
) -> Iterator[Engine]:
    """Open an engine for ``url``, by default the URL of the config.

    An embedded PostgreSQL runs while the engine is open. PostgreSQL cancels a statement that takes
    longer than ``patience`` seconds.
    """
    wanted, timeout = url or database.url.get_secret_value(), database.connect_timeout
    if wanted != "embedded":
        yield open_engine(wanted, connect_timeout=timeout, statement_timeout=patience)
        return
    with EmbeddedPostgres(database.embedded_dir) as server:
        yield open_engine(server.url, connect_timeout=timeout, statement_timeout=patience)


@contextmanager
def opened_lease(config: Config) -> Iterator[PostgresLeaseStore]:
    """Open the lease row of the config's group."""
    with opened_engine(config.database) as engine:
        store = PostgresLeaseStore(
            engine,
            config.group,
            config.lease.ttl,
            db_timeout=PATIENCE_SECONDS,
            schema=config.database.schema_name,
        )
        with closing(store):
            yield store


@contextmanager
def opened_snapshots(config: Config) -> Iterator[SnapshotStore]:
    """Open the snapshots of the config's group."""
    with opened_engine(config.database, patience=CALL_SECONDS) as engine:
        store = SnapshotStore(engine, config.group, schema=config.database.schema_name)
        with closing(store):
            yield store
