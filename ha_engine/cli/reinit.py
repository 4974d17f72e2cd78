"""``ha-engine reinit``: empty a stopped node's data directory, so that it joins as a new node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.config import ConfigPath

if TYPE_CHECKING:
    from ha_engine.config import Config
    from ha_engine.node.reinit import Part

_AFTERWARDS = (
    "{node} has no journal now. Start {node}. At its start the node restores the newest snapshot. "
    "If there is no snapshot, the node gets all records from the active. 'ha-engine status' shows "
    "the progress of the node until it is in sync and warm."
)
_AFTER_THE_ONLY_COPY = (
    "If the lease row lists no other journal, no node becomes active by itself. An operator must "
    "then choose a node with 'ha-engine failover --force'."
)


def reinit(
    node: Annotated[str, typer.Argument(help="The node.id of this host's configuration.")],
    path: ConfigPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the data even if it may be the only copy.")
    ] = False,
) -> None:
    """Delete the journal, outbox and checkpoints of this host's stopped node.

    At its next start the node joins as a new node. Use this command if the node's journal is
    damaged, or if its records or its batches differ from the active's. The command refuses while
    the node runs, or while only its journal is in sync.

    Example: ha-engine reinit node-b -c engine.yaml
    """
    from ha_engine.config.load import load_config
    from ha_engine.node.reinit import empty, parts, require_this_host, stopped

    config = load_config(path, os.environ)
    require_this_host(config, node)
    if not config.node.data_dir.is_dir():
        typer.echo(f"{config.node.data_dir} does not exist: nothing to delete")
        return
    with stopped(config):
        found = parts(config)
        if not found:
            typer.echo(f"{config.node.data_dir} holds no data: nothing to delete")
            return
        safe = _has_another_copy(config, force, yes)
        _list(found)
        if not yes:
            typer.confirm(f"Delete the data of {node}?", abort=True)
        for part in found:
            empty(part)
            typer.echo(f"deleted the {part.name}")
    typer.echo(_AFTERWARDS.format(node=node))
    if not safe:
        typer.echo(_AFTER_THE_ONLY_COPY)


def _has_another_copy(config: Config, force: bool, yes: bool) -> bool:
    """Whether another copy of the node's data exists.

    Returns False if there may be no other copy, and ``force`` and the user permit the deletion.
    Raises OnlyCopy if there may be no other copy and ``force`` is False, Abort if the user refuses.
    """
    from ha_engine.cli.database import opened_lease
    from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable, OnlyCopy
    from ha_engine.node.reinit import require_another_copy

    try:
        with opened_lease(config) as store:
            require_another_copy(config, store.read())
    except (OnlyCopy, DatabaseUnreachable, DatabaseNotReady) as error:
        if not force:
            raise OnlyCopy(f"{error}; --force deletes it anyway") from error
        typer.echo(f"warning: {error}", err=True)
        if not yes:
            typer.confirm("Delete what may be the only copy of the data?", abort=True)
        return False
    return True


def _list(found: list[Part]) -> None:
    from rich.filesize import decimal

    for part in found:
        typer.echo(f"{part.name:<12} {decimal(part.bytes):>10}  {part.path}")
