"""The part of the lease row's past that a node keeps on its disk, for its next process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ha_engine.types import DatabaseIdentity, Holder, LeaseRow


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest (epoch, version) that this node ever read (RULES.md#r5).

    ``forced`` is the epoch that it last tried to acquire by force, 0 for none (RULES.md#r26).
    ``tried`` describes an acquisition with an unknown outcome: its epoch, and the lowest version of
    a row that settles it; (0, 0) for none. The node writes it to disk before it sends the
    acquisition, so it binds the next process too (RULES.md#r16).
    """

    epoch: int = 0
    version: int = 0
    identity: DatabaseIdentity | None = None
    forced: int = 0
    tried: tuple[int, int] = (0, 0)

    def above(self, row: LeaseRow) -> bool:
        return (row.epoch, row.version) < (self.epoch, self.version)

    def freed(
        self, row: LeaseRow | None, dead: Holder, identity: DatabaseIdentity
    ) -> LeaseRow | None:
        """The row that releases the lease of ``dead``, a process that has certainly ended
        (RULES.md#r3).

        None if ``dead`` does not hold the lease. None too over an old row, after a failover of the
        database or from its backup: a write would make the row look new to a peer that must not
        acquire from it (RULES.md#r5).
        """
        if row is None or row.holder != dead or row.identity != identity or self.above(row):
            return None
        return replace(row, version=row.version + 1, holder=None, successor=None)

    def when_tried(self, epoch: int, over: LeaseRow | None) -> HighWater:
        """Note an acquisition of ``epoch`` that goes out over the row ``over``, or over none."""
        return replace(self, tried=(epoch, (over.version if over else 0) + 1))

    def resolved_by(self, row: LeaseRow) -> HighWater:
        """Forget what was tried if ``row`` shows that it is done, or can no longer happen
        (RULES.md#r1)."""
        epoch, version = self.tried
        settled = row.epoch >= epoch or row.version >= version
        return replace(self, tried=(0, 0)) if settled else self
