"""Make the transitions between the roles of a node, from its start to its stop.

Each transition has one method, which changes everything that depends on the role. ``core`` decides
when a transition is due.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ha_engine.core import actions as do
from ha_engine.core.deadlines import ahead
from ha_engine.core.follower import Follower
from ha_engine.core.identity import NodeIdentity
from ha_engine.core.journal_state import JournalState
from ha_engine.core.lease_client import LeaseClient
from ha_engine.core.progress import PeerTiming
from ha_engine.core.query_control import QueryControl
from ha_engine.core.replication import Replication
from ha_engine.core.role import check_transition
from ha_engine.core.rollout import Rollout
from ha_engine.core.snapshots import Snapshots
from ha_engine.core.term import Term
from ha_engine.core.verdicts import Outcome, StepDown, Stop, Wait
from ha_engine.types import EpochStart, Role


class RoleMachine:
    """The role of one node. ``term`` is set while the node holds an epoch.

    ``RoleMachine`` performs the outcomes of every module of the core, since some outcomes change
    the role. ``out`` collects the actions of the current step.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        lease_client: LeaseClient,
        journal: JournalState,
        query_control: QueryControl,
        follower: Follower,
        rollout: Rollout,
        peers: PeerTiming,
        snapshot_interval: float,
    ) -> None:
        self.identity, self.peer_timing = identity, peers
        self._snapshot_interval = snapshot_interval
        self.lease, self.lease_client = lease_client.lease, lease_client
        self.journal, self.query_control, self.follower = journal, query_control, follower
        self.rollout = rollout
        self.term: Term | None = None
        self.role, self.reason = Role.STARTING, "the process has just started"
        self.epoch = 0
        self.asked_to_stop = self.stopping = False
        self.connected: set[str] = set()
        self.now = -math.inf
        self.out: list[do.Action] = []
        self._named_active: str | None = None
        # RULES.md#r9: until when a stopping follower lets the holder remove it from the row.
        self._removed_by = -math.inf

    def begin_step(self, now: float) -> None:
        self.now, self.out = now, []

    @property
    def holds_epoch(self) -> bool:
        """Whether this node holds an epoch."""
        return self.role in (Role.ACTIVE, Role.PROMOTING)

    @property
    def authority_ends(self) -> float:
        """Until when this node may act as the holder."""
        # RULES.md#r3: a release may have taken effect, and the successor may then acquire the lease
        # without a wait.
        if self.lease_client.releasing:
            return -math.inf
        return self.lease.carries_until if self.term is None else self.term.authority_ends()

    # -- carrying out ------------------------------------------------------------------------------

    def perform(self, outcome: Outcome) -> None:
        match outcome:
            case Stop(reason):
                self.become_stopped(reason)
            case StepDown(reason):
                self.become_demoting(reason)
            case Wait(reason):
                self.reason = reason
            case action:
                self.out.append(action)

    def perform_all(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.perform(outcome)

    # -- transitions -------------------------------------------------------------------------------

    def _become(self, role: Role, reason: str) -> None:
        check_transition(self.role, role)
        self.role, self.reason = role, reason
        self.perform(do.ChangeRole(role, self.epoch, reason))

    def start(self) -> None:
        if self.role is Role.STARTING:
            self._become(Role.JOINING, "the journal is read")

    def become_promoting(self, epoch: int, group_id: str, *, forced: bool = False) -> None:
        """Begin ``epoch``, which this node has acquired, by appending its epoch record.

        The commit of that record commits the whole journal, before this node accepts any event
        (RULES.md#r3).
        """
        self.epoch = epoch
        self.follower.end()
        if forced:
            self.query_control.digests.history_was_given_up()
        self._become(Role.PROMOTING, f"acquired epoch {epoch}")
        self.perform_all(self.lease_client.bind(group_id))
        me, timing = self.lease.member, self.peer_timing
        journal, query_control = self.journal, self.query_control
        replication = Replication(
            me,
            epoch,
            timing,
            self.now,
            self.connected,
            journal.last.sequence,
            self.rollout.fits,
            self.identity.backup,
            self.lease.inherited,
        )
        snapshots = Snapshots(
            journal, query_control, replication, self._snapshot_interval, self.now
        )
        retention = self.follower.retention
        retention.begin_epoch()
        self.term = Term(
            self.lease_client,
            journal,
            query_control,
            replication,
            snapshots,
            retention,
            self.rollout,
        )
        start = EpochStart(self.identity.node, self.identity.process, forced)
        self.perform(self.term.append(start))

    def take_snapshots_every(self, interval: float) -> None:
        """Set the seconds between snapshots, for this epoch and later ones; 0 means only on
        request."""
        self._snapshot_interval = interval
        if self.term is not None:
            self.term.snapshots.set_interval(self.now, interval)

    def become_active(self, term: Term) -> None:
        self._become(Role.ACTIVE, f"the journal is committed through {self.journal.last}")
        self.query_control.deployment.take_over()
        self.perform_all(term.begin())
        self.perform(do.FindRevisions())
        silent_since = self.follower.silent_since(self.epoch - 1)
        if silent_since is not None:
            self.perform(do.NoteOutage(self.epoch, self.now - silent_since))

    def become_demoting(self, reason: str) -> None:
        self._become(Role.DEMOTING, reason)
        self._close(reason)
        self.term = None
        self.query_control.deployment.stand_by()
        self.lease.end(self.epoch)
        self.perform(do.StopStreams())
        self._become(Role.JOINING, reason)

    def become_stopped(self, reason: str) -> None:
        if self.role is Role.ACTIVE:
            self._become(Role.DEMOTING, reason)
            if not self.stopping:
                self._close(reason)
        self.term = None
        self._become(Role.STOPPED, reason)
        self.perform(do.Exit(reason))

    def _close(self, reason: str) -> None:
        if self.term is not None:
            self.term.receiving = False
        self._named_active = self.lease.active_url
        self.perform(do.CloseReceivers(reason, self._named_active))
        self.perform(do.StopPublishing())

    def take_role_from_row(self) -> None:
        """Derive this node's role, and the URL of the active, from the lease row.

        Only a node that does not hold the lease takes its role from the row.
        """
        row, active = self.lease.row, self.lease.active_url
        if active != self._named_active:
            self._named_active = active
            # The receivers are closed already, but from now on their refusals must name the new
            # active.
            self.perform(do.CloseReceivers("this node is not the active", active))
        if row is None or row.holder is None or self.lease.regressed:
            return
        other = row.holder.node != self.identity.node
        listed = self.lease.member in row.in_sync and other
        in_sync = listed and not self.lease.lacks_committed(self.journal.last)
        if self.identity.is_backup and other and not in_sync:
            self._become_backup()
            return
        role = Role.PASSIVE if in_sync else Role.JOINING
        if role is not self.role:
            self._become(role, f"its journal is {'' if in_sync else 'not '}in sync")

    def _become_backup(self) -> None:
        """Follow the active without Spark, since this node may not take over by itself
        (RULES.md#r37)."""
        if self.role is not Role.BACKUP:
            self._become(Role.BACKUP, "it is the backup, and its journal is not in sync")
            self._end_query_process("the backup runs no query")

    def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._close("the node is stopping")
        self._end_query_process("the node is stopping")
        if self.follower.is_waited_for:
            self._removed_by = self.now + self.peer_timing.sync_timeout
            self.follower.leaves = True
            self.perform_all(self.follower.ack_durable())

    @property
    def removed_by(self) -> float:
        """The moment at which a stopping follower waits no longer, or infinity."""
        return ahead(self.now, self._removed_by)

    def _end_query_process(self, reason: str) -> None:
        incarnation = self.query_control.process.incarnation
        if incarnation is not None:
            self.perform(do.StopQueryProcess(incarnation, reason))

    def leave(self) -> None:
        """Let a stopping node release its lease once its records are on disk, so that no other node
        waits for a ttl. A stopping follower acks until the row no longer lists it, so that no event
        waits for it. It waits no longer than the holder would wait for a silent follower.

        The node tries the release once. If the database does not answer, the other nodes wait for
        the ttl.
        """
        lease, lease_client = self.lease, self.lease_client
        waits = (
            lease.sent_at is not None
            or self.journal.durable < self.journal.last.sequence
            or (self.follower.is_waited_for and self.now < self._removed_by)
        )
        if not self.stopping or self.role is Role.STOPPED or waits:
            return
        holds = lease.row is not None and lease.is_holder and not lease.regressed
        if not holds or lease_client.releasing or lease.is_doubtful(self.now, self.authority_ends):
            self.become_stopped("the node was asked to stop")
            return
        self.perform(
            lease_client.release(self.now, None, self.journal.committed_position, "stopped")
        )
