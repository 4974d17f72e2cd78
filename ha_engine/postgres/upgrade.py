"""How a database gets the project's schema: only when an operator asks, one at a time.

Not called at start: a node that meets another schema version stops with DatabaseNotReady instead of
changing what its peer works with.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.schema import CreateSchema

from ha_engine.errors import DatabaseNotReady
from ha_engine.postgres.engine import place, translated
from ha_engine.postgres.schema import SCHEMA

_WAIT_FOR_OTHERS = "60s"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade found and left; ``before`` is None in a database without the schema."""

    before: str | None
    after: str


def upgrade(engine: Engine, schema: str = SCHEMA) -> Upgrade:
    """Bring the schema to this version in one transaction; a second caller waits and finds it done.

    Raises DatabaseUnreachable, or DatabaseNotReady when the role may not create it or the database
    is newer than this program.
    """
    with translated(engine), engine.begin() as connection:
        connection.execute(text(f"SET LOCAL statement_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(
            select(
                func.pg_advisory_xact_lock(func.hashtextextended(f"ha-engine schema {schema}", 0))
            )
        )
        before = _version(connection, schema)
        _refuse_newer(engine, before)
        connection.execute(CreateSchema(schema, if_not_exists=True))
        command.upgrade(_alembic(connection, schema), "head")
        return Upgrade(before, _newest())


def current(engine: Engine, schema: str = SCHEMA) -> str | None:
    """The schema version of the database, None without one. Raises DatabaseUnreachable."""
    with translated(engine), engine.connect() as connection:
        return _version(connection, schema)


def require_current(engine: Engine, schema: str = SCHEMA) -> None:
    """Raise DatabaseNotReady, with what to do, unless the schema is of this program's version."""
    found = current(engine, schema)
    _refuse_newer(engine, found)
    if found != _newest():
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {found or 'none'}, "
            f"this program needs {_newest()}; run: ha-engine db {'upgrade' if found else 'init'}"
        )


def _version(connection: Connection, schema: str) -> str | None:
    options = {"version_table": "schema_version", "version_table_schema": schema}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _alembic(connection: Connection | None = None, schema: str = SCHEMA) -> Config:
    config = Config()
    config.set_main_option(
        "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
    )
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, schema=schema)
    return config


def _newest() -> str:
    head = ScriptDirectory.from_config(_alembic()).get_current_head()
    if head is None:
        raise LookupError("the package carries no migrations")
    return head


def _refuse_newer(engine: Engine, found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}
    if found is not None and found not in known:
        raise DatabaseNotReady(
            f"the database {place(engine)} has schema version {found}, "
            "which this program does not know; "
            "install the version of ha-engine that wrote it, or a newer one"
        )
