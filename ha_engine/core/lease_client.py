"""Choose the next request to the group's lease row, and interpret the answers.

``Lease`` does the arithmetic. Each request is one action. An answer leads to an action or a
verdict, which ``core`` performs, or to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core.lease import Lease
from ha_engine.core.verdicts import Outcome, StepDown, Stop, Wait
from ha_engine.types import ORIGIN, LeaseRow, Member, Position

HOW_TO_CHOOSE = (
    "force a failover to the node whose journal ends last; compare the ends (EPOCH.SEQUENCE) in "
    "ha-engine status, first by epoch, then by sequence"
)


class AnswerEffect(Enum):
    """The effect of an answer: this node has read the row, has written it, or learned nothing."""

    READ = "read"
    WRITTEN = "written"
    NOTHING = "nothing"


class LeaseClient:
    """The requests of one node to the lease row.

    ``group_id`` is None until the node's new journal belongs to a group (RULES.md#r6). Without
    ``creates``, the node leaves the group's first lease row to another node, as the backup does
    (RULES.md#r37).
    """

    def __init__(
        self,
        lease: Lease,
        group_id: str | None,
        new_group_id: str,
        advertise: str | None,
        *,
        creates: bool = True,
    ) -> None:
        self.lease, self.group_id, self._creates = lease, group_id, creates
        self._new_group_id, self._advertise = new_group_id, advertise
        # The epoch that the newest release would end, or None after a write that keeps the lease.
        self._release_of: int | None = None

    @property
    def releasing(self) -> bool:
        """Whether this node may have released its epoch.

        A node does not count as the holder from the moment at which it sends the release
        (RULES.md#i2). A release is void if a write that keeps the lease takes effect after it
        (RULES.md#r3).
        """
        return self._release_of is not None and self._release_of > self.lease.ended

    def bind(self, group_id: str) -> Iterator[do.Action]:
        """Bind this node's journal to the group ``group_id``, unless it belongs to a group already
        (RULES.md#r6)."""
        if self.group_id is None:
            self.group_id = group_id
            yield do.BindGroup(group_id)

    def request(
        self,
        now: float,
        in_sync: tuple[Member, ...] | None,
        committed: Position,
        authority_ends: float,
    ) -> do.Action:
        """The next request: a read if ``Lease.must_read`` says so, otherwise a renewal that lists
        ``in_sync`` and names the commit position ``committed``.

        ``in_sync`` is None while this node knows no lease row.
        """
        lease = self.lease
        if in_sync is None or lease.must_read(now, authority_ends):
            lease.request_sent(now)
            return do.ReadLease()
        assert lease.row is not None
        reason = "renew" if in_sync == lease.row.in_sync else _changed(lease.row.in_sync, in_sync)
        return self._write(now, lease.row, lease.renewed(in_sync, committed), reason)

    def handle(
        self,
        now: float,
        answer: on.LeaseRead | on.LeaseWritten | on.LeaseDenied | on.DatabaseUnreachable,
    ) -> AnswerEffect:
        match answer:
            case on.LeaseRead(row, identity):
                self.lease.row_read(now, row, identity)
                return AnswerEffect.READ
            case on.LeaseWritten(row, identity) if row.identity in (None, identity):
                self.lease.row_written(now, row, identity)
                if self.lease.is_holder:
                    self._release_of = None
                return AnswerEffect.WRITTEN
            case on.LeaseWritten() | on.DatabaseUnreachable():
                # RULES.md#r5: the database failed over around this write and may have lost it.
                self.lease.outcome_unknown()
            case on.LeaseDenied():
                self.lease.write_refused()
                self.lease.ask_at_once(now)
        return AnswerEffect.NOTHING

    def release(
        self, now: float, successor: str | None, committed: Position, reason: str
    ) -> do.Action:
        assert self.lease.row is not None
        self._release_of = self.lease.row.epoch
        released = self.lease.released(successor, committed)
        return self._write(now, self.lease.row, released, reason)

    def force(self, now: float, by: str) -> tuple[do.Action, int]:
        """Acquire the lease over the row that was read last, and return that write with its new
        epoch (RULES.md#r26)."""
        row, reason = self.lease.row, f"failover forced by {by}"
        if row is None:
            group_id = self.group_id or self._new_group_id
            wanted = self.lease.forced_without_row(group_id, self._advertise)
            return self._make(now, wanted, reason), wanted.epoch
        wanted = self.lease.forced(self._advertise)
        return self._write(now, row, wanted, reason), wanted.epoch

    def read_as_holder(
        self, now: float, epoch: int, authority_ends: float, *, stopping: bool
    ) -> Outcome | None:
        """Decide what follows after the holder of an epoch has read the row.

        Proof of another holder or of a higher epoch demotes this node. A lost or older row does not
        demote this node (RULES.md#r5, RULES.md#r15).
        """
        row, lease = self.lease.row, self.lease
        if self.is_foreign(row):
            return Stop(self._foreign())
        if row is not None and row.epoch > epoch:
            return _lost(row)  # RULES.md#r14: on any timeline of the database
        if lease.may_rewrite(authority_ends, now) and not stopping:
            return self._rewrite(now)
        if row is None or lease.regressed or lease.is_doubtful(now, authority_ends):
            return Wait(
                "the database lost writes to the lease row, and another node may have acquired the "
                f"lease in them: {HOW_TO_CHOOSE}"
            )
        if not lease.is_holder:
            return _lost(row)
        lease.ask_at_once(now)
        return None

    def read_as_other(self, now: float, last: Position, announced: int) -> Outcome | None:
        """Decide what follows after a node that holds no epoch has read the row.

        The node's journal ends at ``last``, and is new if it is empty (RULES.md#r6). ``announced``
        is the commit position that the holder of the row's epoch has announced to this node, or 0.
        """
        row, lease = self.lease.row, self.lease
        if self.is_foreign(row):
            return Stop(self._foreign())
        if row is None:
            return self._create(now, last == ORIGIN and self.group_id is None)
        if lease.is_holder and not lease.regressed:
            # This process has acquired the lease, but the reply was lost (RULES.md#r1). Only the
            # success of another write gives authority.
            lease.ask_at_once(now)
            return None
        if lease.lacks_committed(last):
            return Wait(_went_back(row, last))
        if announced > last.sequence:
            # RULES.md#r8: the row may be as old as an outage of the database.
            return Wait(
                f"an active has committed all records up to {announced}, but the journal of this "
                f"node ends at {last}; {HOW_TO_CHOOSE}"
            )
        if lease.may_acquire(now):
            reason = "released" if row.holder is None else "not renewed for a ttl"
            return self._write(now, row, lease.acquired(self._advertise), reason)
        return Wait(_why_not(lease, now, is_backup=not self._creates))

    def _write(self, now: float, expected: LeaseRow, wanted: LeaseRow, reason: str) -> do.Action:
        self.lease.request_sent(now, wanted, expected)
        return do.WriteLease(expected, wanted, reason)

    def _make(self, now: float, row: LeaseRow, reason: str = "") -> do.Action:
        self.lease.request_sent(now, row)
        return do.CreateLease(row, reason)

    def _create(self, now: float, new: bool) -> Outcome:
        """Create the group's first lease row.

        Only a new node that knows no epoch may create the row (RULES.md#r6).
        """
        if not new or self.lease.high_water.epoch > 0:
            return Wait(
                "the database has no lease row but this node's journal belongs to a group; either "
                "database.url names another database, or the database lost the row: "
                f"{HOW_TO_CHOOSE}"
            )
        if not self._creates:
            return Wait("this node is the backup; another node must begin the group")
        return self._make(now, self.lease.first_row(self._new_group_id, self._advertise))

    def _rewrite(self, now: float) -> do.Action:
        """Write the lost lease row again, under a higher epoch (RULES.md#r5, RULES.md#r6).

        After the write, this node promotes under the new epoch.
        """
        before, wanted = self.lease.row, self.lease.rewritten()
        if before is not None:
            return self._write(now, before, wanted, "the database lost writes")
        return self._make(now, wanted)

    def is_foreign(self, row: LeaseRow | None) -> bool:
        return row is not None and self.group_id is not None and row.group_id != self.group_id

    def _foreign(self) -> str:
        assert self.lease.row is not None
        return (
            f"the lease row belongs to group {self.lease.row.group_id}, this journal to "
            f"{self.group_id}; set database.url to the database of this node's group, or give the "
            "node an empty data directory"
        )


def _lost(row: LeaseRow) -> StepDown:
    return StepDown(f"epoch {row.epoch} is held by {row.holder.node if row.holder else 'nobody'}")


def _changed(before: tuple[Member, ...], after: tuple[Member, ...]) -> str:
    left = [f"{member.node} left in-sync" for member in before if member not in after]
    joined = [f"{member.node} joined in-sync" for member in after if member not in before]
    return ", ".join(left + joined)


def _why_not(lease: Lease, now: float, *, is_backup: bool) -> str:
    """One sentence for status and log: the reason why this node cannot become the holder now."""
    row = lease.row
    if row is None:
        return "the database has not answered yet"
    if lease.regressed:
        return (
            "the lease row is older than what this node has read before: the database lost "
            f"writes; {HOW_TO_CHOOSE}"
        )
    if lease.member not in row.in_sync:
        if is_backup:
            # This is the usual state of a backup (RULES.md#r37).
            return "it is the backup, and takes over only by force until the lease row lists it"
        return (
            f"the lease row does not list journal {lease.member.journal_id} of "
            f"{lease.member.node} as in sync; bring back the data directory that it lists; if all "
            "are lost, run: ha-engine snapshot restore"
        )
    if row.paused:
        return "automatic failover is paused"
    return _who_has_it(lease, row, now)


def _went_back(row: LeaseRow, last: Position) -> str:
    return (
        f"the disk went back in time: the journal had all records up to {row.committed}, but it "
        f"ends at {last}; this node waits for an active that has them; if all newer disks are "
        f"lost, stop the other nodes and {HOW_TO_CHOOSE}"
    )


def _who_has_it(lease: Lease, row: LeaseRow, now: float) -> str:
    still = now - lease.unchanged_since
    wait = max(0.0, (lease.takeover_at or now) - now)
    if row.holder is None:
        to = row.successor or "any node in sync"
        return f"the lease was released to {to}; this node may take it in {wait:.1f} s"
    other = row.holder.node != lease.me.node
    if other and still < 2 * lease.timing.renew_interval:
        return f"{row.holder.node} holds the lease"
    who = row.holder.node if other else "an earlier process of this node"
    return (
        f"{who} held the lease and has not renewed it for {still:.1f} s; it may be taken over in "
        f"{wait:.1f} s"
    )
