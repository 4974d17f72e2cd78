"""``ha-engine db``: create, upgrade or finalise the engine's schema in a database, and show it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from ha_engine.postgres.schema_version import SchemaState

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
def upgrade(
    path: ConfigPath = None,
    url: DatabaseUrl = None,
    finalize: Annotated[
        bool, typer.Option("--finalize", help="End the upgrade: refuse older engines from now on.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --finalize: even if a node ran an older engine.")
    ] = False,
) -> None:
    """Upgrade the schema to the version of this ha-engine.

    Engines of the version before continue, and you may go back to them. Once all nodes run this
    version and you will not go back, run the command again with --finalize. It refuses while the
    last engine of a node is older. An older engine then refuses the database.

    Example: ha-engine db upgrade --finalize -c engine.yaml
    """
    if finalize:
        _finalize(path, url, force)
    elif force:
        raise typer.BadParameter("it needs --finalize", param_hint="--force")
    else:
        _upgrade(path, url)


@app.command()
def version(
    path: ConfigPath = None,
    url: DatabaseUrl = None,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Print the schema version of the database, and which engines may use it.

    Example: ha-engine db version -c engine.yaml
    """
    from ha_engine.postgres.schema_version import read_state

    with _database(path, url) as (engine, schema):
        found = read_state(engine, schema)
    tree = {"schema": schema, **asdict(found)}
    show(tree, output, as_json, lambda: _print_state(found))


def _print_state(found: SchemaState) -> None:
    typer.echo(found.version or "none")
    if found.floor is not None and found.floor != found.version:
        typer.echo(f"not finalised: engines that know version {found.floor} may use it")
    for one in found.nodes:
        typer.echo(
            f"{one.node} of group {one.group} last ran ha-engine {one.engine}, which knows "
            f"version {one.schema_version}"
        )


def _upgrade(path: ConfigPath, url: DatabaseUrl) -> None:
    from ha_engine.postgres.engine import place
    from ha_engine.postgres.upgrade import upgrade as upgrade_schema

    with _database(path, url) as (engine, schema):
        done = upgrade_schema(engine, schema)
        where = f"schema {schema} in {place(engine)}"
    before, after = done.before.version, done.after.version
    if before is None:
        typer.echo(f"created {where}, version {after}")
    elif before == after:
        typer.echo(f"{where} has version {after}: nothing to do")
    else:
        typer.echo(
            f"upgraded {where} from version {before} to {after}; engines that know version "
            f"{done.after.floor} may use it until 'ha-engine db upgrade --finalize'"
        )


def _finalize(path: ConfigPath, url: DatabaseUrl, force: bool) -> None:
    from ha_engine.postgres.engine import place
    from ha_engine.postgres.upgrade import finalize

    with _database(path, url) as (engine, schema):
        done = finalize(engine, schema, force=force)
        where = f"schema {schema} in {place(engine)}"
    if done.before == done.after:
        typer.echo(f"{where} is finalised at version {done.after.floor}: nothing to do")
    else:
        typer.echo(
            f"finalised {where}: only engines that know version {done.after.floor} may use it"
        )


@contextmanager
def _database(path: ConfigPath, url: DatabaseUrl) -> Iterator[tuple[Engine, str]]:
    from ha_engine.cli.database import opened_engine
    from ha_engine.config.load import load_config

    database = load_config(path, os.environ).database
    with opened_engine(database, url) as engine:
        yield engine, database.schema_name
