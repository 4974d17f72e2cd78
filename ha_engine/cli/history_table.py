"""The history of the lease as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from rich.markup import escape
from rich.table import Table

from ha_engine.types import Holder, HolderChange


def history_table(group: str, changes: Sequence[HolderChange]) -> Table:
    """A table with one row per change of the holder, in the order of ``changes``."""
    none = None if changes else "no node has held the lease yet"
    table = Table(title=f"holders of group {group}", caption=none)
    for name in ("when (UTC)", "epoch", "node", "previous node"):
        table.add_column(name, no_wrap=True, justify="right" if name == "epoch" else "left")
    table.add_column("reason", overflow="fold")
    table.add_column("outage", justify="right")
    for change in changes:
        table.add_row(
            f"{change.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            str(change.epoch),
            _node(change.holder),
            _node(change.previous),
            escape(change.reason or "-"),
            "-" if change.outage_seconds is None else f"{change.outage_seconds:.2f} s",
        )
    return table


def _node(holder: Holder | None) -> str:
    return holder.node if holder else "none"
