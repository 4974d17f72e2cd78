"""Check which of a node's requests reach PostgreSQL through a connection pooler.

A pooler such as PgBouncer may ignore the settings of a session, and may drop notifications.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

from sqlalchemy import Connection, func, select, text

from ha_engine.config import Config
from ha_engine.doctor.database import PATIENCE_SECONDS, ask, database_url
from ha_engine.doctor.finding import Finding, ok, warning
from ha_engine.node.database import database_engine
from ha_engine.postgres.engine import place, require_synchronous_commit, session_settings
from ha_engine.postgres.lease_listener import LeaseListener
from ha_engine.postgres.lease_store import lease_channel

NOTIFICATION_SECONDS = 3.0
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def synchronous_commit(config: Config) -> Finding:
    """Whether a node's session has synchronous commit (RULES.md#r5). Raises DatabaseNotReady."""
    where = place(database_engine(config, database_url(config), PATIENCE_SECONDS))
    ask(config, lambda connection: require_synchronous_commit(connection, where))
    way = ask(config, _read_session)[1]
    return ok(f"synchronous_commit is on in a session of the engine{way}")


def timeouts(config: Config) -> Finding:
    """The timeouts in a session of the engine, which end a statement that nobody waits for."""
    wanted = session_settings(config.lease.db_timeout)
    found, way = ask(config, _read_session, config.lease.db_timeout)
    ignored = [name for name in _TIMEOUTS if found[name] != wanted[name]]
    if ignored:
        shown = ", ".join(f"{name} = {found[name]} ms" for name in ignored)
        return warning(
            f"a session of the engine has {shown}{way} instead of {wanted[ignored[0]]} ms, so the "
            "server may hold locks for a node that no longer waits",
            "; ".join(f"ALTER ROLE ... SET {name} = {wanted[name]}" for name in ignored)
            + "; or let database.url bypass the pooler",
        )
    return ok(f"statements, locks and idle transactions end after {wanted[_TIMEOUTS[0]]} ms{way}")


def notifications(config: Config) -> Finding:
    """Whether a notification of one session reaches another session that listens."""
    # No node uses this group, so no node wakes up.
    group, schema = f"doctor-{uuid.uuid4()}", config.database.schema_name
    noticed = threading.Semaphore(0)
    engine = database_engine(config, database_url(config), PATIENCE_SECONDS)
    listener = LeaseListener(engine, group, noticed.release, schema=schema)
    listener.start()
    try:
        # The listener's first call says that it listens; the second one is the notification.
        arrived = noticed.acquire(timeout=NOTIFICATION_SECONDS)
        if arrived:
            channel = lease_channel(schema, group)
            ask(config, lambda c: c.execute(select(func.pg_notify(channel, ""))).all())
            arrived = noticed.acquire(timeout=NOTIFICATION_SECONDS)
    finally:
        listener.stop()
    if not arrived:
        return warning(
            "a notification did not arrive, so a node sees a change of the lease only when it "
            "next reads the lease row",
            "use session pooling, or let database.url bypass the pooler",
        )
    return ok("notifications of a changed lease arrive")


def _read_session(connection: Connection) -> tuple[dict[str, str], str]:
    """The settings in effect, and words about a pooler between this process and PostgreSQL."""
    names = ", ".join(f"'{name}'" for name in _TIMEOUTS)
    rows = connection.execute(
        # The names are constants.
        text(f"SELECT name, setting, pg_backend_pid() FROM pg_settings WHERE name IN ({names})")  # noqa: S608
    ).all()
    # A pooler invents the pid that it gives to its clients.
    driver: Any = connection.connection.driver_connection
    is_pooled = driver.info.backend_pid != rows[0][2]
    return {row[0]: row[1] for row in rows}, " (through a pooler)" if is_pooled else ""
