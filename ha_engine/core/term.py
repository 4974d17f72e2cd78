"""One epoch of this process as the holder: what it may do, and how it hands the lease over.

``role_machine`` creates a ``Term`` when the node acquires the lease, and drops it when the epoch
ends. ``replication`` has the holder's view of the other members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.base import unwritten
from ha_engine.core.deadlines import ahead
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease_client import LeaseClient
from ha_engine.core.query_control import Breakdown, QueryControl
from ha_engine.core.replication import Replication
from ha_engine.core.retention import Retention
from ha_engine.core.rollout import Rollout
from ha_engine.core.snapshots import Snapshots
from ha_engine.core.verdicts import Outcome, StepDown, Wait
from ha_engine.types import Body, Member

TermInput = (
    on.EventsOffered
    | on.SinkPublished
    | on.SkipAsked
    | on.RescaleAsked
    | on.DeployAsked
    | on.SwitchoverAsked
    | on.SnapshotAsked
    | on.SnapshotTaken
    | on.SnapshotFailed
)
"""The inputs that ``Term`` handles while the node holds an epoch. Otherwise the follower handles
SnapshotTaken and SnapshotFailed."""

PlannedOn = tuple[int, Callable[[str, int], int | None], Callable[[str], bool], int | None]
"""The arguments of ``Deployment.next_marks``: committed, slowest, starting and barrier."""

LAST_SNAPSHOT_SECONDS_MAX = 10.0
"""A node that is asked to stop waits at most this many seconds for a last snapshot, then stops
without it."""
HANDOVER_SECONDS_MAX = 2.0
"""The holder gives up a switchover if it cannot release the lease within this many seconds."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The holder prepares to release the lease to ``to`` (RULES.md#r3)."""

    to: str
    since: float
    reason: str


