"""``Core.step`` turns one input into the actions that follow from it.

``Core`` passes each input to the module that decides on it. ``Core`` itself decides what follows
from an answer about the lease row. ``role_machine`` makes the transitions between roles. ``term``
decides for the holder of the lease, ``follower`` for every other node, and ``query_control`` for
the queries. ``Core`` checks the invariants after every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.deployment import Deployment
from ha_engine.core.follower import Follower
from ha_engine.core.forced_failover import ForcedFailover
from ha_engine.core.high_water import HighWater
from ha_engine.core.identity import NodeIdentity
from ha_engine.core.invariants import check
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease import Lease, LeaseTiming
from ha_engine.core.lease_client import AnswerEffect, LeaseClient
from ha_engine.core.progress import PeerTiming
from ha_engine.core.query_control import Breakdown, QueryControl
from ha_engine.core.retention import Retention
from ha_engine.core.role_machine import RoleMachine
from ha_engine.core.rollout import Rollout
from ha_engine.core.term import Term, TermInput
from ha_engine.core.verdicts import Outcome
from ha_engine.types import Base, Holder, Member, Position, Record, Role

ALONE = PeerTiming(heartbeat_interval=0.2, sync_timeout=2.0)


class Core:
    """The decisions of one node. A ``Core`` is not thread-safe; only the driver calls it."""

    def __init__(
        self,
        identity: NodeIdentity,
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
        self.lease_client = LeaseClient(
            self.lease,
            identity.group_id,
            identity.new_group_id,
            identity.advertise,
            creates=not identity.is_backup,
        )
        self.journal = JournalState(deployment, identity.node)
        self.query_control = QueryControl(identity.process, identity.journal_id, deployment)
        self.retention = Retention(self.journal, deployment)
        self.follower = Follower(
            self.lease_client, self.journal, self.query_control, self.retention
        )
        self.rollout = Rollout(deployment, self.journal)
        self.forced_failover = ForcedFailover(
            self.lease_client, self.journal, self.follower, identity.peers
        )
        self.role_machine = RoleMachine(
            identity,
            self.lease_client,
            self.journal,
            self.query_control,
            self.follower,
            self.rollout,
            peers,
            snapshot_interval,
        )
        # Whether this process ends, so that the next one runs the deployed application.
        self._restarting = False
        self.now = -math.inf

    def load_base(self, base: Base) -> None:
        """Load the base, which replaces the trimmed records. Call this method before ``replay``."""
        self.journal.load_base(base)
        self.lease.note_epoch(base.position.epoch)

    def replay(self, record: Record) -> None:
        """Replay one record that the journal has when the node starts.

        Call this method in the order of the records.
        """
        self.journal.replay(record)
        self.lease.note_epoch(record.position.epoch)

    # -- the step ----------------------------------------------------------------------------------

    def step(self, now: float, event: on.Input) -> list[do.Action]:
        """Decide on one input. Raises InvariantBroken when the node must not continue."""
        now = self.now = max(now, self.now)
        self.role_machine.begin_step(now)
        high_water = self.lease.high_water
        if not self.query_control.names_removed_query(event):
            self._dispatch(event)
        self._keep_high_water(high_water)
        self._advance()
        check(self)
        return self.role_machine.out

    def wake_at(self) -> float:
        """The earliest moment at which a Tick has an effect, if no other input arrives.

        The moment is infinite while no Tick has an effect, and in the past while a Tick has work at
        once. A Tick before that moment does nothing.
        """
        if self.role is Role.STARTING:
            return -math.inf
        now, term, moments = self.now, self.term, [math.inf]
        if self.role is not Role.STOPPED:
            moments.append(self.lease.wake_at)
            moments.append(self.role_machine.removed_by)
        if term is not None:
            moments.append(term.wake_at(now))
            if not self.stopping:
                moments.append(term.holder_wake_at(now))
        if self._may_run:
            moments.append(
                self.query_control.wake_at(self.journal.committed, starts=self._starts_spark)
            )
            if self._may_trim:
                moments.append(self.retention.wake_at(self._retain_after))
        return min(moments)

    def _dispatch(self, event: on.Input) -> None:
        match event:
            case on.EventsOffered() | on.SinkPublished() | on.SkipAsked() | on.SwitchoverAsked():
                self._on_request(event)
            case on.SnapshotAsked() | on.SnapshotTaken() | on.SnapshotFailed() | on.RescaleAsked():
                self._on_request(event)
            case on.DeployAsked():
                self._on_request(event)
            case on.RecordsDurable():
                if self.journal.note_durable(event.sequence):
                    self.role_machine.perform_all(self.follower.ack_durable())
            case on.BatchDigested():
                self._on_digested(event)
            case on.Tick():
                self._on_tick()
            case on.LeaseRead() | on.LeaseWritten() | on.LeaseDenied() | on.DatabaseUnreachable():
                self._on_lease(event)
            case on.LeaseChanged():
                if not self.holds_epoch:
                    self.lease.ask_at_once(self.now)
            case on.HigherEpochSeen():
                self._on_epoch(event.epoch, event.where)
            case on.PeerConnected() | on.PeerLost() | on.PeerMessage():
                self._on_peer(event)
            case on.RestoreFailed(reason):
                self.role_machine.perform_all(self.follower.restore_failed(self.now, reason))
            case on.RevisionsKept(places):
                self._on_revisions(places)
            case on.SnapshotNotShown(reason):
                if self.term is not None:
                    self.term.snapshots.not_shown(reason)
            case on.JournalTrimmed(position):
                self.journal.trimmed(position)
                self.retention.trimmed()
            case on.SnapshotEvery(interval):
                self.role_machine.take_snapshots_every(interval)
            case on.HeadroomChanged():
                self.follower.headroom = event.headroom
            case on.FailoverForced(_, confirmed_fenced):
                if self.why_no_forced_failover(confirmed_fenced) is None:
                    self.forced_failover.ask(self.now, event)
            case on.StopAsked():
                self._on_stop()
            case _:
                breakdown = self.query_control.handle(self.now, event)
                if breakdown is not None:
                    self._on_breakdown(breakdown)

    def _on_breakdown(self, breakdown: Breakdown) -> None:
        if self.term is not None:
            self.term.note_breakdown(breakdown)
        if breakdown.place is not None:
            self._on_request(on.SnapshotFailed(breakdown.place, breakdown.reason))

    def _on_revisions(self, places: tuple[tuple[Position, Position], ...]) -> None:
        if self.term is None:
            return
        self.retention.revisions_are(places)
        self.term.snapshots.shown()
        if self.retention.lacks_revision:
            self.term.snapshots.ensure_one(self.now)

    def _on_stop(self) -> None:
        """Stop the node, after a last snapshot if the term begins one.

        A second request to stop does not wait for the last snapshot.
        """
        if self.term is None or self.role_machine.asked_to_stop:
            self.role_machine.stop()
        else:
            self.role_machine.asked_to_stop = True
            self.role_machine.perform_all(self.term.begin_last_snapshot(self.now))

    def _on_request(self, event: TermInput) -> None:
        if self.term is not None:
            self.role_machine.perform_all(self.term.on_input(self.now, event))
        elif isinstance(event, on.SnapshotTaken | on.SnapshotFailed):
            self.role_machine.perform_all(self.follower.answer_snapshot_request(event))
        elif isinstance(event, on.EventsOffered):
            raise ValueError("events were offered to a node that is not active")

    def _advance(self) -> None:
        """Take every action that the input of this step may have made possible."""
        if self.role_machine.asked_to_stop and (self.term is None or self.term.may_stop(self.now)):
            self.role_machine.stop()
        holding = None if self.stopping else self.term
        self._commit()
        self.deployment.revive_skipped(self.journal.committed)
        if holding is not None:
            self._act_as_holder(holding)
        self.role_machine.perform_all(self.deployment.trims(self.journal.committed))
        if holding is not None:
            self.role_machine.perform_all(holding.plan_marks(self.now))
        self.role_machine.perform_all(self.query_control.answers(self.journal.committed))
        if self._may_run and self.role is not Role.STARTING:
            journal = self.journal
            run = self.query_control.run(
                self.now, journal.committed, journal.epochs, starts=self._starts_spark
            )
            self.role_machine.perform_all(run)
        self.role_machine.perform_all(self.query_control.begin_snapshot())
        self._run_deployed()
        self.role_machine.leave()

    def _run_deployed(self) -> None:
        """Restart with the deployed application, once no ack waits for this node
        (RULES.md#r36)."""
        row = self.lease.row
        # Nobody waits for a member of a released row: the next holder begins with itself alone.
        listed = row is not None and self.lease.member in row.in_sync and row.holder is not None
        if self.term is not None or self.is_leaving or self.role is Role.STARTING or listed:
            return
        if self.rollout.is_due or self._deployment_was_given_up:
            self._restarting = True
            self.role_machine.perform(do.ChangeApplication(self.deployment.versions.deployed))

    @property
    def _deployment_was_given_up(self) -> bool:
        """Whether a forced failover gave up the record of the deployment that this process runs: it
        is not among the records that the holder has committed."""
        announced = self.follower.announced_in(self.follower.epoch)
        has_all = 0 < announced <= self.journal.committed
        return self.deployment.lacks_deployment and self.follower.epoch > 0 and has_all

    def _commit(self) -> None:
        if self.term is None:
            self.follower.commit()
        else:
            self.role_machine.perform_all(self.term.commit(self.now))

    def _act_as_holder(self, term: Term) -> None:
        term.note_row(self.now)
        if not term.active and term.epoch_committed:
            self.role_machine.become_active(term)
        if term.wants_another_row(self.now):
            self._ask_lease()
        self.role_machine.perform_all(term.hand_over_after_breakdown(self.now))
        self.role_machine.perform_all(term.hand_over_to_deployed(self.now))
        self.role_machine.perform_all(term.hand_over(self.now))
        self.role_machine.perform_all(term.suspend_or_resume(self.now))

    # -- lease -------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self.role_machine.start()
        if self.lease.due(self.now) and self.role is not Role.STOPPED:
            self._ask_lease()
        if self.term is not None:
            self.role_machine.perform_all(self.term.tick(self.now))
        if self._may_run and self._may_trim:
            self.role_machine.perform_all(self.retention.trim(self.now, self._retain_after))

    @property
    def _may_run(self) -> bool:
        return not self.is_leaving and not self.follower.giving_up

    @property
    def _starts_spark(self) -> bool:
        """Whether this node starts a query process if none runs.

        The backup runs Spark only while it may take over, or is the active (RULES.md#r37).
        """
        needed = self.role in (Role.PASSIVE, Role.PROMOTING, Role.ACTIVE)
        return needed or not self.identity.is_backup

    @property
    def _may_trim(self) -> bool:
        """Whether this node may trust its list of snapshot revisions when it trims (RULES.md#r29).

        Once a holder's authority is over, another holder may have changed the revisions.
        """
        return self.term is None or self.term.may_act(self.now)

    @property
    def _retain_after(self) -> float:
        return math.inf if self.term is None else self.term.retain_after(self.now)

    def _ask_lease(self) -> None:
        row, term = self.lease.row, self.term
        # Without a term, the request keeps the in-sync list of the row. The row may name this
        # process as the holder if the answer to an acquisition was lost. A write of the same list
        # confirms such an acquisition (RULES.md#r1).
        listed = row.in_sync if row is not None else None
        wanted = listed if term is None else term.wanted_in_sync(self.now)
        committed = self.journal.committed_position
        ends = self.role_machine.authority_ends
        self.role_machine.perform(self.lease_client.request(self.now, wanted, committed, ends))

    def _keep_high_water(self, before: HighWater) -> None:
        """Put KeepHighWater before the other actions, so that the disk has the high water before
        the lease write is sent (RULES.md#r16)."""
        high_water = self.lease.high_water
        if high_water != before:
            self.role_machine.out.insert(0, do.KeepHighWater(high_water))

    def _on_lease(
        self, event: on.LeaseRead | on.LeaseWritten | on.LeaseDenied | on.DatabaseUnreachable
    ) -> None:
        match self.lease_client.handle(self.now, event):
            case AnswerEffect.READ:
                self._after_read()
            case AnswerEffect.WRITTEN:
                self._after_write()
            case AnswerEffect.NOTHING:
                self.forced_failover.forget()

    def _after_read(self) -> None:
        outcome = self._read()
        if outcome is not None:
            self.role_machine.perform(outcome)
        if self.role in (Role.JOINING, Role.PASSIVE, Role.BACKUP):
            self.role_machine.take_role_from_row()
            self.role_machine.perform_all(self.follower.bind())
            self.role_machine.perform_all(self.follower.explain_wait())

    def _read(self) -> Outcome | None:
        lease_client = self.lease_client
        if self.holds_epoch:
            ends = self.role_machine.authority_ends
            return lease_client.read_as_holder(self.now, self.epoch, ends, stopping=self.stopping)
        if self.is_leaving:
            return None
        forced = self.forced_failover.after_read(self.now, self.role_machine.connected)
        if forced is not None:
            return forced
        row = self.lease.row
        announced = 0 if row is None else self.follower.announced_in(row.epoch)
        return lease_client.read_as_other(self.now, self.journal.last, announced)

    def _after_write(self) -> None:
        row = self.lease.row
        assert row is not None
        if self.holds_epoch and not self.lease.is_holder and not self.stopping:
            assert self.term is not None
            self.role_machine.perform_all(self.term.released())
            return
        # RULES.md#r15: an epoch that ended while its renewal was in flight does not resume when the
        # renewal succeeds.
        new = self.lease.is_holder and not self.lease.regressed and row.epoch > self.epoch
        if not new or self.stopping or self.follower.replacing_journal:
            return
        if self.holds_epoch:
            self.role_machine.become_demoting(
                "the database lost the lease row; this node writes it again"
            )
        forced = self.forced_failover.acquired(row.epoch)
        self.role_machine.become_promoting(row.epoch, row.group_id, forced=forced)

    def _on_epoch(self, epoch: int, where: str) -> None:
        """Note an epoch, and demote this node if it holds a lower epoch (RULES.md#r14).

        The disk keeps the noted epoch, so this node never acquires or renews from a lease row with
        a lower one (RULES.md#r5).
        """
        self.lease.note_epoch(epoch)
        if epoch > self.epoch and self.holds_epoch:
            self.role_machine.become_demoting(f"{where} carries epoch {epoch}")

    # -- other members -----------------------------------------------------------------------------

    def _on_peer(self, event: on.PeerConnected | on.PeerLost | on.PeerMessage) -> None:
        match event:
            case on.PeerConnected(peer, archive):
                self.role_machine.connected.add(peer)
                self.rollout.archives[peer] = archive
                if self.term is not None:
                    last = self.journal.last.sequence
                    self.role_machine.perform_all(
                        self.term.replication.linked(self.now, peer, last)
                    )
                    self.term.snapshots.linked(peer)
            case on.PeerLost(peer):
                self.role_machine.connected.discard(peer)
                if self.term is not None:
                    self.term.replication.unlinked(peer)
                self.follower.on_peer_lost(self.now, peer)
            case on.PeerMessage(peer, message):
                if message.epoch > self.lease.high_water.epoch:
                    self._on_epoch(message.epoch, peer)
                self._on_message(peer, message)

    def _on_digested(self, event: on.BatchDigested) -> None:
        """Compare this node's digest of a batch with the holder's digest (RULES.md#i6).

        After a difference the queries of this node do not count as warm, but its journal stays in
        sync (RULES.md#r10).
        """
        query, number, digest = event.query, event.number, event.digest
        digests = self.query_control.digests
        equal = digests.note_mine(query, number, digest)
        if self.term is not None and not digests.may_differ(query, number):
            message = say.BatchDigest(self.epoch, query, number, digest)
            self.role_machine.perform_all(self.term.replication.send_to_all(message))
        if not equal:
            self.role_machine.perform(do.ReportDifference(query, number))

    def _on_message(self, peer: str, message: say.Message) -> None:
        if isinstance(message, say.MemberMessage):
            if self.term is not None:
                self.role_machine.perform_all(self.term.handle(self.now, peer, message))
        elif self._may_follow(message.epoch):
            self.role_machine.perform_all(self.follower.handle(self.now, peer, message))

    def _may_follow(self, epoch: int) -> bool:
        """Whether this node handles messages from a holder of ``epoch`` (RULES.md#i14).

        A node ignores an older epoch, and it ignores every other holder while it holds an epoch
        itself.
        """
        if epoch < self.lease.high_water.epoch or self.holds_epoch or self.stopping:
            return False
        return not self.follower.replacing_journal and self.role is not Role.STOPPED

    # -- questions between steps; none changes anything -------------------------------------------

    @property
    def role(self) -> Role:
        return self.role_machine.role

    @property
    def reason(self) -> str:
        """One sentence for status: what this node waits for, or why it has its role."""
        return self.role_machine.reason

    @property
    def epoch(self) -> int:
        """The newest epoch that this process has held, or 0 if it has held none."""
        return self.role_machine.epoch

    @property
    def term(self) -> Term | None:
        return self.role_machine.term

    @property
    def holds_epoch(self) -> bool:
        """Whether this node holds an epoch."""
        return self.role_machine.holds_epoch

    @property
    def stopping(self) -> bool:
        return self.role_machine.stopping

    def may_act(self) -> bool:
        """Whether this node has the authority to ack, publish and plan marks (RULES.md#i2)."""
        return self.authority_seconds(self.now) > 0

    def suspended(self, now: float | None = None) -> bool:
        """Whether the authority of this active is over until a renewal (RULES.md#r15).

        Pass ``now`` if the operating system may have paused the process since the last step.
        """
        seconds = self.authority_seconds(self.now if now is None else now)
        return self.role is Role.ACTIVE and seconds == 0

    def authority_seconds(self, now: float) -> float:
        """For how many seconds the publisher's next call of a sink may last; 0 if the call must not
        start (RULES.md#r17)."""
        return 0.0 if self.term is None else self.term.authority_seconds(now)

    def why_no_order(self) -> str | None:
        """The reason why this node cannot append a record that an operator asks for now, or
        None."""
        if self.role is not Role.ACTIVE:
            return "this node is not active; ask the active"
        if not self.may_act():
            return (
                "this active is suspended, because its lease was not renewed in time, or it hands "
                "the lease over; ask again"
            )
        return None

    def why_no_switchover(self, to: str | None) -> str | None:
        """The reason why no switchover to ``to`` is possible now, or None if one is possible.

        If ``to`` is None, any member but the backup may take over.
        """
        if self.term is None:
            return "this node is not the active"
        return self.term.why_no_switchover(self.now, to)

    def why_no_forced_failover(self, confirmed_fenced: Iterable[str]) -> str | None:
        """The reason why an operator must not force a failover to this node now, or None
        (RULES.md#r26)."""
        if self.holds_epoch:
            return "this node is the active"
        if self.is_leaving:
            return "this node is stopping, or truncates its journal"
        return self.forced_failover.why_not(
            self.now, self.role_machine.connected, frozenset(confirmed_fenced)
        )

    @property
    def receiving(self) -> bool:
        return self.term is not None and self.term.receiving

    @property
    def warm(self) -> bool:
        return self.query_control.warm(self.journal.committed)

    @property
    def group_id(self) -> str | None:
        return self.lease_client.group_id

    @property
    def is_leaving(self) -> bool:
        """Whether this process may not take over any more, because it stops, replaces its journal
        or restarts with another application."""
        ended = self.stopping or self._restarting or self.role is Role.STOPPED
        return ended or self.follower.replacing_journal
