"""Check the database server, the engine's schema in it, and the rights of the engine's role."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, text

from ha_engine.config import Config
from ha_engine.doctor.finding import Finding, failed, ok, skipped, warning
from ha_engine.errors import DatabaseUnreachable
from ha_engine.node.database import database_engine
from ha_engine.node.startup import EMBEDDED
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import place, translated
from ha_engine.postgres.schema_version import newest, require_usable

T = TypeVar("T")

PATIENCE_SECONDS = 8.0
OLDEST_MAINTAINED = 14
"""PostgreSQL releases from this one on still get corrections."""
CONNECTIONS_OF_A_GROUP = 10
"""Connections that two nodes with some sinks need at one time."""
_REFUSED_BY_POOLER = "unsupported startup parameter"
_RIGHTS = {
    "schema_version": ("SELECT",),
    "schema_floor": ("SELECT", "UPDATE"),
    "node_engine": ("SELECT", "INSERT", "UPDATE"),
    "lease": ("SELECT", "INSERT", "UPDATE"),
    "lease_history": ("SELECT", "INSERT", "UPDATE"),
    "chunk": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "revision": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "revision_chunk": ("SELECT", "INSERT"),
}
"""The rights that the engine needs on each of its tables."""


def ask(config: Config, work: Callable[[Connection], T], timeout: float = PATIENCE_SECONDS) -> T:
    """Run ``work`` on a new connection, and return its result.

    The connection has the settings of a node's connection with the timeout ``timeout``. Unlike a
    node's session, it accepts a pooler that drops the settings. Raises DatabaseUnreachable,
    DatabaseNotReady.
    """
    engine = database_engine(config, database_url(config), timeout)
    with translated(engine), engine.connect() as connection:
        return work(connection.execution_options(isolation_level="AUTOCOMMIT"))


def database_url(config: Config) -> str:
    """The URL of the database in the config. Raises DatabaseUnreachable if an embedded database
    does not run."""
    url = config.database.url.get_secret_value()
    return EmbeddedPostgres(config.database.embedded_dir).url if url == EMBEDDED else url


def server(config: Config) -> Finding:
    """Whether a PostgreSQL that accepts writes answers, and its version."""
    try:
        url = database_url(config)
    except DatabaseUnreachable:
        return skipped("the embedded PostgreSQL runs only while the node runs")
    began = time.monotonic()
    try:
        version, number, in_recovery, read_only, role = ask(config, _read_server)
    except DatabaseUnreachable as error:
        if _REFUSED_BY_POOLER not in str(error):
            raise
        return failed(
            str(error).partition("; ")[0],
            "set ignore_startup_parameters = options in pgbouncer.ini, or let database.url bypass "
            "the pooler",
        )
    milliseconds = 1000 * (time.monotonic() - began)
    where = place(database_engine(config, url, PATIENCE_SECONDS))
    if in_recovery:
        return failed(
            f"{where} is a standby, which accepts no writes",
            "correct database.url, or name all hosts of the database in it and add "
            "target_session_attrs=read-write",
        )
    if read_only:
        return failed(
            f"{where} accepts no writes of role {role}",
            "set default_transaction_read_only to off for this role and this database",
        )
    text = f"PostgreSQL {version} at {where} answers role {role} in {milliseconds:.0f} ms"
    if number // 10_000 < OLDEST_MAINTAINED:
        return warning(f"{text}; this release gets no corrections", "upgrade PostgreSQL")
    return ok(text)


def schema(config: Config) -> Finding:
    """Whether this program may use the engine's schema. Raises DatabaseNotReady."""
    name = config.database.schema_name
    engine = database_engine(config, database_url(config), PATIENCE_SECONDS)
    require_usable(engine, name)
    return ok(f"this ha-engine, which knows schema version {newest()}, may use schema {name}")


def rights(config: Config) -> Finding:
    """Whether the role has all rights on the engine's tables, or may create them."""
    name = config.database.schema_name
    role, exists, missing = ask(config, lambda connection: _read_rights(connection, name))
    if missing:
        return failed(
            f"role {role} lacks {', '.join(missing)}",
            f"make {role} the owner of the database and the schema, or GRANT these rights",
        )
    if not exists:
        return ok(f"role {role} may create schema {name}, which does not exist yet")
    return ok(f"role {role} has all rights that the engine needs in schema {name}")