class Term:
    """One epoch of this node as the holder of the lease.

    ``active`` is False until the first record of the epoch is committed (RULES.md#r3). The commit
    of that record commits the whole journal.
    """

    def __init__(
        self,
        lease_client: LeaseClient,
        journal: JournalState,
        query_control: QueryControl,
        replication: Replication,
        snapshots: Snapshots,
        retention: Retention,
        rollout: Rollout,
    ) -> None:
        self._lease_client, self._lease = lease_client, lease_client.lease
        self._journal, self._deployment = journal, query_control.deployment
        self._query_control, self.snapshots, self._retention = query_control, snapshots, retention
        self.replication, self.epoch = replication, replication.epoch
        self._rollout = rollout
        self._first = journal.last.sequence + 1
        self.active = self.receiving = False
        self.handover: Handover | None = None
        self._breakdown: Breakdown | None = None
        # Since when this stopping node waits for a last snapshot.
        self._last_snapshot_since: float | None = None

    # -- authority ---------------------------------------------------------------------------------

    def authority_ends(self) -> float:
        """Until when this holder may act, by its own writes or by promises (RULES.md#r15,
        RULES.md#r16).

        The result is infinite if no other node can acquire the lease.
        """
        lease, timing = self._lease, self._lease.timing
        promised = self.replication.promised_until(lease.possible, timing.ttl, timing.margin)
        return max(lease.carries_until, promised)

    @property
    def keeps_the_lease(self) -> bool:
        """Whether this node is active and is not handing the lease over."""
        return self.active and not self._lease_client.releasing and self.handover is None

    def authority_seconds(self, now: float) -> float:
        return max(0.0, self.authority_ends() - now) if self.keeps_the_lease else 0.0

    def may_act(self, now: float) -> bool:
        return self.authority_seconds(now) > 0

    @property
    def epoch_committed(self) -> bool:
        """Whether the epoch's first record is committed."""
        return self._journal.committed >= self._first

    def begin(self) -> Iterator[do.Action]:
        """Start to accept events and to publish, once the whole journal is committed."""
        for mark in unwritten(self._deployment):
            yield self.append(mark)
        change = self._deployment.change(self._journal.committed)
        if change is not None:
            yield self.append(change)
        self.active = self.receiving = True
        yield do.OpenReceivers()
        yield do.StartPublishing(self.epoch)

    def suspend_or_resume(self, now: float) -> Iterator[Outcome]:
        """Close the receivers once the authority is over, and open them again when it is back
        (RULES.md#r15).

        A suspended holder refuses events, since it may not ack them. A suspended holder resumes in
        the same process and under the same epoch.
        """
        if not self.active or self.handover is not None or self._last_snapshot_since is not None:
            return
        if self.receiving == self.may_act(now):
            return
        self.receiving = not self.receiving
        if self.receiving:
            yield Wait("it holds the lease")
            yield do.OpenReceivers()
        else:
            reason = "the lease was not renewed in time; this node continues after the next renewal"
            yield Wait(reason)
            yield do.CloseReceivers(reason, None)

    # -- records -----------------------------------------------------------------------------------

    def append(self, body: Body, payload: bytes = b"") -> do.Action:
        return self._journal.append(self.epoch, body, payload)

    def on_input(self, now: float, event: TermInput) -> Iterator[do.Action]:
        match event:
            case on.EventsOffered(events, payload) if self.receiving:
                yield self.append(events, payload)
            case on.EventsOffered():
                raise ValueError("events were offered while receivers are closed")
            case on.SinkPublished() if self.keeps_the_lease:
                yield from self._append_if(self._deployment.published(event))
            case on.SkipAsked() if self.may_act(now):
                yield from self._append_if(self._deployment.skip(event))
            case on.RescaleAsked(query, partitions) if self.may_act(now):
                yield from self._append_if(self._deployment.rescale(query, partitions))
            case on.DeployAsked() if self.may_act(now):
                yield from self._append_if(self._deployment.deploy(event, self._journal.committed))
            case on.SwitchoverAsked(to, by):
                yield from self._switch_over(now, to, by)
            case on.SnapshotAsked():
                self.snapshots.take_now(now)
            case on.SnapshotTaken() | on.SnapshotFailed():
                self._on_snapshot_answer(None, self._query_control.answer_of(event))

    def _on_snapshot_answer(self, by: str | None, message: say.SnapshotAnswer | None) -> None:
        match message:
            case say.SnapshotTaken():
                self.snapshots.taken(by, message)
            case say.SnapshotFailed():
                self.snapshots.failed(by, message)

    def _append_if(self, body: Body | None) -> Iterator[do.Action]:
        if body is not None:
            yield self.append(body)

    def commit(self, now: float) -> Iterator[do.Action]:
        """Commit the records that are durable on every possible in-sync member (RULES.md#i3).

        A member is possibly in sync if any outcome of a lease write lists it. Records of earlier
        epochs are committed together with the first record of this epoch (RULES.md#r3).
        """
        journal = self._journal
        limit = self.replication.commit_limit(journal.durable, self._lease.possible)
        commits_epoch = not self.active and limit >= self._first
        # Do not ask ``may_act`` here. During a handover the last records are committed, but nothing
        # is published.
        may_ack = self.active and now < self.authority_ends()
        may_commit = (commits_epoch or may_ack) and not self._lease_client.releasing
        if limit > journal.committed and may_commit:
            journal.commit(limit)
            yield do.Commit(limit)
            yield from self.replication.send_to_all(say.Committed(self.epoch, limit))

    def plan_marks(self, now: float) -> Iterator[do.Action]:
        if self.may_act(now):
            self.replication.note_behind(now, self._in_sync, self._deployment.running_at())
            for mark in list(self._deployment.next_marks(now, *self._planned_on(now))):
                yield self.append(mark)
            for published in list(self._deployment.published_in_given_up_history()):
                yield self.append(published)

    def _planned_on(self, now: float) -> PlannedOn:
        slowest = partial(self.replication.slowest, now, self._in_sync)
        starting = partial(self.replication.starting, now, self._in_sync)
        return self._journal.committed, slowest, starting, self.snapshots.barrier

    @property
    def _in_sync(self) -> tuple[Member, ...]:
        row = self._lease.row
        return () if row is None else row.in_sync

    def full_member(self) -> str | None:
        """The name of an in-sync member whose disk is too full for events, or None
        (RULES.md#r30)."""
        row = self._lease.row
        return None if row is None else self.replication.full(row.in_sync)

    # -- the members -------------------------------------------------------------------------------

    def tick(self, now: float) -> Iterator[do.Action]:
        replication, journal, lease = self.replication, self._journal, self._lease
        asks = (lease.failing or now >= lease.safe_until) and not lease.alone
        oldest_revision = self._retention.oldest_revision
        yield from replication.tick(
            now, journal.last.sequence, journal.committed, oldest_revision, asks
        )
        replication.choose_near(now)
        if self.may_act(now) and self._lease.row is not None:
            yield from self.snapshots.tick(now, self._lease.row.in_sync, oldest_revision)

    def handle(self, now: float, peer: str, message: say.MemberMessage) -> Iterator[do.Action]:
        if message.epoch != self.epoch:
            return
        match message:
            case say.ProbeReply():
                known = self._query_control.digests.as_messages(self.epoch)
                begins = self._retention.begins
                yield from self.replication.on_probe_reply(
                    now, peer, message, self._journal, known, begins
                )
            case say.Ack():
                self.replication.acked(now, peer, message)
            case say.Promise():
                self.replication.promised(peer, message)
            case say.SnapshotTaken() | say.SnapshotFailed():
                self._on_snapshot_answer(peer, message)
            case say.SnapshotLacking():
                self.snapshots.take_now(now)

    def note_row(self, now: float) -> None:
        """Note what the lease row means for the backup (RULES.md#r37)."""
        self.replication.note_listed(now, self._in_sync)

    def retain_after(self, now: float) -> float:
        """See Replication.retain_after."""
        return self.replication.retain_after(now, self._in_sync)

    def wanted_in_sync(self, now: float) -> tuple[Member, ...] | None:
        """The members that the lease row should list as in sync, or None while this node knows no
        row."""
        row = self._lease.row
        if row is None:
            return None
        if not self.active or self.handover is not None:
            return row.in_sync
        wanted = self.replication.wanted(now, row.in_sync, self._journal.committed)
        if now < self._lease.safe_until:
            return wanted
        # A holder that is alone in sync may act past ``safe_until``. The holder loses that right as
        # soon as the row may list a second member (RULES.md#r15). For this reason the holder renews
        # the row before it adds a member.
        return tuple(member for member in wanted if member in row.in_sync)

    def wants_another_row(self, now: float) -> bool:
        """Whether the in-sync list must change (RULES.md#r9); see Replication.wanted.

        The row drops a late member before the holder commits without that member.
        """
        lease, row = self._lease, self._lease.row
        free = lease.idle and not lease.failing
        holds = self.active and lease.is_holder and not lease.regressed
        if not free or not holds or row is None:
            return False
        return self.wanted_in_sync(now) != row.in_sync

    # -- the end of the node -----------------------------------------------------------------------

    def begin_last_snapshot(self, now: float) -> Iterator[do.Action]:
        """Begin a last snapshot, if this node is the only in-sync member and has new input."""
        if self._lease.alone and self.receiving and self.snapshots.begin_if_input(now):
            self._last_snapshot_since, self.receiving = now, False
            yield do.CloseReceivers("the node is stopping", None)

    def may_stop(self, now: float) -> bool:
        if self._last_snapshot_since is None or self.snapshots.idle(now) or not self.may_act(now):
            return True
        return now >= self._last_snapshot_since + LAST_SNAPSHOT_SECONDS_MAX

    # -- time --------------------------------------------------------------------------------------

    def wake_at(self, now: float) -> float:
        """The moment at which ``tick`` has work next, if no input arrives before."""
        acts = self.may_act(now) and self._lease.row is not None
        return min(self.replication.wake_at(now), self.snapshots.wake_at(now) if acts else math.inf)

    def holder_wake_at(self, now: float) -> float:
        """The moment at which a holder that is not stopping has work besides ``tick``, if no input
        arrives."""
        if self.wants_another_row(now) or self._next_holder(now) is not None:
            return now
        moments = [ahead(now, self.authority_ends())]
        if self.handover is not None and not self._lease_client.releasing:
            moments.append(self.handover.since + HANDOVER_SECONDS_MAX)
        if self._last_snapshot_since is not None:
            moments.append(self._last_snapshot_since + LAST_SNAPSHOT_SECONDS_MAX)
        if self.may_act(now):
            moments.append(self._deployment.next_mark_at(*self._planned_on(now)))
            moments.append(self._rollout.wake_at(now))
        return min(moments)

    # -- giving the lease to another ---------------------------------------------------------------

    def why_no_switchover(self, now: float, to: str | None) -> str | None:
        """The reason why no switchover to ``to`` is possible now, or None if one is possible.

        If ``to`` is None, any member but the backup may take over.
        """
        row = self._lease.row
        if not self.active or row is None:
            return "this node is not the active"
        if row.paused:
            return "failover is paused; run: ha-engine resume"
        if now >= self.authority_ends():
            return "this node is suspended, because its lease was not renewed in time"
        if self.handover is not None:
            return f"a handover to {self.handover.to} is under way"
        members = self.replication.candidates(row.in_sync, to)
        reasons = [self.replication.why_no_successor(member, row.in_sync) for member in members]
        if None in reasons:
            return None
        if to is None and not reasons and len(row.in_sync) > 1:
            return f"only the backup is in sync; name it with --to {self.replication.backup}"
        return next(iter(reasons), f"{to or 'no other node'} is not in sync")

    def _switch_over(self, now: float, to: str | None, by: str) -> Iterator[do.Action]:
        if self.why_no_switchover(now, to) is not None:
            return
        assert self._lease.row is not None
        successor = self.replication.successor(self._lease.row.in_sync, {}, to)
        if successor is not None:
            yield from self._begin_handover(now, successor, f"switchover by {by}")

    def note_breakdown(self, breakdown: Breakdown) -> None:
        """Note that a query or the query process died."""
        self._breakdown = breakdown
        self.snapshots.lost_digests(breakdown.reason)

    def hand_over_after_breakdown(self, now: float) -> Iterator[do.Action]:
        """Hand the lease over after the death of a query, to a member that has the batches which
        the breakdown needs (RULES.md#r22).

        If this node's own queries pass the batches in flight first, the node keeps the lease. A
        batch that fails on every member does not move the lease again and again, since no member
        passes such a batch.
        """
        breakdown, row = self._breakdown, self._lease.row
        if breakdown is None or not self.may_act(now) or row is None or row.paused:
            return
        successor = self.replication.successor(row.in_sync, breakdown.needed)
        if successor is not None or self._deployment.is_past(breakdown.in_flight):
            self._breakdown = None
        if successor is not None:
            yield from self._begin_handover(now, successor, breakdown.reason)

    def hand_over_to_deployed(self, now: float) -> Iterator[do.Action]:
        """Hand the lease over to a process that runs the deployed application (RULES.md#r36)."""
        row = self._lease.row
        if self._rollout.is_due and row is not None:
            in_sync = self.replication.without_backup(row.in_sync)
            self._rollout.begin(self._lease.member, in_sync)
        successor = self._next_holder(now)
        if successor is not None:
            yield from self._begin_handover(now, successor, "another application is deployed")

    def _next_holder(self, now: float) -> str | None:
        """The node that shall hold the lease with the deployed application, if it can take over
        now. A node that only waits for its last snapshot releases the lease by itself."""
        lease, row = self._lease, self._lease.row
        if self._last_snapshot_since is not None or row is None or row.paused:
            return None
        if not self._rollout.is_due or not self.may_act(now):
            return None
        if lease.failing or not lease.is_holder or lease.regressed:
            return None
        in_sync = self.replication.without_backup(row.in_sync)
        ready = tuple(member for member in in_sync if self.replication.is_reached(member))
        return self._rollout.next_holder(now, lease.member, ready)

    def _begin_handover(self, now: float, to: str, reason: str) -> Iterator[do.Action]:
        self.handover = Handover(to, now, reason)
        self.receiving = False
        yield do.CloseReceivers(reason, None)
        yield do.StopPublishing()

    def hand_over(self, now: float) -> Iterator[Outcome]:
        """Release the lease once this journal and the successor's have the same durable end
        (RULES.md#r3).

        Give up the handover if it is no longer possible, or if it takes too long.
        """
        handover = self.handover
        if handover is None or self._lease_client.releasing:
            return
        lease, row = self._lease, self._lease.row
        successor = next((m for m in row.in_sync if m.node == handover.to), None) if row else None
        # RULES.md#r7: during a pause no node may acquire a released lease.
        paused = row is not None and row.paused
        doubtful = lease.is_doubtful(now, self.authority_ends())
        holds = lease.is_holder and not lease.regressed and not doubtful
        late = now >= handover.since + HANDOVER_SECONDS_MAX
        if successor is None or paused or late or not holds:
            self.handover = None
            self._rollout.handover_failed(now)
            yield Wait(f"{handover.to} could not take over")
            yield do.StartPublishing(self.epoch)
        elif self._is_level_with(successor) and lease.idle:
            committed = self._journal.committed_position
            yield self._lease_client.release(now, handover.to, committed, handover.reason)

    def _is_level_with(self, successor: Member) -> bool:
        """Whether ``successor``, which is this node itself if its next process shall continue, has
        the whole journal."""
        journal = self._journal
        here = successor == self._lease.member
        durable = journal.durable if here else self.replication.acked_through(successor)
        return durable == journal.last.sequence == journal.committed

    def released(self) -> Iterator[Outcome]:
        """Notify the members and step down, once the release has taken effect."""
        assert self.handover is not None
        yield from self.replication.send_to_all(say.Released(self.epoch))
        yield StepDown(self.handover.reason)
