"""The identity of a node, from its disk, its config and its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of this node.

    ``new_group_id`` becomes the UUID of the group if the group has no lease row yet (RULES.md#r6).
    ``peers`` names the other nodes of the group in the config. ``backup`` names the group's backup,
    which may be this node, or is None if the group has none (RULES.md#r37).
    """

    node: str
    process: str
    journal_id: str
    group_id: str | None
    new_group_id: str
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    backup: str | None = None

    @property
    def is_backup(self) -> bool:
        return self.node == self.backup