def settings(config: Config) -> Finding:
    """The settings of the server on which the engine's promises depend."""
    found = ask(config, _read_settings)
    off = [name for name in ("fsync", "full_page_writes") if found[name] == "off"]
    if off:
        return failed(
            f"{' and '.join(off)} is off, so a crash of the database may lose or damage the lease",
            f"set {' and '.join(off)} to on in postgresql.conf",
        )
    free = int(found["free"])
    if free < CONNECTIONS_OF_A_GROUP:
        return warning(
            f"only {free} of {found['max_connections']} connections are free, and two nodes need "
            f"about {CONNECTIONS_OF_A_GROUP}",
            "raise max_connections, or end unused connections",
        )
    if found["idle_session_timeout"] not in ("0", ""):
        return warning(
            f"idle_session_timeout is {found['idle_session_timeout']}, so the server ends the "
            "idle connections of a node again and again",
            "ALTER ROLE ... SET idle_session_timeout = 0",
        )
    return ok(f"fsync is on; {free} of {found['max_connections']} connections are free")


def synchronous_standby(config: Config) -> Finding:
    """Whether a failover of PostgreSQL keeps every confirmed write of the lease (RULES.md#r5)."""
    named, connected = ask(config, _read_standbys)
    if not named:
        return warning(
            "no synchronous standby is named, so the database and the lease are lost with its "
            "host, and a failover to an asynchronous standby may lose the last writes",
            "set synchronous_standby_names in postgresql.conf, if the database must survive the "
            "loss of its host",
        )
    if not connected:
        return failed(
            f"synchronous_standby_names is {named}, but no standby is connected, so every write "
            "waits",
            "start the standby",
        )
    return ok(f"synchronous_standby_names is {named}; connected standbys: {connected}")


# -- statements ------------------------------------------------------------------------------------


def _read_server(connection: Connection) -> tuple[str, int, bool, bool, str]:
    row = connection.execute(
        text(
            "SELECT current_setting('server_version'),"
            " current_setting('server_version_num')::int, pg_is_in_recovery(),"
            " current_setting('transaction_read_only') = 'on', current_user"
        )
    ).one()
    return row[0], row[1], row[2], row[3], row[4]


def _read_rights(connection: Connection, schema: str) -> tuple[str, bool, list[str]]:
    """The role, whether the schema exists, and the rights that the role lacks."""
    role = str(connection.scalar(text("SELECT current_user")))
    usable = connection.execute(
        text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :schema"),
        {"schema": schema},
    ).first()
    if usable is None:
        creates = text("SELECT has_database_privilege(current_database(), 'CREATE')")
        return role, False, [] if connection.scalar(creates) else ["CREATE on the database"]
    # By its oid, since a name in a schema without USAGE would be an error.
    statement = text(
        "SELECT has_table_privilege(c.oid, :right) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = :schema AND c.relname = :table"
    )
    missing = [] if usable[0] else [f"USAGE on schema {schema}"]
    for table, wanted in _RIGHTS.items():
        lacking = [
            right
            for right in wanted
            if connection.scalar(statement, {"right": right, "schema": schema, "table": table})
            is False
        ]
        missing += [f"{' and '.join(lacking)} on {schema}.{table}"] if lacking else []
    return role, True, missing


def _read_settings(connection: Connection) -> dict[str, str]:
    names = ("fsync", "full_page_writes", "max_connections", "idle_session_timeout")
    found = {
        name: connection.scalar(text(f"SELECT current_setting('{name}', true)")) for name in names
    }
    free = connection.scalar(
        text(
            "SELECT current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int"
            " - count(*) FROM pg_stat_activity WHERE datid IS NOT NULL"
        )
    )
    return {**{name: str(value or "") for name, value in found.items()}, "free": str(free)}


def _read_standbys(connection: Connection) -> tuple[str, int]:
    row = connection.execute(
        text(
            "SELECT current_setting('synchronous_standby_names'), count(*) FROM pg_stat_replication"
        )
    ).one()
    return str(row[0]), int(row[1])
