"""Read the schema version of a database, and compare it with the version of this program.

Each start of a node checks the schema version, so this module must not import Alembic. Only the
code that creates or upgrades a schema imports Alembic.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, Engine, Text, cast, column, func, select, table

from ha_engine.errors import DatabaseNotReady
from ha_engine.postgres.engine import place, translated
from ha_engine.postgres.schema import SCHEMA

VERSION_TABLE = "schema_version"
MIGRATIONS = Path(__file__).parent / "migrations"


def current(engine: Engine, schema: str = SCHEMA) -> str | None:
    """The schema version of the database, or None if the database lacks the schema.

    Raises DatabaseUnreachable.
    """
    with translated(engine), engine.connect() as connection:
        return version_in(connection, schema)


def require_current(engine: Engine, schema: str = SCHEMA) -> None:
    """Raise DatabaseNotReady, with advice, unless the schema has the version of this program."""
    found = current(engine, schema)
    refuse_newer(engine, found)
    if found != newest():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {found or 'none'}, "
            f"this program needs {newest()}; run: ha-engine db {'upgrade' if found else 'init'}"
        )


def version_in(connection: Connection, schema: str) -> str | None:
    name = func.format("%I.%I", schema, VERSION_TABLE)
    if connection.scalar(select(cast(func.to_regclass(name), Text))) is None:
        return None
    found = table(VERSION_TABLE, column("version_num", Text), schema=schema)
    return connection.scalar(select(found.c.version_num))


def newest() -> str:
    """The newest schema version for which this program has a migration."""
    return max(_versions())


def refuse_newer(engine: Engine, found: str | None) -> None:
    """Raise DatabaseNotReady if this program does not know the schema version ``found``."""
    if found is not None and found not in _versions():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {found}, "
            "which this program does not know; "
            "install the version of ha-engine that wrote it, or a newer one"
        )


@cache
def _versions() -> frozenset[str]:
    """The versions of all migrations, from the names of the migration files."""
    files = (MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return frozenset(file.name.partition("_")[0] for file in files)
