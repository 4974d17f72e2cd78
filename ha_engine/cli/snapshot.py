"""``ha-engine snapshot``: take one now, list them, verify them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, print_tree
from ha_engine.cli.status import LOCAL, UrlOption

app = typer.Typer(no_args_is_help=True, help="Snapshots of the group in the database.")


@app.command()
def now(
    url: UrlOption = LOCAL,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it is visible.")
    ] = 120.0,
    output: FormatOption = "pretty",
) -> None:
    """Have the active take a snapshot of everything that is committed now, and wait for it.

    Example: ha-engine snapshot now --url http://node-a:8080
    """
    from ha_engine.client.snapshot import await_snapshot

    revision = await_snapshot(url, wait)
    if output != "pretty":
        print_tree(revision, output)
        return
    typer.echo(
        f"revision {revision['id']} is visible: it stands at {_place(revision)}, was taken by "
        f"{revision['taken_by']}, {_size(revision['bytes_total'])} of which "
        f"{_size(revision['bytes_new'])} are new"
    )


@app.command("list")
def list_revisions(path: ConfigPath = None, output: FormatOption = "pretty") -> None:
    """Show the snapshots that are kept, newest first. Works without a running node.

    Example: ha-engine snapshot list -c engine.yaml -f json
    """
    from ha_engine.api.snapshot import revision_tree
    from ha_engine.cli.database import opened_snapshots
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_snapshots(config) as store:
        revisions = [revision_tree(revision) for revision in store.revisions()]
    if output != "pretty":
        print_tree({"group": config.group, "revisions": revisions}, output)
        return
    from rich.console import Console

    Console().print(_table(config.group, revisions))


@app.command()
def verify(path: ConfigPath = None, output: FormatOption = "pretty") -> None:
    """Read every chunk of every kept snapshot, and say whether each could be restored.

    Ends with code 1 when one could not. Example: ha-engine snapshot verify -c engine.yaml
    """
    from ha_engine.cli.database import opened_snapshots
    from ha_engine.config.load import load_config
    from ha_engine.snapshot.verification import damage

    config = load_config(path, os.environ)
    with opened_snapshots(config) as store:
        found = [
            {"id": revision.id, "damage": list(damage(store, revision.id, lambda done: None))}
            for revision in store.revisions()
        ]
    if output != "pretty":
        print_tree({"group": config.group, "revisions": found}, output)
    else:
        _tell_of_damage(found)
    if any(one["damage"] for one in found):
        raise typer.Exit(1)


def _tell_of_damage(found: list[dict[str, Any]]) -> None:
    if not found:
        typer.echo("there is no snapshot yet")
    for one in found:
        typer.echo(f"revision {one['id']}: {'damaged' if one['damage'] else 'whole'}")
        for sentence in one["damage"]:
            typer.echo(f"  {sentence}")


def _table(group: str, revisions: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    none = None if revisions else "no snapshot has been taken yet"
    table = Table(title=f"snapshots of group {group}", caption=none)
    for name in ("id", "visible at (UTC)", "stands at", "taken by", "size", "new"):
        table.add_column(name, justify="right" if name in {"id", "size", "new"} else "left")
    for one in revisions:
        table.add_row(
            str(one["id"]),
            one["visible_at"][:19].replace("T", " "),
            _place(one),
            one["taken_by"],
            _size(one["bytes_total"]),
            _size(one["bytes_new"]),
        )
    return table


def _place(revision: dict[str, Any]) -> str:
    return f"{revision['epoch']}.{revision['sequence']}"


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
