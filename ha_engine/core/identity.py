"""Who a node is, as its disk, its config and its start say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is. ``new_group_id`` is used only if the group has no row yet (RULES.md#r6);
    ``peers`` are the other nodes of the group, as the config names them."""

    node: str
    process: str
    journal_id: str
    group_id: str | None
    new_group_id: str
    advertise: str | None = None
    peers: tuple[str, ...] = ()
