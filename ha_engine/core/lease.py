"""The arithmetic of the lease: when to read, when to acquire, when to renew, how long to act.

Pure, and about this node alone. It never decides what a role change means; ``core`` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. The config refuses renew_every + 2 * db_timeout > ttl - margin."""

    ttl: float
    renew_every: float
    margin: float


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest (epoch, version) that this node ever read, kept on its disk (R5)."""

    epoch: int = 0
    version: int = 0
    identity: DatabaseIdentity | None = None

    def above(self, row: LeaseRow) -> bool:
        return (row.epoch, row.version) < (self.epoch, self.version)


class Lease:
    """What this node knows of the row, and since when, on its own clock."""

    def __init__(
        self, me: Holder, member: Member, timing: LeaseTiming, high_water: HighWater
    ) -> None:
        self.me, self.member, self.timing, self.high_water = me, member, timing, high_water
        self.row: LeaseRow | None = None
        # R5, R6: the newest row that this node knows of, if it is this process's own.
        self.held: LeaseRow | None = None
        self.identity: DatabaseIdentity | None = None
        self.read_once = False
        # I2, R4: taken on this node's clock before the request was sent, never after its reply.
        self.sent_at: float | None = None
        self.next_at = -math.inf
        self.safe_until = -math.inf
        # R4: since when (epoch, version) has stood still for this process.
        self.still_since = math.inf

    # -- requests ----------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """One request at a time, one each ``renew_every``."""
        return self.sent_at is None and now >= self.next_at

    def sent(self, now: float) -> None:
        self.sent_at, self.next_at = now, now + self.timing.renew_every

    def again_at_once(self, now: float) -> None:
        self.next_at = now

    # -- outcomes ----------------------------------------------------------------------------------

    def saw(self, now: float, row: LeaseRow | None, identity: DatabaseIdentity) -> None:
        """A read tells what stands there; it never extends safe_until (R1)."""
        self.sent_at, self.read_once, self.identity = None, True, identity
        self._remember(now, row)

    def wrote(self, now: float, row: LeaseRow) -> None:
        """A write of ours succeeded: the one thing that extends safe_until (I2)."""
        assert self.sent_at is not None
        self._remember(now, row)
        if row.holder == self.me:
            self.safe_until = self.sent_at + self.timing.ttl - self.timing.margin
        self.sent_at = None

    def failed(self) -> None:
        """Denied or unknown: what stands there is to be read before the next write (R1)."""
        self.sent_at, self.read_once = None, False

    def heard_of(self, epoch: int) -> None:
        """R14: a record, ledger or message carries ``epoch``; a row below it is a regressed one."""
        if epoch > self.high_water.epoch:
            self.high_water = HighWater(epoch, 0, self.high_water.identity)

    def _remember(self, now: float, row: LeaseRow | None) -> None:
        if row is None or self.row is None or _stamp(row) != _stamp(self.row):
            self.still_since = now
        self.row = row
        if row is not None and not self.high_water.above(row):
            self.high_water = HighWater(row.epoch, row.version, self.identity)
            self.held = row if row.holder == self.me else None

    # -- questions ---------------------------------------------------------------------------------

    @property
    def mine(self) -> bool:
        return self.row is not None and self.row.holder == self.me

    @property
    def regressed(self) -> bool:
        """The row is older than one this node has read: the database lost writes (R5)."""
        return self.row is not None and self.high_water.above(self.row)

    @property
    def alone(self) -> bool:
        """The only in-sync member, by its own write: nobody else can acquire (R3, R15)."""
        return self.mine and self.row is not None and self.row.in_sync == (self.member,)

    def may_rewrite(self) -> bool:
        """R5, R6: the row was lost, and nobody can hold a higher epoch than this process does."""
        held, lost = self.held, self.row is None or self.regressed
        alone = held is not None and held.in_sync == (self.member,) and self.safe_until > -math.inf
        return lost and alone

    def authority_ends(self) -> float:
        """Until when this holder may ack, publish and plan marks; infinite when alone (R15)."""
        return math.inf if self.alone and self.safe_until > -math.inf else self.safe_until

    def may_acquire(self, now: float) -> bool:
        """R3, R4, R7: in-sync, not paused, and released to us or still for a whole ttl."""
        row = self.row
        if row is None or self.regressed or row.paused or self.member not in row.in_sync:
            return False
        if row.holder is None and row.successor in (None, self.me.node):
            return True
        return now - self.still_since >= self.timing.ttl

    def why_not(self, now: float) -> str:
        """One sentence for status and log while this node cannot become the holder."""
        row = self.row
        if row is None:
            return "the database has not answered yet"
        if self.regressed:
            return (
                "the lease row is older than what this node has read before: the database lost "
                "writes; compare the nodes, then decide by hand"
            )
        if self.member not in row.in_sync:
            return (
                f"the lease row does not list journal {self.member.journal_id} of "
                f"{self.member.node} as in sync; bring back the data directory that it lists"
            )
        if row.paused:
            return "automatic failover is paused"
        wait = max(0.0, self.timing.ttl - (now - self.still_since))
        return f"{_name(row)} held the lease; it may be taken over in {wait:.1f} s unless it renews"

    # -- rows to write -----------------------------------------------------------------------------

    def first_row(self, group_id: str, advertise: str | None) -> LeaseRow:
        return LeaseRow(group_id, self.me, 1, 1, (self.member,), advertise, identity=self.identity)

    def acquired(self, advertise: str | None) -> LeaseRow:
        """R3: the new holder is the only in-sync member until its whole journal is committed."""
        assert self.row is not None
        return replace(
            self.row,
            holder=self.me,
            epoch=max(self.row.epoch, self.high_water.epoch) + 1,
            version=self.row.version + 1,
            in_sync=(self.member,),
            advertise=advertise,
            successor=None,
            identity=self.identity,
        )

    def rewritten(self) -> LeaseRow:
        """R5, R6: our row again, above everything that was read, so that no older one passes."""
        assert self.held is not None
        return replace(
            self.held,
            epoch=self.held.epoch + 1,
            version=(self.row or self.held).version + 1,
            identity=self.identity,
        )

    def renewed(self) -> LeaseRow:
        assert self.row is not None
        return replace(self.row, version=self.row.version + 1, identity=self.identity)

    def released(self) -> LeaseRow:
        assert self.row is not None
        return replace(self.row, version=self.row.version + 1, holder=None, successor=None)


def _stamp(row: LeaseRow) -> tuple[int, int]:
    return row.epoch, row.version


def _name(row: LeaseRow) -> str:
    return row.holder.node if row.holder else f"nobody (successor: {row.successor})"
