"""Make the clients of the database in the config, and run an embedded database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from pydantic import SecretStr
from sqlalchemy import Engine

from ha_engine.config import Config
from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable, EngineError
from ha_engine.node.lease_release import release_within
from ha_engine.node.startup import EMBEDDED
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_listener import LeaseListener
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.schema_version import require_usable
from ha_engine.types import Holder

log = structlog.get_logger(__name__)


def lease_store_of(config: Config, url: str | None = None) -> PostgresLeaseStore:
    """The store of the group's lease row, in the database at ``url`` or in the config's
    database."""
    lease = config.lease
    return PostgresLeaseStore(
        database_engine(config, url, lease.db_timeout),
        config.group,
        lease.ttl,
        db_timeout=lease.db_timeout,
        schema=config.database.schema_name,
        node=config.node.id,
    )


def database_engine(config: Config, url: str | None, timeout: float) -> Engine:
    """A SQLAlchemy engine for the database at ``url``, or for the config's database. Each statement
    may take at most ``timeout`` seconds."""
    database = config.database
    return open_engine(
        url or database.url.get_secret_value(),
        connect_timeout=database.connect_timeout,
        statement_timeout=timeout,
    )


def lease_listener_of(config: Config, on_change: Callable[[], None]) -> LeaseListener:
    """A listener for changes of the lease row, not started yet. The listener calls ``on_change``
    on the event loop of its creator."""
    loop = asyncio.get_running_loop()
    return LeaseListener(
        database_engine(config, None, config.lease.db_timeout),
        config.group,
        lambda: loop.call_soon_threadsafe(on_change),
        schema=config.database.schema_name,
    )


async def release_earlier(config: Config, dead: Holder) -> None:
    """Release the lease of a process of this node, which is certainly dead.

    The node retries the release for one ttl, because the lease then expires by itself.
    """
    store = lease_store_of(config)
    try:
        await release_within(store, dead, config.node.data_dir, config.lease.ttl)
    except (EngineError, OSError, ValueError) as error:  # the last two: the high-water file
        log.warning("lease not released; it expires after its ttl", reason=str(error))
    finally:
        store.close()


URL_VARIABLE = "HA_ENGINE_DATABASE_URL"


@contextmanager
def with_embedded(config: Config) -> Iterator[Config]:
    """Run the embedded database, with its schema, and yield the config with the database's URL.

    With any other database, yield the config unchanged.
    """
    if config.database.url.get_secret_value() != EMBEDDED:
        yield config
        return
    from ha_engine.postgres.embedded import EmbeddedPostgres

    with EmbeddedPostgres(config.database.embedded_dir) as server:
        # A reload of the config reads the URL from the variable, which takes precedence over the
        # file.
        os.environ[URL_VARIABLE] = server.url
        database = config.database.model_copy(update={"url": SecretStr(server.url)})
        config = config.model_copy(update={"database": database})
        _make_schema(config)
        yield config


def _make_schema(config: Config) -> None:
    engine = database_engine(config, None, config.lease.db_timeout)
    schema = config.database.schema_name
    try:
        require_usable(engine, schema)
    except DatabaseNotReady:
        from ha_engine.postgres.upgrade import upgrade

        upgrade(engine, schema)


def require_schema(config: Config) -> None:
    """Check the schema's version and floor. Raises DatabaseNotReady.

    A database that does not answer is not an error, because it may start later.
    """
    engine = database_engine(config, None, config.lease.db_timeout)
    try:
        require_usable(engine, config.database.schema_name)
    except DatabaseUnreachable as error:
        log.warning("database unreachable, schema not checked", reason=str(error))
