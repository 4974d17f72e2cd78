"""The database as a node finds it at its start: its own one is started, every one is asked for its
schema."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from pydantic import SecretStr

from ha_engine.config import Config
from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable
from ha_engine.node.database import database_engine
from ha_engine.node.startup import EMBEDDED
from ha_engine.postgres.schema_version import require_current

log = structlog.get_logger(__name__)

URL_VARIABLE = "HA_ENGINE_DATABASE_URL"


@contextmanager
def with_embedded(config: Config) -> Iterator[Config]:
    """The config with the URL of the embedded database, which runs meanwhile, with its schema; as
    it is where there is another one."""
    if config.database.url.get_secret_value() != EMBEDDED:
        yield config
        return
    from ha_engine.postgres.embedded import EmbeddedPostgres

    with EmbeddedPostgres(config.database.embedded_dir) as server:
        # A reload reads the config again; a variable wins over the file.
        os.environ[URL_VARIABLE] = server.url
        database = config.database.model_copy(update={"url": SecretStr(server.url)})
        config = config.model_copy(update={"database": database})
        _make_schema(config)
        yield config


def _make_schema(config: Config) -> None:
    engine = database_engine(config, None, config.lease.db_timeout)
    schema = config.database.schema_name
    try:
        require_current(engine, schema)
    except DatabaseNotReady:
        from ha_engine.postgres.upgrade import upgrade

        upgrade(engine, schema)


def require_schema(config: Config) -> None:
    """Raises DatabaseNotReady. A database that does not answer may start later."""
    engine = database_engine(config, None, config.lease.db_timeout)
    try:
        require_current(engine, config.database.schema_name)
    except DatabaseUnreachable as error:
        log.warning("the database does not answer yet; the node waits for it", reason=str(error))
