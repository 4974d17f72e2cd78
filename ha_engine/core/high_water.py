"""What a node keeps of the group's row on its disk, for the process that comes after this one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ha_engine.types import DatabaseIdentity, Holder, LeaseRow


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest (epoch, version) that this node ever read (RULES.md#r5).

    ``forced`` is the epoch that it last tried to acquire by force, 0 for none (RULES.md#r26).
    ``tried`` is of an acquire of unknown outcome: its epoch, and the version from which on a row
    excludes it; (0, 0) for none. It is on disk before it is sent, and binds the next process too
    (RULES.md#r16).
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
        """What to write where ``dead`` holds the lease, a process that has certainly ended
        (RULES.md#r3).

        None where it does not, and over a row of the past, after a failover of the database or from
        its backup: a write would make it look new to a peer that must not acquire from it
        (RULES.md#r5).
        """
        if row is None or row.holder != dead or row.identity != identity or self.above(row):
            return None
        return replace(row, version=row.version + 1, holder=None, successor=None)

    def when_tried(self, epoch: int, over: LeaseRow | None) -> HighWater:
        """An acquire of ``epoch`` goes out; it needs ``over`` to stand there, or no row at all."""
        return replace(self, tried=(epoch, (over.version if over else 0) + 1))

    def resolved_by(self, row: LeaseRow) -> HighWater:
        """``row`` stands there: is what was tried done, or impossible from now on (RULES.md#r1)?"""
        epoch, version = self.tried
        settled = row.epoch >= epoch or row.version >= version
        return replace(self, tried=(0, 0)) if settled else self
