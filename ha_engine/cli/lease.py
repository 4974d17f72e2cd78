"""``ha-engine pause``, ``resume`` and ``history``: the group's lease, with or without a node."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import FormatOption, print_tree


def pause(path: ConfigPath = None) -> None:
    """Let no node take over the lease until 'resume': for work on a host or on the database.

    The active goes on and renews its lease. If it dies or is stopped meanwhile, no node takes
    events before 'resume', not even the one that was active. Works without a running node.

    Example: ha-engine pause -c engine.yaml
    """
    _set_paused(path, True)


def resume(path: ConfigPath = None) -> None:
    """End a pause: an in-sync node takes over again when the active falls silent.

    Example: ha-engine resume -c engine.yaml
    """
    _set_paused(path, False)


def history(
    path: ConfigPath = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="How many lines at most.")
    ] = 20,
    output: FormatOption = "pretty",
) -> None:
    """Show who held the lease, since when and why, and the outage at each change; newest first.

    Example: ha-engine history -n 5 -f json
    """
    from ha_engine.api.history import history_tree
    from ha_engine.cli.database import opened_lease
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_lease(config) as store:
        changes = store.history(limit)
    if output != "pretty":
        print_tree(history_tree(config.group, changes), output)
        return
    from rich.console import Console

    from ha_engine.cli.history_table import history_table

    Console().print(history_table(config.group, changes))


def _set_paused(path: ConfigPath, paused: bool) -> None:
    from ha_engine.cli.database import opened_lease
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_lease(config) as store:
        row = store.set_paused(paused)
    state = "paused" if row.paused else "on"
    holder = f"{row.holder.node} holds the lease" if row.holder else "nobody holds the lease"
    typer.echo(
        f"automatic failover of group {config.group} is {state}; {holder}, epoch {row.epoch}"
    )
