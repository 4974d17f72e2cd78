"""The facts about past versions of the lease row that a node keeps on disk for its next process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ha_engine.types import DatabaseIdentity, Holder, LeaseRow


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest (epoch, version) of the lease row that this node has ever read (RULES.md#r5).

    ``forced`` is the epoch that this node last tried to acquire by force, or 0 (RULES.md#r26).
    ``tried`` describes an acquisition with an unknown outcome: its epoch, and the lowest version of
    a row that settles the outcome. Without such an acquisition, ``tried`` is (0, 0). The node
    writes ``tried`` to disk before it sends the acquisition, so that the next process knows of it
    (RULES.md#r16).
    """

    epoch: int = 0
    version: int = 0
    identity: DatabaseIdentity | None = None
    forced: int = 0
    tried: tuple[int, int] = (0, 0)

    def above(self, row: LeaseRow) -> bool:
        return (row.epoch, row.version) < (self.epoch, self.version)

    def released_row(
        self, row: LeaseRow | None, dead: Holder, identity: DatabaseIdentity
    ) -> LeaseRow | None:
        """The row that releases the lease of ``dead``, a process that has certainly ended
        (RULES.md#r3).

        The result is None if ``dead`` does not hold the lease. The result is also None if the row
        is an old one, because the database failed over or was restored from a backup. A write would
        make an old row look new to a peer, which must not acquire from it (RULES.md#r5).
        """
        if row is None or row.holder != dead or row.identity != identity or self.above(row):
            return None
        return replace(row, version=row.version + 1, holder=None, successor=None)

    def when_tried(self, epoch: int, over: LeaseRow | None) -> HighWater:
        """Note that this node is about to acquire ``epoch`` over the row ``over``, or where no row
        exists."""
        return replace(self, tried=(epoch, (over.version if over else 0) + 1))

    def resolved_by(self, row: LeaseRow) -> HighWater:
        """Forget the tried acquisition if ``row`` shows that it took effect, or that it no longer
        can (RULES.md#r1)."""
        epoch, version = self.tried
        settled = row.epoch >= epoch or row.version >= version
        return replace(self, tried=(0, 0)) if settled else self
