"""``ha-engine db``: create or upgrade the engine's schema in a database, and print its version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from sqlalchemy import Engine

app = typer.Typer(
    help="Prepare the database that both nodes share.\n\nExample: ha-engine db init -c engine.yaml",
    no_args_is_help=True,
)

DatabaseUrl = Annotated[
    str | None,
    typer.Option("--url", help="Database URL; without it, that of the config."),
]


@app.command()
def init(path: ConfigPath = None, url: DatabaseUrl = None) -> None:
    """Create the engine's schema in the database.

    You may repeat the command, and run it from several hosts at once.

    Example: ha-engine db init -c engine.yaml
    """
    _upgrade(path, url)


@app.command()
def upgrade(path: ConfigPath = None, url: DatabaseUrl = None) -> None:
    """Upgrade the schema to the version of this ha-engine.

    Example: ha-engine db upgrade -c engine.yaml
    """
    _upgrade(path, url)


@app.command()
def version(
    path: ConfigPath = None,
    url: DatabaseUrl = None,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Print the schema version of the database.

    Example: ha-engine db version -c engine.yaml
    """
    from ha_engine.postgres.schema_version import current

    with _database(path, url) as (engine, schema):
        found = current(engine, schema)
    tree = {"schema": schema, "version": found}
    show(tree, output, as_json, lambda: typer.echo(found or "none"))


def _upgrade(path: ConfigPath, url: DatabaseUrl) -> None:
    from ha_engine.postgres.engine import place
    from ha_engine.postgres.upgrade import upgrade as upgrade_schema

    with _database(path, url) as (engine, schema):
        done = upgrade_schema(engine, schema)
        where = f"schema {schema} in {place(engine)}"
    match done.before:
        case None:
            typer.echo(f"created {where}, version {done.after}")
        case done.after:
            typer.echo(f"{where} has version {done.after}: nothing to do")
        case before:
            typer.echo(f"upgraded {where} from version {before} to {done.after}")


@contextmanager
def _database(path: ConfigPath, url: DatabaseUrl) -> Iterator[tuple[Engine, str]]:
    from ha_engine.cli.database import opened_engine
    from ha_engine.config.load import load_config

    database = load_config(path, os.environ).database
    with opened_engine(database, url) as engine:
        yield engine, database.schema_name
