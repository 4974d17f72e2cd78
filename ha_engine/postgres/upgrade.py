"""Create, upgrade or finalise the project's schema in a database.

An upgrade changes the schema while other nodes use it, so only an operator starts an upgrade. It
applies the migrations that add something, so engines of the version before continue. To finalise
the upgrade raises the floor of the schema, and then applies the migrations that remove something
(RULES.md#r32). A node that may not use the schema stops at its start with DatabaseNotReady.
An embedded database belongs to one node, so the start of this node upgrades the schema. Only one
upgrade runs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.schema import CreateSchema

from ha_engine.errors import DatabaseNotReady, OlderEngineInUse
from ha_engine.postgres.engine import place, translated
from ha_engine.postgres.schema import SCHEMA, schema_floor
from ha_engine.postgres.schema_version import (
    CONTRACTING,
    MIGRATIONS,
    NodeEngine,
    SchemaState,
    in_schema,
    newest,
    refuse_below_floor,
    required,
    state_in,
)

_WAIT_FOR_OTHERS = "60s"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The state of the schema before and after an upgrade."""

    before: SchemaState
    after: SchemaState


def upgrade(engine: Engine, schema: str = SCHEMA) -> Upgrade:
    """Create the schema, or upgrade it to the version that this program needs, in one transaction.

    A new schema is finalised at once, since no older engine has used it. A second caller waits for
    the first caller's upgrade, and then changes nothing. An older program changes nothing either,
    while the upgrade of the newer one is not finalised.

    Raises DatabaseUnreachable. Raises DatabaseNotReady when the database role may not create the
    schema, when this program is below the floor, and when an earlier upgrade must be finalised
    first.
    """
    with _alone(engine, schema) as (connection, before):
        refuse_below_floor(engine, before.floor)
        if before.version is None:
            connection.execute(CreateSchema(schema, if_not_exists=True))
            _migrate(connection, schema, newest())
            _raise_floor(connection)
        elif before.version < required():
            _refuse_unfinalised(engine, before.version)
            _migrate(connection, schema, required())
        return Upgrade(before, state_in(connection, schema))


def finalize(engine: Engine, schema: str = SCHEMA, *, force: bool = False) -> Upgrade:
    """Let no engine older than this program use the schema any more.

    The first transaction raises the floor, and the second one removes what only older engines use.
    After a failure between the two, another call continues.

    Raises DatabaseUnreachable. Raises DatabaseNotReady when the schema is older than this program
    needs, or newer than this program knows. Raises OlderEngineInUse when a node last connected with
    an older engine, unless ``force`` is True.
    """
    with _alone(engine, schema) as (connection, before):
        refuse_below_floor(engine, before.floor)
        _require_upgraded(engine, before.version)
        # A node that connects now waits for this lock (``schema_version.admit``).
        connection.execute(select(schema_floor.c.version).with_for_update()).one()
        if not force:
            _refuse_older(state_in(connection, schema).nodes)
        _raise_floor(connection)
    with _alone(engine, schema) as (connection, raised):
        if raised.version is not None and raised.version < newest():
            _migrate(connection, schema, newest())
        return Upgrade(before, state_in(connection, schema))


@contextmanager
def _alone(engine: Engine, schema: str) -> Iterator[tuple[Connection, SchemaState]]:
    """Begin a transaction that waits for all other upgrades of the schema."""
    with translated(engine), in_schema(engine, schema).begin() as connection:
        connection.execute(text(f"SET LOCAL statement_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_FOR_OTHERS}'"))
        lock = func.hashtextextended(f"ha-engine schema {schema}", 0)
        connection.execute(select(func.pg_advisory_xact_lock(lock)))
        yield connection, state_in(connection, schema)


def _migrate(connection: Connection, schema: str, version: str) -> None:
    command.upgrade(_alembic(connection, schema), version)


def _raise_floor(connection: Connection) -> None:
    connection.execute(update(schema_floor).values(version=newest()))


def _refuse_unfinalised(engine: Engine, version: str) -> None:
    """Raise DatabaseNotReady if the upgrade would apply a contracting migration on its way."""
    between = sorted(v for v in CONTRACTING if version < v < required())
    if between:
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {version}, and the upgrade to "
            f"{between[-1]} was not finalised; run 'ha-engine db upgrade --finalize' with the "
            "version of ha-engine that both nodes run now, then upgrade"
        )


def _require_upgraded(engine: Engine, version: str | None) -> None:
    if version is None or version < required():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {version or 'none'}, and this "
            f"program needs {required()}; run 'ha-engine db upgrade' first"
        )
    if version > newest():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {version}, which this program does "
            "not know; finalise with the version of ha-engine that upgraded the schema"
        )


def _refuse_older(nodes: tuple[NodeEngine, ...]) -> None:
    older = [
        f"{one.node} of group {one.group} (ha-engine {one.engine})"
        for one in nodes
        if one.schema_version < newest()
    ]
    if older:
        raise OlderEngineInUse(
            f"an older engine was the last one of {', '.join(older)}; upgrade and start these "
            "nodes first, or add --force if they never start again with the older engine"
        )


def _alembic(connection: Connection, schema: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, schema=schema)
    return config
