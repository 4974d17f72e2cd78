"""``ha-engine pause``, ``resume`` and ``history``: the group's lease, with or without a node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ha_engine.cli.config import ConfigPath
from ha_engine.cli.formats import Format, FormatOption, JsonOption, show

if TYPE_CHECKING:
    from ha_engine.types import HolderChange


def pause(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """Forbid every takeover of the lease until 'resume', for work on a host or on the database.

    During the pause the active works as before and renews its lease. If the active dies or stops
    during the pause, no node takes events before 'resume', not even the former active. The command
    needs no running node.

    Example: ha-engine pause -c engine.yaml
    """
    _set_paused(path, True, "json" if as_json else output)


def resume(
    path: ConfigPath = None, output: FormatOption = "pretty", as_json: JsonOption = False
) -> None:
    """End a pause, so that an in-sync node takes over again when the active fails.

    Example: ha-engine resume -c engine.yaml
    """
    _set_paused(path, False, "json" if as_json else output)


def history(
    path: ConfigPath = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number of lines.")
    ] = 20,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
) -> None:
    """Show the holders of the lease, newest first: start, reason, and the outage before each start.

    Example: ha-engine history -n 5 -f json
    """
    from ha_engine.api.history import history_tree
    from ha_engine.cli.database import opened_lease
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_lease(config) as store:
        changes = store.history(limit)
    tree = history_tree(config.group, changes)
    show(tree, output, as_json, lambda: _print_history(config.group, changes))


def _print_history(group: str, changes: Sequence[HolderChange]) -> None:
    from rich.console import Console

    from ha_engine.cli.history_table import history_table

    Console().print(history_table(group, changes))


def _set_paused(path: ConfigPath, paused: bool, output: Format) -> None:
    from ha_engine.api.history import pause_tree
    from ha_engine.cli.database import opened_lease
    from ha_engine.config.load import load_config

    config = load_config(path, os.environ)
    with opened_lease(config) as store:
        row = store.set_paused(paused)
    state = "paused" if row.paused else "on"
    holder = f"{row.holder.node} holds the lease" if row.holder else "no node holds the lease"
    sentence = f"automatic failover of group {config.group} is {state}; {holder}, epoch {row.epoch}"
    show(pause_tree(config.group, row), output, False, lambda: typer.echo(sentence))
