"""From the config to what speaks with its database; connects nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from sqlalchemy import Engine

from ha_engine.config import Config
from ha_engine.errors import EngineError
from ha_engine.node.lease_release import release_within
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_listener import LeaseListener
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.types import Holder

log = structlog.get_logger(__name__)


def lease_store_of(config: Config, url: str | None = None) -> PostgresLeaseStore:
    """The lease row of the group, in the database of the config unless ``url`` names another."""
    lease = config.lease
    return PostgresLeaseStore(
        database_engine(config, url, lease.db_timeout),
        config.group,
        lease.ttl,
        db_timeout=lease.db_timeout,
        schema=config.database.schema_name,
    )


def database_engine(config: Config, url: str | None, timeout: float) -> Engine:
    """``timeout`` in seconds bounds every statement."""
    database = config.database
    return open_engine(
        url or database.url.get_secret_value(),
        connect_timeout=database.connect_timeout,
        statement_timeout=timeout,
    )


def lease_listener_of(config: Config, heard: Callable[[], None]) -> LeaseListener:
    """Not started. ``heard`` is called on the event loop that runs now."""
    loop = asyncio.get_running_loop()
    return LeaseListener(
        database_engine(config, None, config.lease.db_timeout),
        config.group,
        lambda: loop.call_soon_threadsafe(heard),
        schema=config.database.schema_name,
    )


async def release_earlier(config: Config, dead: Holder) -> None:
    """Give up the lease of a process of this node that is certainly dead; once the ttl has passed,
    it has ended by itself."""
    store = lease_store_of(config)
    try:
        await release_within(store, dead, config.node.data_dir, config.lease.ttl)
    except (EngineError, OSError, ValueError) as error:  # the latter of the high water's file
        log.warning("lease not released; it ends by itself", reason=str(error))
    finally:
        store.close()
