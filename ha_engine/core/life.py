"""The role of a node from its start to its stop: each transition, and what goes with it.

A transition has one home, named for it, and sets everything. When one is due, ``core`` knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ha_engine.core import actions as do
from ha_engine.core.following import Following
from ha_engine.core.identity import Identity
from ha_engine.core.leading import Leading
from ha_engine.core.lessee import Lessee
from ha_engine.core.own_journal import OwnJournal
from ha_engine.core.progress import PeerTiming
from ha_engine.core.querying import Querying
from ha_engine.core.role import check_transition
from ha_engine.core.snapshots import Snapshots
from ha_engine.core.tenure import Tenure
from ha_engine.core.verdicts import Foreign, Lost, Outcome, Waits
from ha_engine.types import EpochStart, Role


class Life:
    """``tenure`` is there while this node holds an epoch. ``out`` is what the step has led to."""

    def __init__(
        self,
        identity: Identity,
        lessee: Lessee,
        journal: OwnJournal,
        querying: Querying,
        following: Following,
        peers: PeerTiming,
        snapshot_interval: float,
    ) -> None:
        self.identity, self.peer_timing = identity, peers
        self._snapshot_interval = snapshot_interval
        self.lease, self.lessee = lessee.lease, lessee
        self.journal, self.querying, self.following = journal, querying, following
        self.tenure: Tenure | None = None
        self.role, self.why = Role.STARTING, "the process has just started"
        self.epoch = 0
        self.asked_to_stop = self.stopping = False
        self.connected: set[str] = set()
        self.now = -math.inf
        self.out: list[do.Action] = []
        self._named: str | None = None

    def begin_step(self, now: float) -> None:
        self.now, self.out = now, []

    @property
    def acting(self) -> bool:
        """Whether this node holds an epoch."""
        return self.role in (Role.ACTIVE, Role.PROMOTING)

    @property
    def authority_ends(self) -> float:
        """Until when this node may act as the holder."""
        if (
            self.lessee.releasing
        ):  # RULES.md#r3: whom a release names, if it took effect, waits for no ttl
            return -math.inf
        return self.lease.carries_until if self.tenure is None else self.tenure.authority_ends()

    # -- carrying out ------------------------------------------------------------------------------

    def do(self, outcome: Outcome) -> None:
        match outcome:
            case Foreign(why):
                self.become_stopped(why)
            case Lost(why):
                self.become_demoting(why)
            case Waits(why):
                self.why = why
            case action:
                self.out.append(action)

    def do_all(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.do(outcome)

    # -- transitions -------------------------------------------------------------------------------

    def _become(self, role: Role, why: str) -> None:
        check_transition(self.role, role)
        self.role, self.why = role, why
        self.do(do.ChangeRole(role, self.epoch, why))

    def start(self) -> None:
        if self.role is Role.STARTING:
            self._become(Role.JOINING, "the journal is read")

    def become_promoting(self, epoch: int, group_id: str, *, forced: bool = False) -> None:
        """The lease is ours; the epoch record commits the whole journal first (RULES.md#r3)."""
        self.epoch, self.lessee.releasing = epoch, False
        self.following.end()
        if forced:
            self.querying.digests.history_was_given_up()
        self._become(Role.PROMOTING, f"acquired epoch {epoch}")
        self.do_all(self.lessee.bind(group_id))
        me, timing = self.lease.member, self.peer_timing
        journal, querying = self.journal, self.querying
        leading = Leading(me, epoch, timing, self.now, self.connected, journal.last.sequence)
        snapshots = Snapshots(journal, querying, leading, self._snapshot_interval, self.now)
        retention = self.following.retention
        retention.begin_epoch()
        self.tenure = Tenure(self.lessee, journal, querying, leading, snapshots, retention)
        start = EpochStart(self.identity.node, self.identity.process, forced)
        self.do(self.tenure.append(start))

    def take_snapshots_every(self, interval: float) -> None:
        """In seconds, from now on and under later epochs; 0: only those that are asked for."""
        self._snapshot_interval = interval
        if self.tenure is not None:
            self.tenure.snapshots.every(self.now, interval)

    def become_active(self, tenure: Tenure) -> None:
        self._become(Role.ACTIVE, f"the journal is committed through {self.journal.last}")
        self.do_all(tenure.begin())
        self.do(do.FindRevisions())
        silent_since = self.following.silent_since(self.epoch - 1)
        if silent_since is not None:
            self.do(do.NoteOutage(self.epoch, self.now - silent_since))

    def become_demoting(self, why: str) -> None:
        self._become(Role.DEMOTING, why)
        self._close(why)
        self.tenure, self.lessee.releasing = None, False
        self.lease.ended = self.epoch
        self.do(do.StopStreams())
        self._become(Role.JOINING, why)

    def become_stopped(self, why: str) -> None:
        if self.role is Role.ACTIVE:
            self._become(Role.DEMOTING, why)
            if not self.stopping:
                self._close(why)
        self.tenure = None
        self._become(Role.STOPPED, why)
        self.do(do.Exit(why))

    def _close(self, why: str) -> None:
        if self.tenure is not None:
            self.tenure.receiving = False
        self._named = self.lease.active_url
        self.do(do.CloseReceivers(why, self._named))
        self.do(do.StopPublishing())

    def note_standing(self) -> None:
        """What the row says of a node that does not hold it: in sync or not, and who is active."""
        row, active = self.lease.row, self.lease.active_url
        if active != self._named:
            self._named = active
            self.do(do.CloseReceivers("this node is not the active", active))
        if row is None or row.holder is None or self.lease.regressed:
            return
        listed = self.lease.member in row.in_sync and row.holder.node != self.identity.node
        role = Role.PASSIVE if listed else Role.JOINING
        if role is not self.role:
            self._become(role, "its journal is in sync" if listed else "its journal is not in sync")

    def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._close("the node is stopping")
        incarnation = self.querying.process.incarnation
        if incarnation is not None:
            self.do(do.StopQueryProcess(incarnation, "the node is stopping"))

    def leave(self) -> None:
        """Commits what was taken, then gives the lease up so that nobody need wait for a ttl.

        One try: where the database does not answer, the others wait instead.
        """
        lease, lessee = self.lease, self.lessee
        waits = lease.sent_at is not None or self.journal.durable < self.journal.last.sequence
        if not self.stopping or self.role is Role.STOPPED or waits:
            return
        holds = lease.row is not None and lease.mine and not lease.regressed
        if not holds or lessee.releasing or lease.is_doubtful(self.now, self.authority_ends):
            self.become_stopped("the node was asked to stop")
            return
        self.do(lessee.release(self.now, None, "stopped"))
