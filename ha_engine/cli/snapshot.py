"""``ha-engine snapshot``: take a snapshot now, list snapshots, verify them, restore one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, JsonOption, show
from ha_engine.cli.status import LOCAL, UrlOption

if TYPE_CHECKING:
    from ha_engine.postgres.snapshot_store import SnapshotStore
    from ha_engine.snapshot.files import Progress
    from ha_engine.snapshot.manifest import Manifest
    from ha_engine.snapshot.restore import Places, Restoring
    from ha_engine.types import Revision

app = typer.Typer(
    help="Manage the group's snapshots in the database.\n\nExample: ha-engine snapshot now",
    no_args_is_help=True,
)


@app.command()
def now(
    url: UrlOption = LOCAL,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for the snapshot.")
    ] = 120.0,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Take a snapshot of all records that are committed now, and wait until it is stored.

    Example: ha-engine snapshot now --url http://node-a:8080
    """
    from ha_engine.client.snapshot import await_snapshot

    revision = await_snapshot(url, wait)
    show(revision, output, as_json, lambda: typer.echo(_sentence(revision)))


def _sentence(revision: Mapping[str, Any]) -> str:
    return (
        f"revision {revision['id']} is stored: position {_place(revision)}, taken by "
        f"{revision['taken_by']}, {_size(revision['bytes_total'])} of which "
        f"{_size(revision['bytes_new'])} are new"
    )


@app.command("list")
def list_revisions(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Show the kept snapshots, newest first. The command needs no running node.

    Example: ha-engine snapshot list -c engine.yaml -f json
    """
    from ha_engine.api.snapshot import revision_tree
    from ha_engine.cli.database import opened_snapshots
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_snapshots(config) as store:
        revisions = [revision_tree(revision) for revision in store.revisions()]
    tree = {"group": config.group, "revisions": revisions}
    show(tree, output, as_json, lambda: _print_table(config.group, revisions))


@app.command()
def verify(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Read every chunk of every kept snapshot, and print which snapshots are damaged.

    The exit code is 1 if a snapshot is damaged. The command marks a damaged chunk as missing, so
    that the next snapshot stores the chunk again.

    Example: ha-engine snapshot verify -c engine.yaml
    """
    from ha_engine.cli.database import opened_snapshots
    from ha_engine.cli.transfers import shown_bytes
    from ha_engine.config.load import load_config
    from ha_engine.node.build import checkpoints_of

    config = load_config(path, os.environ)
    problems = checkpoints_of(config).kept_problems
    with opened_snapshots(config) as store:
        found = []
        for revision in store.revisions():
            with shown_bytes(f"revision {revision.id}", revision.bytes_total) as advance:
                found.append({"id": revision.id, **_verified(store, revision, advance, problems)})
    tree = {"group": config.group, "revisions": found}
    show(tree, output, as_json, lambda: _print_damage(found))
    if any(one["damage"] for one in found):
        raise typer.Exit(1)


def _verified(
    store: SnapshotStore,
    revision: Revision,
    advance: Progress,
    kept_problems: Callable[[Manifest], list[str]],
) -> dict[str, Any]:
    from ha_engine.errors import RevisionForgotten
    from ha_engine.snapshot.verification import verify as verified

    try:
        return {"damage": verified(store, revision, advance, kept_problems), "forgotten": False}
    except RevisionForgotten:
        return {"damage": [], "forgotten": True}


_AFTERWARDS = (
    "{node} is restored to position {place}, {whence}. Later committed records are lost, even if "
    "they were acked. Batches that were published from these records stay in the sinks. Start the "
    "node. The lease row does not list the node's new journal, so then make the node the active: "
    "ha-engine failover --force --confirm-fenced OTHER-NODE"
)


@app.command()
def restore(
    node: Annotated[str, typer.Argument(help="The node.id of this host's configuration.")],
    path: ConfigPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Restore this host's stopped, empty node from the newest undamaged snapshot.

    Use this command when the journals of all nodes are lost. Do not use it while an in-sync node is
    left, but start the empty node. At its start an empty node restores the newest snapshot by
    itself, and then gets every later record from the active.

    Example: ha-engine snapshot restore node-a -c engine.yaml
    """
    from ha_engine.cli.database import opened_snapshots
    from ha_engine.config.load import load_config
    from ha_engine.deploy import application_of
    from ha_engine.node.build import checkpoints_of, restoring_of
    from ha_engine.node.reinit import require_no_journal, require_this_host, stopped
    from ha_engine.snapshot.restore import finish

    config = load_config(path, os.environ)
    require_this_host(config, node)
    application = application_of(config)
    config.node.data_dir.mkdir(parents=True, exist_ok=True)
    with stopped(config), opened_snapshots(config) as store:
        require_no_journal(config)
        restoring = restoring_of(config, application, store, checkpoints_of(config))
        if finish(restoring.places, restoring.checkpoints):
            place, whence = _place_of(restoring.places), "from an earlier restore"
        else:
            if not yes:
                typer.confirm("Are the journals of all nodes of the group lost?", abort=True)
            revision = _newest(restoring)
            finish(restoring.places, restoring.checkpoints)
            place = str(revision.position)
            whence = f"as stored by {revision.taken_by} {revision.age_seconds:.0f} s ago"
    typer.echo(_AFTERWARDS.format(node=node, place=place, whence=whence))


def _place_of(places: Places) -> str:
    from ha_engine.snapshot import restored
    from ha_engine.snapshot.restore import JOURNAL

    found = restored.load(places.home / JOURNAL)
    return found.position if found else "its snapshot"


def _newest(restoring: Restoring) -> Revision:
    """Restore the newest undamaged revision, and return it.

    Raises SnapshotDamaged, with advice for the user, if no revision can be restored.
    """
    from ha_engine.cli.transfers import shown_transfer
    from ha_engine.errors import SnapshotDamaged, SnapshotUnfit

    try:
        with shown_transfer("restoring") as transfer:
            return replace(restoring, transfer=transfer).restore(None)
    except SnapshotUnfit as error:
        raise SnapshotUnfit(
            f"{error}; install the application of the snapshot again ('ha-engine app check' prints "
            "an application's digest), restore, and change the application after the restore"
        ) from error
    except SnapshotDamaged as error:
        raise SnapshotDamaged(
            f"{error}; no other snapshot can be used. If every journal is lost too, the group must "
            "begin without data: start a node and run 'ha-engine failover --force'"
        ) from error


def _print_damage(found: list[dict[str, Any]]) -> None:
    if not found:
        typer.echo("there is no snapshot yet")
    for one in found:
        sound = "deleted meanwhile" if one["forgotten"] else "undamaged"
        typer.echo(f"revision {one['id']}: {'damaged' if one['damage'] else sound}")
        for sentence in one["damage"]:
            typer.echo(f"  {sentence}")
    if any(one["damage"] for one in found):
        typer.echo(
            "take a new snapshot, which stores the damaged chunks again: ha-engine snapshot now"
        )


def _print_table(group: str, revisions: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    none = None if revisions else "no snapshot has been taken yet"
    table = Table(title=f"snapshots of group {group}", caption=none)
    for name in ("id", "stored at (UTC)", "position", "taken by", "size", "new"):
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
    Console().print(table)


def _place(revision: Mapping[str, Any]) -> str:
    return f"{revision['epoch']}.{revision['sequence']}"


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
