"""Create or upgrade the project's schema in a database.

An upgrade changes the schema while other nodes may use it, so only an operator starts an upgrade. A
node that finds another schema version at its start stops with DatabaseNotReady.
An embedded database belongs to one node, so the start of this node upgrades the schema. Only one
upgrade runs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.schema import CreateSchema

from ha_engine.postgres.engine import translated
from ha_engine.postgres.schema import SCHEMA
from ha_engine.postgres.schema_version import MIGRATIONS, newest, refuse_newer, version_in

_WAIT_FOR_OTHERS = "60s"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The schema versions before and after an upgrade.

    ``before`` is None if the database had no schema before the upgrade.
    """

    before: str | None
    after: str


def upgrade(engine: Engine, schema: str = SCHEMA) -> Upgrade:
    """Create the schema, or upgrade it to the version of this program, in one transaction.

    A second caller waits for the first caller's upgrade, and then changes nothing. Raises
    DatabaseUnreachable. Raises DatabaseNotReady when the database role may not create the schema.
    Also raises DatabaseNotReady when the schema is newer than this program.
    """
    with translated(engine), engine.begin() as connection:
        connection.execute(text(f"SET LOCAL statement_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(
            select(
                func.pg_advisory_xact_lock(func.hashtextextended(f"ha-engine schema {schema}", 0))
            )
        )
        before = version_in(connection, schema)
        refuse_newer(engine, before)
        connection.execute(CreateSchema(schema, if_not_exists=True))
        command.upgrade(_alembic(connection, schema), "head")
        return Upgrade(before, newest())


def _alembic(connection: Connection | None = None, schema: str = SCHEMA) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, schema=schema)
    return config
