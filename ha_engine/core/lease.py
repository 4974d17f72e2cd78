"""The arithmetic of the lease: when to read, when to acquire, when to renew, how long to act.

Pure, and about this node alone. It never decides what a role change means; ``core`` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ha_engine.core.high_water import HighWater
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow, Member

EPOCHS_SKIPPED = 1000
"""More than a database can have lost: two holders of one epoch would write two histories of it."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. The config refuses renew_interval + 2 * db_timeout > ttl - margin."""

    ttl: float
    renew_interval: float
    margin: float


class Lease:
    """What this node knows of the row, and since when, on its own clock."""

    def __init__(
        self, me: Holder, member: Member, timing: LeaseTiming, high_water: HighWater
    ) -> None:
        self.me, self.member, self.timing, self.high_water = me, member, timing, high_water
        self.row: LeaseRow | None = None
        # RULES.md#r5, RULES.md#r6: the newest row that this node knows of, if it is this process's
        # own.
        self.held: LeaseRow | None = None
        # RULES.md#r15: the last epoch of this process that is over. A row that lost writes may name
        # it yet.
        self.ended = 0
        self.identity: DatabaseIdentity | None = None
        self.read_once, self.read_at = False, -math.inf
        # RULES.md#i2, RULES.md#r4: taken on this node's clock before the request was sent, never
        # after its reply.
        self.sent_at: float | None = None
        # RULES.md#r1: what the write in flight would make of the row, and writes of unknown
        # outcome.
        self._in_flight: LeaseRow | None = None
        self._unresolved: tuple[LeaseRow, ...] = ()
        self._tried_before = high_water.tried
        # What ``possible`` was worked out from, and what it came to: every step asks for it.
        self._known: tuple[LeaseRow | None, ...] = ()
        self._possible: frozenset[Member] = frozenset()
        # The last call had no answer, or a holder's last write: promises have to do (RULES.md#i12).
        self.failing = self._write_failed = False
        self.next_at = -math.inf
        self.safe_until = -math.inf
        # RULES.md#r4: since when the row has stood still for this process.
        self.still_since = math.inf
        # RULES.md#r16: until when this node has promised to acquire nothing, but on release of that
        # epoch.
        self._promised_until, self._promised_epoch = -math.inf, 0

    # -- requests ----------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """One request at a time, one each ``renew_interval``."""
        return now >= self.wake_at

    @property
    def wake_at(self) -> float:
        """When the next request is due; the answer to the one in flight comes first."""
        return self.next_at if self.sent_at is None else math.inf

    @property
    def idle(self) -> bool:
        """No request is in flight, and what stands there is known: a write may go out."""
        return self.sent_at is None and self.read_once

    def sent(
        self, now: float, wanted: LeaseRow | None = None, over: LeaseRow | None = None
    ) -> None:
        """A request goes out; if it writes, then ``wanted`` in place of ``over``."""
        self.sent_at, self.next_at = now, now + self.timing.renew_interval
        self._in_flight, self._tried_before = wanted, self.high_water.tried
        if wanted is not None and self._is_ours(wanted) and wanted.epoch > self.high_water.epoch:
            self.high_water = self.high_water.when_tried(wanted.epoch, over)

    def again_at_once(self, now: float) -> None:
        self.next_at = now

    # -- outcomes ----------------------------------------------------------------------------------

    def saw(self, now: float, row: LeaseRow | None, identity: DatabaseIdentity) -> None:
        """A read tells what stands there; it never extends safe_until (RULES.md#r1)."""
        self.read_once, self.read_at, self.identity = True, self.sent_at or now, identity
        self._remember(now, row)
        if row is not None and not self.moved:
            # A later version stands there: a write that expected an earlier one fails
            # (RULES.md#r1). Behind a failover of the database it may be that write, and what
            # followed from it is lost.
            self._unresolved = tuple(w for w in self._unresolved if _stamp(w) > _stamp(row))
            self.high_water = self.high_water.resolved_by(row)
        # Nobody waits for a poll once a silent holder's ttl is over.
        takeover = self.takeover_at
        if takeover is not None and takeover > now:
            self.next_at = min(self.next_at, takeover)
        self._answered()
        self.failing = self.mine and self._write_failed

    def wrote(self, now: float, row: LeaseRow, identity: DatabaseIdentity) -> None:
        """A write of ours succeeded: the one thing that extends safe_until (RULES.md#i2)."""
        assert self.sent_at is not None
        self.identity = identity
        self._remember(now, row)
        if row.holder == self.me:
            self.safe_until = self.sent_at + self.timing.ttl - self.timing.margin
        self._unresolved = ()
        self.high_water = self.high_water.resolved_by(row)
        self._answered()
        self.failing = self._write_failed = False

    def denied(self) -> None:
        """Another row stands there; it is to be read before the next write (RULES.md#r1). What was
        tried takes no effect, so it forbids no promise (RULES.md#r16)."""
        self.read_once = False
        self.high_water = replace(self.high_water, tried=self._tried_before)
        self._answered()
        self.failing = self._write_failed = False

    def unknown(self) -> None:
        """No answer in time: a write may take effect now, later or never (RULES.md#r1)."""
        if self._in_flight is not None:
            self._write_failed = True
            if self._in_flight not in self._unresolved:
                self._unresolved += (self._in_flight,)
        self.read_once = False
        self._answered()
        self.failing = True

    def _answered(self) -> None:
        self.sent_at, self._in_flight = None, None

    def heard_of(self, epoch: int) -> None:
        """RULES.md#r14: a record, ledger or message carries ``epoch``; a row below it is a
        regressed one."""
        if epoch > self.high_water.epoch:
            self.high_water = replace(self.high_water, epoch=epoch, version=0)

    def forces(self, epoch: int) -> None:
        self.high_water = replace(self.high_water, forced=epoch)

    def _remember(self, now: float, row: LeaseRow | None) -> None:
        if row is None or row != self.row:
            self.still_since = now
        self.row = row
        if row is not None and not self.high_water.above(row):
            self.high_water = replace(
                self.high_water, epoch=row.epoch, version=row.version, identity=self.identity
            )
            # RULES.md#r5: who changes a row of a lost branch, an operator perhaps, knows less than
            # we do.
            same = self.held is not None and self.held.epoch == row.epoch
            if not (same and self.mine and self.moved):
                self.held = row if self.mine else None

    # -- questions ---------------------------------------------------------------------------------

    @property
    def mine(self) -> bool:
        """This process holds the lease by that row, or will once a write of it succeeds
        (RULES.md#r1)."""
        row = self.row
        return row is not None and row.holder == self.me and row.epoch > self.ended

    @property
    def regressed(self) -> bool:
        """The database lost writes (RULES.md#r5): the row is older than one that this node has
        read, or it was written before a failover of the database that its holder has not written
        after."""
        row = self.row
        if row is None:
            return False
        return self.high_water.above(row) or (self.moved and not self._is_as_written)

    @property
    def _is_as_written(self) -> bool:
        """The row lists whom this holder listed last. 1. It removes P. 2. The database fails over
        and loses that. 3. An operator's pause gives the row the version that was lost."""
        row, held = self.row, self.held
        if row is None or held is None or not self.mine:
            return False
        return held.epoch != row.epoch or held.in_sync == row.in_sync

    @property
    def moved(self) -> bool:
        """The database has failed over, and nobody has written the row since."""
        row = self.row
        return row is not None and row.identity not in (None, self.identity)

    def is_doubtful(self, now: float, authority_ends: float) -> bool:
        """Past this holder's authority another may have acquired, and a failover of the database
        lost that: the row must not be written as if it were the newest (RULES.md#r5)."""
        sole = self.possible == {self.member}  # from whose row nobody else acquires
        return self.mine and self.moved and now >= authority_ends and not sole

    def must_read(self, now: float, authority_ends: float) -> bool:
        """Whether the holder's next request is a read; a write past its authority might succeed
        where another's was lost (RULES.md#r5)."""
        if not self.mine or not self.read_once or self.regressed:
            return True
        late = now >= authority_ends and self.read_at < authority_ends
        return late or self.is_doubtful(now, authority_ends)

    @property
    def possible(self) -> frozenset[Member]:
        """RULES.md#r1: whom the row lists as in sync, after any outcome of what is not resolved."""
        known = (self.held, self.row, self._in_flight, *self._unresolved)
        if known != self._known:
            ours = [row for row in known if row is not None and self._is_ours(row)]
            self._possible = frozenset(member for row in ours for member in row.in_sync)
            self._known = known
        return self._possible

    def _is_ours(self, row: LeaseRow) -> bool:
        return row.holder == self.me

    @property
    def alone(self) -> bool:
        """The only in-sync member, by its own write: nobody else can acquire (RULES.md#r3,
        RULES.md#r15)."""
        confirmed = self.mine and self.safe_until > -math.inf
        return confirmed and self.held is not None and self.possible == {self.member}

    @property
    def carries_until(self) -> float:
        """How long a holder may act by its own writes alone, without promises (RULES.md#r15)."""
        return math.inf if self.alone else self.safe_until

    def may_rewrite(self, authority_ends: float, now: float) -> bool:
        """RULES.md#r5, RULES.md#r6: the row was lost, and nobody can hold a higher epoch than this
        process does."""
        held, lost = self.held, self.row is None or self.regressed
        if held is None or not lost or self.safe_until == -math.inf:
            return False
        # A write without an answer may have listed another, who acquired before it was lost
        # (RULES.md#r1).
        newest = [held, *(row for row in self._unresolved if self._is_ours(row))]
        alone = all(row.in_sync == (self.member,) for row in newest)
        return alone or now < authority_ends

    def may_acquire(self, now: float) -> bool:
        """RULES.md#r3, RULES.md#r4, RULES.md#r7: in-sync, not paused, and released to us or still
        for a whole ttl."""
        return self.takeover_at is not None and now >= self.takeover_at

    @property
    def takeover_at(self) -> float | None:
        """When the row may be acquired from if it stays as it is; None: never."""
        row = self.row
        if row is None or self.regressed or row.paused or self.member not in row.in_sync:
            return None
        if row.holder is None and row.successor in (None, self.me.node):
            return -math.inf if row.epoch == self._promised_epoch else self._promised_until
        return max(self.still_since + self.timing.ttl, self._promised_until)

    @property
    def active_url(self) -> str | None:
        """The URL at which another node takes events, as the row says."""
        row = self.row
        if row is None or row.holder is None or row.holder.node == self.me.node:
            return None
        return row.advertise

    @property
    def protected(self) -> bool:
        """Whether a second member is in sync, as far as the row that was read last tells."""
        row = self.row
        return row is not None and len(row.in_sync) > 1 and row.holder is not None

    # -- promises to a holder that cannot reach the database ---------------------------------------

    def promise(self, now: float, epoch: int) -> bool:
        """RULES.md#r16: to acquire nothing for a ttl, except on release of ``epoch``. False: it
        cannot.

        1. A process acquires, and hears no answer. 2. It ends, and the database goes away. 3. The
        next process promises the old holder, who goes on under an epoch that is over."""
        if self.high_water.epoch != epoch or self.high_water.tried[0] > epoch:
            return False
        self._promised_until, self._promised_epoch = now + self.timing.ttl, epoch
        return True

    # -- rows to write -----------------------------------------------------------------------------

    def first_row(self, group_id: str, advertise: str | None) -> LeaseRow:
        return LeaseRow(group_id, self.me, 1, 1, (self.member,), advertise, identity=self.identity)

    def acquired(self, advertise: str | None) -> LeaseRow:
        """RULES.md#r3: the new holder is the only in-sync member until its whole journal is
        committed."""
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

    def forced_anew(self, group_id: str, advertise: str | None) -> LeaseRow:
        """RULES.md#r26: where the row itself is lost, far above what it may have been."""
        known = self.high_water
        return replace(
            self.first_row(group_id, advertise),
            epoch=known.epoch + 1 + EPOCHS_SKIPPED,
            version=known.version + 1,
        )

    def forced(self, advertise: str | None) -> LeaseRow:
        """RULES.md#r26: as acquired; above a row that lost writes, far above what these may have
        had."""
        row = self.acquired(advertise)
        skipped = EPOCHS_SKIPPED if self.regressed else 0
        return replace(row, epoch=row.epoch + skipped)

    def rewritten(self) -> LeaseRow:
        """RULES.md#r5, RULES.md#r6: our row again, above everything that was read, so that no older
        one passes."""
        assert self.held is not None
        return replace(
            self.held,
            epoch=max(self.held.epoch, self.high_water.epoch) + 1,
            version=(self.row or self.held).version + 1,
            in_sync=(self.member,),
            identity=self.identity,
        )

    def renewed(self, in_sync: tuple[Member, ...]) -> LeaseRow:
        assert self.row is not None
        return replace(
            self.row,
            version=self.row.version + 1,
            in_sync=in_sync,
            successor=None,
            identity=self.identity,
        )

    def released(self, successor: str | None) -> LeaseRow:
        """Everybody in sync stays so: what is committed is on each of them (RULES.md#r3)."""
        assert self.row is not None
        return replace(
            self.row,
            version=self.row.version + 1,
            holder=None,
            successor=successor,
            advertise=None,
            identity=self.identity,
        )


def _stamp(row: LeaseRow) -> tuple[int, int]:
    return row.epoch, row.version
