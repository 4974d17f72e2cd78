"""What ``ha-engine run`` does before the supervisor takes over: checks, database, environment."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import structlog

from ha_engine import logs, notify
from ha_engine.api.server import listen
from ha_engine.config import Config
from ha_engine.config.load import load_config
from ha_engine.database_assembly import database_engine, lease_store_of
from ha_engine.directory_lock import lock_directory
from ha_engine.errors import DatabaseUnreachable
from ha_engine.journal.opening import read_identity
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import require_current, upgrade
from ha_engine.query.application import load_application
from ha_engine.query.session import check_java
from ha_engine.runtime_dir import make_runtime_dir
from ha_engine.supervisor import Supervisor

log = structlog.get_logger(__name__)

EMBEDDED = "embedded"


def run(config_path: Path | None) -> int:
    """Runs one node until it is told to stop; returns the exit code.

    Raises JavaMissing, ConfigError, ApplicationError, DatabaseNotReady, DataDirectoryLocked,
    AddressInUse or ForeignJournal before anything is started.
    """
    check_java()
    config = load_config(config_path, os.environ)
    load_application(config.application)
    logs.configure(config.log, node=config.node.id, process="supervisor")
    lock = lock_directory(config.node.data_dir, "supervisor.lock")
    try:
        _require_place(config)
        return _run_with_database(config, config_path)
    finally:
        os.close(lock)


def _require_place(config: Config) -> None:
    """What the node process would end with at once is told here, before there are more logs."""
    listen(config.http.listen).close()
    make_runtime_dir(config.socket_path.parent)
    read_identity(config.node.data_dir / "journal", config.group)


def _run_with_database(config: Config, config_path: Path | None) -> int:
    url = config.database.url.get_secret_value()
    if url != EMBEDDED:
        return _supervise(config, config_path, url)
    with EmbeddedPostgres(config.database.embedded_dir) as server:
        # The child processes read the config themselves; a variable wins over their file.
        os.environ["HA_ENGINE_DATABASE_URL"] = server.url
        upgrade(open_engine(server.url), config.database.schema_name)
        return _supervise(config, config_path, server.url)


def _supervise(config: Config, config_path: Path | None, url: str) -> int:
    engine = database_engine(config, url, config.lease.db_timeout)
    try:
        require_current(engine, config.database.schema_name)
    except DatabaseUnreachable as error:
        log.warning("the database does not answer yet; the node waits for it", reason=str(error))
    store = lease_store_of(config, url)
    supervisor = Supervisor(config, config_path, store, notify.take(os.environ))
    return asyncio.run(_until_stopped(supervisor))


async def _until_stopped(supervisor: Supervisor) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    return await supervisor.run()
