"""``Core.step``: one input in, the actions that follow from it out.

Here it is decided who hears what, and what an answer about the lease means. What a node does from
role to role is in ``life``, as the holder in ``tenure``, as anybody else in ``following``, and with
its queries in ``querying``. The invariants are checked after every step.
"""

from __future__ import annotations

import math

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.answers import Answers
from ha_engine.core.deployment import Deployment
from ha_engine.core.following import Following
from ha_engine.core.forcing import Forcing
from ha_engine.core.high_water import HighWater
from ha_engine.core.identity import Identity
from ha_engine.core.invariants import check
from ha_engine.core.lease import Lease, LeaseTiming
from ha_engine.core.lessee import Heard, Lessee
from ha_engine.core.life import Life
from ha_engine.core.own_journal import OwnJournal
from ha_engine.core.progress import PeerTiming
from ha_engine.core.querying import Broke, Querying
from ha_engine.core.retention import Retention
from ha_engine.core.tenure import Request, Tenure
from ha_engine.core.verdicts import Outcome
from ha_engine.types import ORIGIN, Base, Holder, Member, Position, Record, Role

ALONE = PeerTiming(heartbeat_every=0.2, sync_timeout=2.0)


class Core(Answers):
    """The decisions of one node. Not thread-safe; one driver feeds it."""

    def __init__(
        self,
        identity: Identity,
        timing: LeaseTiming,
        high_water: HighWater,
        deployment: Deployment,
        peers: PeerTiming = ALONE,
        snapshot_interval: float = 0.0,
    ) -> None:
        self.identity, self.deployment = identity, deployment
        holder = Holder(identity.node, identity.process)
        member = Member(identity.node, identity.journal_id)
        self.lease = Lease(holder, member, timing, high_water)
        self.lessee = Lessee(
            self.lease, identity.group_id, identity.new_group_id, identity.advertise
        )
        self.journal = OwnJournal(deployment, identity.node)
        self.querying = Querying(identity.process, deployment)
        self.retention = Retention(self.journal, deployment)
        self.following = Following(self.lessee, self.journal, self.querying, self.retention)
        self.forcing = Forcing(self.lessee, self.journal, self.following, identity.peers)
        self.life = Life(
            identity,
            self.lessee,
            self.journal,
            self.querying,
            self.following,
            peers,
            snapshot_interval,
        )
        self.now = -math.inf

    def stand_on(self, base: Base) -> None:
        """What the records said that the journal no longer holds; comes before the others."""
        self.journal.stand_on(base)
        self.lease.heard_of(base.position.epoch)

    def restore(self, record: Record) -> None:
        """Takes in one record of the journal that was there at start, in order."""
        self.journal.restore(record)
        self.lease.heard_of(record.position.epoch)

    # -- the step ----------------------------------------------------------------------------------

    def step(self, now: float, event: on.Input) -> list[do.Action]:
        """Raises InvariantBroken when the node must not go on."""
        now = self.now = max(now, self.now)
        self.life.begin_step(now)
        high_water = self.lease.high_water
        if not self.querying.is_about_a_gone_query(event):
            self._dispatch(event)
        self._keep_high_water(high_water)
        self._advance()
        check(self)
        return self.life.out

    def wake_at(self) -> float:
        """The earliest moment at which a Tick could do anything, if nothing but time goes on.

        Infinite while none could; in the past while one has work to do at once. An earlier Tick
        does nothing.
        """
        if self.role is Role.STARTING:
            return -math.inf
        now, tenure, moments = self.now, self.tenure, [math.inf]
        if self.role is not Role.STOPPED:
            moments.append(self.lease.wake_at)
        if tenure is not None:
            moments.append(tenure.wake_at(now))
            if not self.stopping:
                moments.append(tenure.leads_at(now))
        if self._may_run:
            moments.append(self.querying.wake_at(self.journal.committed))
            if self._may_trim:
                moments.append(self.retention.wake_at(self._hold))
        return min(moments)

    def _dispatch(self, event: on.Input) -> None:
        match event:
            case on.EventsOffered() | on.SinkPublished() | on.SkipAsked() | on.SwitchoverAsked():
                self._on_request(event)
            case on.SnapshotAsked() | on.SnapshotTaken() | on.SnapshotFailed():
                self._on_request(event)
            case on.RecordsDurable():
                if self.journal.written(event.sequence):
                    self.life.do_all(self.following.confirm())
            case on.BatchDigested():
                self._on_digested(event)
            case on.Tick():
                self._on_tick()
            case on.LeaseRead() | on.LeaseWritten() | on.LeaseDenied() | on.DatabaseUnreachable():
                self._on_lease(event)
            case on.LeaseChanged():
                if not self.acting:
                    self.lease.again_at_once(self.now)
            case on.HigherEpochSeen():
                self._hear_of(event.epoch, event.where)
            case on.PeerConnected() | on.PeerLost() | on.PeerSaid():
                self._on_peer(event)
            case on.RestoreFailed(reason):
                self.life.do_all(self.following.restore_failed(self.now, reason))
            case on.RevisionsKept(places):
                self._on_revisions(places)
            case on.SnapshotNotShown(reason):
                if self.tenure is not None:
                    self.tenure.snapshots.not_shown(reason)
            case on.JournalTrimmed(position):
                self.journal.trimmed(position)
                self.retention.trimmed()
            case on.SnapshotEvery(interval):
                self.life.take_snapshots_every(interval)
            case on.RoomChanged():
                self.following.room = event.room
            case on.FailoverForced(_, confirmed_off):
                if self.why_no_forced_failover(confirmed_off) is None:
                    self.forcing.ask(self.now, event)
            case on.StopAsked():
                self._on_stop()
            case _:
                broke = self.querying.hear(self.now, event)
                if broke is not None:
                    self._on_broke(broke)

    def _on_broke(self, broke: Broke) -> None:
        if self.tenure is not None:
            self.tenure.note_breakdown(broke.why, broke.in_flight)
            self.tenure.snapshots.broke(broke.why)
        if broke.cut is not None:
            self._on_request(on.SnapshotFailed(broke.cut, broke.why))

    def _on_revisions(self, places: tuple[tuple[Position, Position], ...]) -> None:
        if self.tenure is None:
            return
        self.retention.revisions_are(places)
        self.tenure.snapshots.shown()
        if self.retention.lacks_revision:
            self.tenure.snapshots.need(self.now)

    def _on_stop(self) -> None:
        """Who is asked again waits for nothing."""
        if self.tenure is None or self.life.asked_to_stop:
            self.life.stop()
        else:
            self.life.asked_to_stop = True
            self.life.do_all(self.tenure.part(self.now))

    def _on_request(self, event: Request) -> None:
        if self.tenure is not None:
            self.life.do_all(self.tenure.serve(self.now, event))
        elif isinstance(event, on.SnapshotTaken | on.SnapshotFailed):
            self.life.do_all(self.following.report(event))
        elif isinstance(event, on.EventsOffered):
            raise ValueError("events were offered to a node that is not active")

    def _advance(self) -> None:
        """What any step may have made possible."""
        if self.life.asked_to_stop and (self.tenure is None or self.tenure.may_leave(self.now)):
            self.life.stop()
        leads = None if self.stopping else self.tenure
        self._commit()
        self.deployment.revive_skipped(self.journal.committed)
        if leads is not None:
            self._lead(leads)
        self.life.do_all(self.deployment.trims(self.journal.committed))
        if leads is not None:
            self.life.do_all(leads.plan_marks(self.now))
        self.life.do_all(self.deployment.answers(self.journal.committed))
        if self._may_run and self.role is not Role.STARTING:
            committed, journal_id = self.journal.committed, self.identity.journal_id
            self.life.do_all(self.querying.run(self.now, committed, journal_id))
        self.life.do_all(self.querying.captures())
        self.life.leave()

    def _commit(self) -> None:
        if self.tenure is None:
            self.following.commit()
        else:
            self.life.do_all(self.tenure.commit(self.now))

    def _lead(self, tenure: Tenure) -> None:
        if not tenure.active and tenure.signed:
            self.life.become_active(tenure)
        if tenure.wants_another_row(self.now):
            self._ask_lease()
        self.life.do_all(tenure.give_way(self.now))
        self.life.do_all(tenure.hand_over(self.now))
        self.life.do_all(tenure.suspend_or_resume(self.now))

    # -- lease -------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self.life.start()
        if self.lease.due(self.now) and self.role is not Role.STOPPED:
            self._ask_lease()
        if self.tenure is not None:
            self.life.do_all(self.tenure.tick(self.now))
        if self._may_run and self._may_trim:
            self.life.do_all(self.retention.trim(self.now, self._hold))

    @property
    def _may_run(self) -> bool:
        return not self.is_bound and not self.following.giving_up

    @property
    def _may_trim(self) -> bool:
        """What a holder knows of revisions, another may have changed once its authority is over."""
        return self.tenure is None or self.tenure.may_act(self.now)

    @property
    def _hold(self) -> float:
        return math.inf if self.tenure is None else self.tenure.hold(self.now)

    def _ask_lease(self) -> None:
        row, tenure = self.lease.row, self.tenure
        listed = row.in_sync if row is not None else None
        wanted = listed if tenure is None else tenure.wanted_in_sync(self.now)
        self.life.do(self.lessee.request(self.now, wanted, self.life.authority_ends))

    def _keep_high_water(self, before: HighWater) -> None:
        """RULES.md#r16: comes before the write that it knows of."""
        mark = self.lease.high_water
        if mark != before:
            self.life.out.insert(0, do.KeepHighWater(mark))

    def _on_lease(
        self, event: on.LeaseRead | on.LeaseWritten | on.LeaseDenied | on.DatabaseUnreachable
    ) -> None:
        match self.lessee.hear(self.now, event):
            case Heard.READ:
                self._after_read()
            case Heard.WRITTEN:
                self._after_write()
            case Heard.NOTHING:
                self.forcing.forget()

    def _after_read(self) -> None:
        outcome = self._read()
        if outcome is not None:
            self.life.do(outcome)
        if self.role in (Role.JOINING, Role.PASSIVE):
            self.life.note_standing()
            self.life.do_all(self.following.bind())
            self.life.do_all(self.following.waits())

    def _read(self) -> Outcome | None:
        lessee = self.lessee
        if self.acting:
            ends = self.life.authority_ends
            return lessee.read_as_holder(self.now, self.epoch, ends, stopping=self.stopping)
        if self.is_bound:
            return None
        forced = self.forcing.after_read(self.now, self.life.connected)
        if forced is not None:
            return forced
        return lessee.read_as_other(self.now, new=self.journal.last == ORIGIN)

    def _after_write(self) -> None:
        row = self.lease.row
        assert row is not None
        if self.acting and not self.lease.mine and not self.stopping:
            assert self.tenure is not None
            self.life.do_all(self.tenure.released())
            return
        if self.lease.mine and not self.stopping:
            # A renewal that took effect: whatever release was sent before it is void (RULES.md#r3).
            self.lessee.releasing = False
        # RULES.md#r15: a renewal that was in flight when this epoch ended does not bring it back.
        new = self.lease.mine and not self.lease.regressed and row.epoch > self.epoch
        if not new or self.stopping or self.following.cutting:
            return
        if self.acting:
            self.life.become_demoting("the database had lost the lease row; it is written again")
        forced = self.forcing.acquired(row.epoch)
        self.life.become_promoting(row.epoch, row.group_id, forced=forced)

    def _hear_of(self, epoch: int, where: str) -> None:
        """RULES.md#r14: kept on disk, so that no row below it is ever acquired from or renewed
        (RULES.md#r5)."""
        self.lease.heard_of(epoch)
        if epoch > self.epoch and self.acting:
            self.life.become_demoting(f"{where} carries epoch {epoch}")

    # -- other members -----------------------------------------------------------------------------

    def _on_peer(self, event: on.PeerConnected | on.PeerLost | on.PeerSaid) -> None:
        match event:
            case on.PeerConnected(peer):
                self.life.connected.add(peer)
                if self.tenure is not None:
                    last = self.journal.last.sequence
                    self.life.do_all(self.tenure.leading.linked(self.now, peer, last))
                    self.tenure.snapshots.linked(peer)
            case on.PeerLost(peer):
                self.life.connected.discard(peer)
                if self.tenure is not None:
                    self.tenure.leading.unlinked(peer)
                self.following.lost(self.now, peer)
            case on.PeerSaid(peer, message):
                if message.epoch > self.lease.high_water.epoch:
                    self._hear_of(message.epoch, peer)
                self._on_said(peer, message)

    def _on_digested(self, event: on.BatchDigested) -> None:
        """RULES.md#i6, RULES.md#r10: the journal's protection is not touched by a difference,
        *warm* is."""
        query, number, digest = event.query, event.number, event.digest
        equal = self.querying.digests.note_mine(query, number, digest)
        if self.tenure is not None:
            message = say.BatchDigest(self.epoch, query, number, digest)
            self.life.do_all(self.tenure.leading.tell_all(message))
        if not equal:
            self.life.do(do.ReportDifference(query, number))

    def _on_said(self, peer: str, message: say.Message) -> None:
        if isinstance(message, say.Answer):
            if self.tenure is not None:
                self.life.do_all(self.tenure.hear(self.now, peer, message))
        elif self._may_follow(message.epoch):
            self.life.do_all(self.following.hear(self.now, peer, message))

    def _may_follow(self, epoch: int) -> bool:
        """RULES.md#i14: of an older epoch, or to a node that holds its own, nothing is heard."""
        if epoch < self.lease.high_water.epoch or self.acting or self.stopping:
            return False
        return not self.following.cutting and self.role is not Role.STOPPED
