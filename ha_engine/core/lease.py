"""The arithmetic of the lease: when to read, acquire and renew, and how long this node may act.

The arithmetic has no side effects and covers this node alone. ``core`` decides which role the node
takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ha_engine.core.high_water import HighWater
from ha_engine.types import ORIGIN, DatabaseIdentity, Holder, LeaseRow, Member, Position

EPOCHS_SKIPPED = 1000
"""A number of epochs that no database can have lost. If a forced failover took an epoch that exists
in the lost writes, that epoch would have two holders and two histories."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times in seconds. The config refuses renew_interval + 2 * db_timeout > ttl - margin."""

    ttl: float
    renew_interval: float
    margin: float


class Lease:
    """This node's knowledge of the lease row. All times are on this node's own clock.

    The table lists the methods that change each field; tests/core/test_lease.py checks the table:

    ==================  ===================================================================
    row                 row_read, row_written
    own_row             row_read, row_written
    inherited           row_read, row_written
    identity            row_read, row_written
    unchanged_since     row_read, row_written
    high_water          request_sent, row_read, row_written, write_refused, note_epoch, note_forced
    ended               end
    row_is_current      row_read, write_refused, outcome_unknown
    read_at             row_read
    sent_at             request_sent, row_read, row_written, write_refused, outcome_unknown
    next_at             request_sent, row_read, ask_at_once
    safe_until          row_written
    failing             row_read, row_written, write_refused, outcome_unknown
    _write_failed       row_written, write_refused, outcome_unknown
    _in_flight          request_sent, row_read, row_written, write_refused, outcome_unknown
    _unresolved         row_read, row_written, outcome_unknown
    _tried_before       request_sent
    _promised_until     promise
    _promised_epoch     promise
    ==================  ===================================================================
    """

    def __init__(
        self, me: Holder, member: Member, timing: LeaseTiming, high_water: HighWater
    ) -> None:
        self.me, self.member, self.timing = me, member, timing
        # -- the row
        # The lease row as this node last read or wrote it, or None if the node knows no row.
        self.row: LeaseRow | None = None
        # RULES.md#r5, RULES.md#r6: the newest row that this node has seen, if that row names this
        # process as the holder.
        self.own_row: LeaseRow | None = None
        # RULES.md#r37: the in-sync list at the end of the epoch before that of the row.
        self.inherited: tuple[Member, ...] = ()
        # The database that answered last.
        self.identity: DatabaseIdentity | None = None
        # RULES.md#r4: since when this process has seen the row unchanged.
        self.unchanged_since = math.inf
        # The highest epoch and version that this node knows; the disk keeps them.
        self.high_water = high_water
        # RULES.md#r15: the newest epoch of this process that is over. A row that lost writes may
        # still name that epoch.
        self.ended = 0
        # -- requests and authority
        # Whether the row is the answer to the last request, and when the last read was sent.
        self.row_is_current, self.read_at = False, -math.inf
        # RULES.md#i2, RULES.md#r4: the moment just before this node sent the request that is in
        # flight, or None if no request is.
        self.sent_at: float | None = None
        # The moment at which the next request is due.
        self.next_at = -math.inf
        # RULES.md#i2: until when the last confirmed write lets this holder act.
        self.safe_until = -math.inf
        # Whether the last request had no answer, and whether the last write had none. A holder asks
        # for promises while either is true (RULES.md#i12).
        self.failing = self._write_failed = False
        # RULES.md#r1: the row that the write in flight would leave, and the rows of writes with an
        # unknown outcome.
        self._in_flight: LeaseRow | None = None
        self._unresolved: tuple[LeaseRow, ...] = ()
        # RULES.md#r16: the high water's ``tried`` before the request in flight.
        self._tried_before = high_water.tried
        # RULES.md#r16: until when this node has promised not to acquire, and the epoch whose
        # release ends that promise.
        self._promised_until, self._promised_epoch = -math.inf, 0
        # The inputs and the result of ``possible``, which are cached since every step asks for it.
        self._known: tuple[LeaseRow | None, ...] = ()
        self._possible: frozenset[Member] = frozenset()

    # -- requests ----------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Whether a request is due.

        This node has one request in flight at a time, and sends one each ``renew_interval``.
        """
        return now >= self.wake_at

    @property
    def wake_at(self) -> float:
        """The moment at which the next request is due, or infinity while a request is in flight."""
        return self.next_at if self.sent_at is None else math.inf

    @property
    def idle(self) -> bool:
        """Whether this node may send a write: no request is in flight, and the row has been
        read."""
        return self.sent_at is None and self.row_is_current

    def request_sent(
        self, now: float, wanted: LeaseRow | None = None, over: LeaseRow | None = None
    ) -> None:
        """Note that this node sends a request.

        A write replaces the row ``over`` by the row ``wanted``.
        """
        self.sent_at, self.next_at = now, now + self.timing.renew_interval
        self._in_flight, self._tried_before = wanted, self.high_water.tried
        if wanted is not None and self._is_ours(wanted) and wanted.epoch > self.high_water.epoch:
            self.high_water = self.high_water.when_tried(wanted.epoch, over)

    def ask_at_once(self, now: float) -> None:
        self.next_at = now

    # -- outcomes ----------------------------------------------------------------------------------

    def row_read(self, now: float, row: LeaseRow | None, identity: DatabaseIdentity) -> None:
        """Note the row that a read returned. A read never extends ``safe_until`` (RULES.md#r1)."""
        self.row_is_current, self.read_at, self.identity = True, self.sent_at or now, identity
        self._remember(now, row)
        if row is not None and not self.database_failed_over:
            # A write can no longer take effect if the row has the version of that write or a higher
            # one (RULES.md#r1). After a failover of the database, the row's version proves nothing:
            # the row may be the result of that write, without later writes.
            self._unresolved = tuple(w for w in self._unresolved if _stamp(w) > _stamp(row))
            self.high_water = self.high_water.resolved_by(row)
        # Read the row again exactly when a silent holder's ttl is over, before the next regular
        # read.
        takeover = self.takeover_at
        if takeover is not None and takeover > now:
            self.next_at = min(self.next_at, takeover)
        self._answered()
        self.failing = self.is_holder and self._write_failed

    def row_written(self, now: float, row: LeaseRow, identity: DatabaseIdentity) -> None:
        """Note that a write of this node succeeded.

        Only a successful write extends ``safe_until`` (RULES.md#i2).
        """
        assert self.sent_at is not None
        self.identity = identity
        self._remember(now, row)
        if row.holder == self.me:
            self.safe_until = self.sent_at + self.timing.ttl - self.timing.margin
        self._unresolved = ()
        self.high_water = self.high_water.resolved_by(row)
        self._answered()
        self.failing = self._write_failed = False

    def write_refused(self) -> None:
        """Note that the database refused a write, since its row is not the expected one.

        The next request reads the row again (RULES.md#r1). The refused write never takes effect, so
        this node may promise again (RULES.md#r16).
        """
        self.row_is_current = False
        self.high_water = replace(self.high_water, tried=self._tried_before)
        self._answered()
        self.failing = self._write_failed = False

    def outcome_unknown(self) -> None:
        """Note that a request has no answer.

        An unanswered write may take effect now, later or never (RULES.md#r1).
        """
        if self._in_flight is not None:
            self._write_failed = True
            # Each renewal names another commit position. Without it, the renewals during a long
            # outage of the database are one row, so that the list stays short.
            lost = replace(self._in_flight, committed=ORIGIN)
            if lost not in self._unresolved:
                self._unresolved += (lost,)
        self.row_is_current = False
        self._answered()
        self.failing = True

    def _answered(self) -> None:
        self.sent_at, self._in_flight = None, None

    def note_epoch(self, epoch: int) -> None:
        """Note the epoch of a record, ledger or message.

        A lease row with a lower epoch then counts as regressed (RULES.md#r14).
        """
        if epoch > self.high_water.epoch:
            self.high_water = replace(self.high_water, epoch=epoch, version=0)

    def end(self, epoch: int) -> None:
        """Note that this process will not act under ``epoch`` any more (RULES.md#r15)."""
        self.ended = epoch

    def note_forced(self, epoch: int) -> None:
        self.high_water = replace(self.high_water, forced=epoch)

    def _remember(self, now: float, row: LeaseRow | None) -> None:
        if row is None or row != self.row:
            self.unchanged_since = now
        if row is not None and self.row is not None and row.epoch > self.row.epoch:
            self.inherited = self.row.in_sync
        self.row = row
        if row is not None and not self.high_water.above(row):
            self.high_water = replace(
                self.high_water, epoch=row.epoch, version=row.version, identity=self.identity
            )
            # RULES.md#r5: a failover of the database may lose this process's last write of the row.
            # Another write, for example an operator's pause, may then change the older row.
            # ``own_row`` keeps the row that this process wrote, since that row is newer.
            same = self.own_row is not None and self.own_row.epoch == row.epoch
            if not (same and self.is_holder and self.database_failed_over):
                self.own_row = row if self.is_holder else None

    # -- questions ---------------------------------------------------------------------------------

    @property
    def is_holder(self) -> bool:
        """Whether the row names this process as the holder of an epoch that is not over.

        If the reply to its acquisition was lost, a process acts only after another write succeeds
        (RULES.md#r1).
        """
        row = self.row
        return row is not None and row.holder == self.me and row.epoch > self.ended

    @property
    def regressed(self) -> bool:
        """Whether the database may have lost writes of the row (RULES.md#r5).

        A row is regressed if this node has read a newer one, or if the database has failed over
        since the holder wrote the row.
        """
        row = self.row
        if row is None:
            return False
        return self.high_water.above(row) or (self.database_failed_over and not self._is_as_written)

    @property
    def _is_as_written(self) -> bool:
        """Whether the row lists the same members as this holder's own last write.

        An equal version does not prove equal members. 1. The holder removes the member P. 2. The
        database fails over and loses that write. 3. An operator's pause gives the row the version
        of the lost write.
        """
        row, own_row = self.row, self.own_row
        if row is None or own_row is None or not self.is_holder:
            return False
        return own_row.epoch != row.epoch or own_row.in_sync == row.in_sync

    @property
    def database_failed_over(self) -> bool:
        """Whether the database has failed over and no holder has written the row since."""
        row = self.row
        return row is not None and row.identity not in (None, self.identity)

    def is_doubtful(self, now: float, authority_ends: float) -> bool:
        """Whether another node may have acquired the lease in writes that the database lost.

        A lost acquisition is possible after a failover of the database, once this holder's
        authority is over. A holder in this doubt must not write the row as if it were the newest
        (RULES.md#r5).
        """
        sole = self.possible == {self.member}  # then no other node can have acquired
        return self.is_holder and self.database_failed_over and now >= authority_ends and not sole

    def must_read(self, now: float, authority_ends: float) -> bool:
        """Whether the next request must be a read.

        A write by a holder without authority could succeed on a row from which the database lost
        another node's write (RULES.md#r5).
        """
        if not self.is_holder or not self.row_is_current or self.regressed:
            return True
        late = now >= authority_ends and self.read_at < authority_ends
        return late or self.is_doubtful(now, authority_ends)

    @property
    def possible(self) -> frozenset[Member]:
        """The members that any outcome of the unresolved writes lists as in sync (RULES.md#r1)."""
        known = (self.own_row, self.row, self._in_flight, *self._unresolved)
        if known != self._known:
            ours = [row for row in known if row is not None and self._is_ours(row)]
            self._possible = frozenset(member for row in ours for member in row.in_sync)
            self._known = known
        return self._possible

    def _is_ours(self, row: LeaseRow) -> bool:
        return row.holder == self.me

    @property
    def alone(self) -> bool:
        """Whether this process is the only in-sync member, by its own confirmed write.

        No other node can acquire the lease while the row lists this process alone (RULES.md#r3,
        RULES.md#r15).
        """
        confirmed = self.is_holder and self.safe_until > -math.inf
        return confirmed and self.own_row is not None and self.possible == {self.member}

    @property
    def carries_until(self) -> float:
        """Until when a holder may act by its own writes alone, without promises (RULES.md#r15)."""
        return math.inf if self.alone else self.safe_until

    def may_rewrite(self, authority_ends: float, now: float) -> bool:
        """Whether this holder may write a lost or regressed row again (RULES.md#r5, RULES.md#r6).

        The holder may do so if no other node can hold a higher epoch.
        """
        own_row, lost = self.own_row, self.row is None or self.regressed
        if own_row is None or not lost or self.safe_until == -math.inf:
            return False
        # An unanswered write may have listed another member, which acquired the lease before the
        # database lost both writes (RULES.md#r1).
        newest = [own_row, *(row for row in self._unresolved if self._is_ours(row))]
        alone = all(row.in_sync == (self.member,) for row in newest)
        return alone or now < authority_ends

    def lacks_committed(self, last: Position) -> bool:
        """Whether the row lists this journal, which ends at ``last``, but the journal has lost
        committed records (RULES.md#r8).

        Each listed journal had all records up to the commit position of the row. A journal that
        ends before is on a disk that went back in time. The epochs count too: an older image may
        end with many records of an older epoch, which were never committed.
        """
        row = self.row
        return row is not None and self.member in row.in_sync and row.committed > last

    def may_acquire(self, now: float) -> bool:
        """Whether this node may acquire the lease now (RULES.md#r3, RULES.md#r4, RULES.md#r7).

        The node must be in sync, and failover must not be paused. The row must be released to this
        node, or unchanged for a whole ttl.
        """
        return self.takeover_at is not None and now >= self.takeover_at

    @property
    def takeover_at(self) -> float | None:
        """The moment at which this node may acquire the lease if the row does not change, or None
        for never."""
        row = self.row
        if row is None or self.regressed or row.paused or self.member not in row.in_sync:
            return None
        if row.holder is None and row.successor in (None, self.me.node):
            return -math.inf if row.epoch == self._promised_epoch else self._promised_until
        return max(self.unchanged_since + self.timing.ttl, self._promised_until)

    @property
    def active_url(self) -> str | None:
        """The URL at which another node accepts events according to the lease row, or None."""
        row = self.row
        if row is None or row.holder is None or row.holder.node == self.me.node:
            return None
        return row.advertise

    @property
    def protected(self) -> bool:
        """Whether a second member is in sync, according to the row as last read or written."""
        row = self.row
        return row is not None and len(row.in_sync) > 1 and row.holder is not None

    # -- promises to a holder that cannot reach the database ---------------------------------------

    def promise(self, now: float, epoch: int) -> bool:
        """Promise to acquire nothing for a ttl, except on a release of ``epoch`` (RULES.md#r16).

        Return False if this node must not promise, since it may have acquired a higher epoch:

        1. A process tries to acquire the lease and gets no answer. 2. The process ends, and the
        database goes down. 3. The next process promises the old holder not to acquire. The old
        holder then acts under an epoch that is over.
        """
        if self.high_water.epoch != epoch or self.high_water.tried[0] > epoch:
            return False
        self._promised_until, self._promised_epoch = now + self.timing.ttl, epoch
        return True

    # -- rows to write -----------------------------------------------------------------------------

    def first_row(self, group_id: str, advertise: str | None) -> LeaseRow:
        return LeaseRow(group_id, self.me, 1, 1, (self.member,), advertise, identity=self.identity)

    def acquired(self, advertise: str | None) -> LeaseRow:
        """The row of an acquisition.

        An acquired row lists the new holder alone, until the new holder has committed its whole
        journal (RULES.md#r3).
        """
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

    def forced_without_row(self, group_id: str, advertise: str | None) -> LeaseRow:
        """The row of a forced failover if the database has lost the lease row (RULES.md#r26).

        The epoch of the new row is far above any epoch that the lost row may have had.
        """
        known = self.high_water
        return replace(
            self.first_row(group_id, advertise),
            epoch=known.epoch + 1 + EPOCHS_SKIPPED,
            version=known.version + 1,
        )

    def forced(self, advertise: str | None) -> LeaseRow:
        """The row of a forced failover over an existing row (RULES.md#r26).

        If the database lost writes of the row, the new epoch is far above any epoch in these
        writes. The new row names no commit position, since the operator gives up the records that
        this node lacks.
        """
        row = self.acquired(advertise)
        skipped = EPOCHS_SKIPPED if self.regressed else 0
        return replace(row, epoch=row.epoch + skipped, committed=ORIGIN)

    def rewritten(self) -> LeaseRow:
        """This holder's own row, to be written again under a new epoch.

        The new epoch is above every epoch that this node has read, so that no older row counts
        (RULES.md#r5, RULES.md#r6).
        """
        assert self.own_row is not None
        return replace(
            self.own_row,
            epoch=max(self.own_row.epoch, self.high_water.epoch) + 1,
            version=(self.row or self.own_row).version + 1,
            in_sync=(self.member,),
            identity=self.identity,
        )

    def renewed(self, in_sync: tuple[Member, ...], committed: Position) -> LeaseRow:
        assert self.row is not None
        return replace(
            self.row,
            version=self.row.version + 1,
            in_sync=in_sync,
            successor=None,
            identity=self.identity,
            committed=max(committed, self.row.committed),
        )

    def released(self, successor: str | None, committed: Position) -> LeaseRow:
        """The row of a release.

        A released row keeps the in-sync list, since each listed member has every committed record
        (RULES.md#r3).
        """
        assert self.row is not None
        return replace(
            self.row,
            version=self.row.version + 1,
            holder=None,
            successor=successor,
            advertise=None,
            identity=self.identity,
            committed=max(committed, self.row.committed),
        )


def _stamp(row: LeaseRow) -> tuple[int, int]:
    return row.epoch, row.version
