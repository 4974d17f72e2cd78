"""Decide whether this program may use the schema of a database.

A schema has a version and a floor (RULES.md#r32). The version names the newest migration that ran.
The floor names the oldest engines that may use the schema: those that know the migration of that
version. An upgrade raises the version only, and adds what older engines do not use. So older
engines continue, and may come back. ``ha-engine db upgrade --finalize`` raises the floor.

Each start of a node checks the schema, so this module must not import Alembic. Only the code that
creates or upgrades a schema imports Alembic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Engine, Text, cast, column, func, literal, select, table
from sqlalchemy.dialects.postgresql import Insert, insert

from ha_engine import __version__
from ha_engine.errors import DatabaseNotReady
from ha_engine.postgres.engine import place, translated
from ha_engine.postgres.schema import SCHEMA, node_engine, schema_floor

VERSION_TABLE = "schema_version"
MIGRATIONS = Path(__file__).parent / "migrations"
CONTRACTING: frozenset[str] = frozenset()
"""Versions whose migration removes or changes what engines without it use. Only ``ha-engine db
upgrade --finalize`` applies these migrations. This program works before and after them."""


@dataclass(frozen=True, slots=True)
class NodeEngine:
    """The engine with which a node last connected to the database.

    ``schema_version`` is the newest schema version that this engine knows.
    """

    group: str
    node: str
    engine: str
    schema_version: str


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The version and the floor of a schema, and the engines of the nodes that use the schema.

    ``version`` is None if the database lacks the schema. ``floor`` is None if the schema is older
    than the table of the floor.
    """

    version: str | None
    floor: str | None = None
    nodes: tuple[NodeEngine, ...] = ()


def newest() -> str:
    """The newest schema version for which this program has a migration."""
    return max(_versions())


def required() -> str:
    """The oldest schema version with which this program works."""
    return max(_versions() - CONTRACTING)


def read_state(engine: Engine, schema: str = SCHEMA) -> SchemaState:
    """Read the state of the schema. Raises DatabaseUnreachable, DatabaseNotReady."""
    with translated(engine), in_schema(engine, schema).connect() as connection:
        return state_in(connection, schema)


def in_schema(engine: Engine, schema: str) -> Engine:
    """An engine whose connections find the project's tables in ``schema``."""
    return engine.execution_options(schema_translate_map={SCHEMA: schema})


def require_usable(engine: Engine, schema: str = SCHEMA) -> None:
    """Raise DatabaseNotReady, with advice, unless this program may use the schema."""
    found = read_state(engine, schema)
    refuse_below_floor(engine, found.floor)
    if found.version is None or found.version < required():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {found.version or 'none'}, "
            f"this program needs {required()}; "
            f"run: ha-engine db {'upgrade' if found.version else 'init'}"
        )


def refuse_below_floor(engine: Engine, floor: str | None) -> None:
    """Raise DatabaseNotReady if this program is older than the engines that ``floor`` permits."""
    if floor is not None and floor > newest():
        raise DatabaseNotReady(
            f"the database {place(engine)} serves only engines that know schema version {floor}, "
            f"and this program knows {newest()}, since 'ha-engine db upgrade --finalize' ended the "
            "upgrade; install a newer version of ha-engine"
        )


def state_in(connection: Connection, schema: str) -> SchemaState:
    """Read the state of the schema on a connection of ``in_schema``."""
    version = _version_in(connection, schema)
    if version is None or not _exists(connection, schema, schema_floor.name):
        return SchemaState(version)
    floor = connection.scalar(select(schema_floor.c.version))
    columns = [node_engine.c[name] for name in ("group_name", "node", "engine", "schema_version")]
    rows = connection.execute(select(*columns).order_by(*columns)).all()
    return SchemaState(version, floor, tuple(NodeEngine(*row) for row in rows))


def admit(connection: Connection, engine: Engine, group: str, node: str | None) -> None:
    """Check the floor on a new connection, and record the engine of the node ``node``.

    ``connection`` is in autocommit mode. Records nothing if ``node`` is None, or if the server
    accepts no writes. Raises DatabaseNotReady if this program is below the floor.

    This check covers two nodes that the check at the start misses: one that started while the
    database was unreachable, and one that runs while an operator forces the floor up.
    """
    mine = (node_engine.c.group_name == group) & (node_engine.c.node == node)
    known = mine & (node_engine.c.engine == __version__)
    known &= node_engine.c.schema_version == newest()
    floor, is_read_only, is_recorded = connection.execute(
        select(
            schema_floor.c.version,
            func.current_setting("transaction_read_only") == "on",
            select(node_engine.c.node).where(known).exists(),
        )
    ).one()
    refuse_below_floor(engine, floor)
    # A write waits for a synchronous standby, and a node must be able to read without that wait.
    if node is None or is_read_only or is_recorded:
        return
    recorded = connection.execute(_record(group, node))
    if recorded.rowcount == 0:
        refuse_below_floor(engine, connection.scalar(select(schema_floor.c.version)))


def _record(group: str, node: str) -> Insert:
    """Record the engine of the node, unless this program is below the floor."""
    # 1. Node A, with an older engine, reads the floor.
    # 2. 'db upgrade --finalize' reads the engines of all nodes, and raises the floor.
    # 3. Node A records its engine, and uses a schema that its engine does not know.
    # So one statement checks the floor and records the engine. Its lock excludes a change of the
    # floor until the record is visible.
    permits = select(schema_floor.c.version).where(schema_floor.c.version <= newest())
    values = {
        "group_name": literal(group),
        "node": literal(node),
        "engine": literal(__version__),
        "schema_version": literal(newest()),
        "recorded_at": func.clock_timestamp(),
    }
    permitted = permits.with_for_update(read=True).subquery()
    row = select(*values.values()).select_from(permitted)
    return (
        insert(node_engine)
        .from_select(list(values), row)
        .on_conflict_do_update(
            index_elements=["group_name", "node"],
            set_={name: values[name] for name in ("engine", "schema_version", "recorded_at")},
        )
    )


def _exists(connection: Connection, schema: str, name: str) -> bool:
    qualified = func.format("%I.%I", schema, name)
    return connection.scalar(select(cast(func.to_regclass(qualified), Text))) is not None


def _version_in(connection: Connection, schema: str) -> str | None:
    if not _exists(connection, schema, VERSION_TABLE):
        return None
    found = table(VERSION_TABLE, column("version_num", Text), schema=schema)
    return connection.scalar(select(found.c.version_num))


@cache
def _versions() -> frozenset[str]:
    """The versions of all migrations, from the names of the migration files."""
    files = (MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return frozenset(file.name.partition("_")[0] for file in files)
