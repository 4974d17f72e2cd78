"""``Core.step``: one input in, the actions that follow from it out.

The order of the methods is the order of a node's life: restore, lease, promotion, records, marks,
queries, stop. A transition has one home, named for it; the invariants are checked after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.deployment import Deployment
from ha_engine.core.following import Digests, Following
from ha_engine.core.invariants import check
from ha_engine.core.leading import Leading
from ha_engine.core.lease import HighWater, Lease, LeaseTiming
from ha_engine.core.lessee import Foreign, Lessee, Lost, Waits
from ha_engine.core.process import QueryProcess
from ha_engine.core.progress import PeerTiming
from ha_engine.core.role import check_transition
from ha_engine.types import (
    ORIGIN,
    Body,
    EpochStart,
    Holder,
    Member,
    Position,
    Record,
    Role,
)

ALONE = PeerTiming(heartbeat_every=0.2, sync_timeout=2.0)
HANDOVER_SECONDS_MAX = 2.0
"""A switchover that is not ready to release the lease by then is given up."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is. ``new_group_id`` is used only if the group has no row yet (R6)."""

    node: str
    process: str
    journal_id: str
    group_id: str | None
    new_group_id: str
    advertise: str | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """The holder is on its way to release the lease to ``to`` (R3)."""

    to: str
    since: float
    why: str


class Core:
    """The decisions of one node. Not thread-safe; one driver feeds it."""

    def __init__(
        self,
        identity: Identity,
        timing: LeaseTiming,
        high_water: HighWater,
        deployment: Deployment,
        peers: PeerTiming = ALONE,
    ) -> None:
        self.identity, self.peer_timing = identity, peers
        holder = Holder(identity.node, identity.process)
        member = Member(identity.node, identity.journal_id)
        self.lease = Lease(holder, member, timing, high_water)
        self.lessee = Lessee(
            self.lease, identity.group_id, identity.new_group_id, identity.advertise
        )
        self.deployment = deployment
        self.process = QueryProcess(identity.process, deployment.restarts)
        self.role, self.why = Role.STARTING, "the process has just started"
        self.epoch = 0
        self.connected: set[str] = set()
        self.leading: Leading | None = None
        self.following = Following()
        self.digests = Digests()
        self.handover: Handover | None = None
        # Where each epoch in the journal begins; tells how much of it another one shares (I8).
        self.epochs: tuple[Position, ...] = ()
        # R30: the edge says when the disk is nearly full.
        self.room = True
        # I5, I8: committed <= durable <= last, and none of them ever falls within a process.
        self.last: Position = ORIGIN
        self.durable = 0
        self.committed = 0
        self.epoch_record = math.inf
        self.receiving = False
        self.stopping = False
        # I2: from the moment a release is sent, this node counts as no holder.
        self.releasing = False
        self._named: str | None = None
        self._ticked_at = -math.inf
        self._cutting = False
        self._now = -math.inf
        self._out: list[do.Action] = []

    # -- restore: what the disk says, before the first step ---------------------------------------

    def restore(self, record: Record) -> None:
        """Takes in one record of the journal that was there at start, in order."""
        self._take(record)
        self.lease.heard_of(record.position.epoch)
        self.durable = record.position.sequence
        self.committed = max(self.committed, record.committed)

    # -- the step ----------------------------------------------------------------------------------

    def step(self, now: float, event: on.Input) -> list[do.Action]:
        """Raises InvariantBroken when the node must not go on."""
        self._now, self._out = max(now, self._now), []
        high_water = self.lease.high_water
        if not self._is_about_a_gone_query(event):
            self._dispatch(event)
        self._keep_high_water(high_water)
        self._advance()
        check(self)
        return self._out

    def _is_about_a_gone_query(self, event: on.Input) -> bool:
        """A query process that outlived a change of the application still speaks of what it ran."""
        match event:
            case (
                on.MarkWanted(query)
                | on.BatchAdmitted(query)
                | on.QueryFailed(query)
                | on.QueryRefused(query)
                | on.SkipAsked(query)
                | on.RetryAsked(query)
            ):
                return query not in self.deployment.marks
            case _:
                return False

    def _dispatch(self, event: on.Input) -> None:
        match event:
            case on.EventsOffered():
                self._on_offered(event)
            case on.RecordsDurable():
                self._on_durable(event.sequence)
            case on.MarkWanted():
                self.deployment.marks[event.query].asked(self._now, event.after)
            case on.BatchAdmitted():
                self._on_admitted(event)
            case on.SinkPublished():
                self._on_published(event)
            case on.Tick():
                self._on_tick()
            case on.LeaseRead() | on.LeaseWritten() | on.LeaseDenied() | on.DatabaseUnreachable():
                self._on_lease(event)
            case on.HigherEpochSeen():
                self._hear_of(event.epoch, event.where)
            case on.StopAsked():
                self._stop()
            case on.SwitchoverAsked():
                self._on_switchover(event)
            case on.PeerConnected() | on.PeerLost() | on.PeerSaid():
                self._on_peer(event)
            case _:
                self._on_query_event(event)

    def _on_query_event(self, event: on.Input) -> None:
        match event:
            case on.QueryProcessAdopted():
                self.process.adopt(event.incarnation)
            case on.QueryProcessAttended():
                self._on_attended(event)
            case on.QueryProcessGone():
                self._on_process_gone(event)
            case on.QueryFailed():
                self._on_query_failed(event)
            case on.QueryRefused():
                self.deployment.lives[event.query].refused(event.reason)
            case on.SkipAsked():
                self._on_skip(event)
            case on.RetryAsked():
                self.deployment.retry(event.query)
            case on.BatchDigested():
                self._on_digested(event)
            case on.RoomChanged():
                self.room = event.room
            case on.LeaseChanged():
                if not self.acting:
                    self.lease.again_at_once(self._now)
            case _:
                raise TypeError(f"no step for {event!r}")

    def _advance(self) -> None:
        """What any step may have made possible."""
        self._commit()
        self.deployment.revive_skipped(self.committed)
        self._become_active_when_committed()
        self._change_in_sync()
        self._hand_over()
        self._suspend_or_resume()
        self._out += self.deployment.trims(self.committed)
        self._plan_marks()
        self._out += self.deployment.answers(self.committed)
        self._run_queries()
        self._leave()

    def may_act(self) -> bool:
        """I2: ack, publish and plan marks only while the lease carries it."""
        return self.authority_seconds(self._now) > 0

    def suspended(self) -> bool:
        """Past safe_until and not demoted: acts no more until a renewal succeeds (R15)."""
        return self.role is Role.ACTIVE and not self.may_act()

    def authority_seconds(self, now: float) -> float:
        """How long the publisher's next call may take; 0 when it must not start (R17)."""
        if self.role is not Role.ACTIVE or self.releasing or self.handover is not None:
            return 0.0
        return max(0.0, self.authority_ends() - now)

    def authority_ends(self) -> float:
        """Until when this holder may act; infinite when nobody else can acquire (R15, R16)."""
        if self.lease.alone:
            return math.inf
        timing, leading = self.lease.timing, self.leading
        if leading is None:
            return self.lease.safe_until
        in_sync = self.lease.possible
        promised = leading.promised_until(in_sync, timing.ttl, timing.margin)
        return max(self.lease.safe_until, promised)

    # -- lease -------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if self.role is Role.STARTING:
            self._become(Role.JOINING, "the journal is read")
        if self.lease.due(self._now) and self.role is not Role.STOPPED:
            self._ask_lease()
        if self.leading is not None:
            self._lead()

    def _ask_lease(self) -> None:
        ends = self.authority_ends()
        self._do(self.lessee.request(self._now, self._wanted_in_sync(), ends))

    def _on_lease(
        self, event: on.LeaseRead | on.LeaseWritten | on.LeaseDenied | on.DatabaseUnreachable
    ) -> None:
        match event:
            case on.LeaseRead():
                self.lease.saw(self._now, event.row, event.identity)
                self._after_read()
            case on.LeaseWritten(row, identity) if row.identity not in (None, identity):
                # R5: the database failed over around the write, which may be lost by now.
                self.lease.unknown()
            case on.LeaseWritten():
                self.lease.wrote(self._now, event.row, event.identity)
                self._after_write()
            case on.LeaseDenied():
                self.lease.denied()
                self.lease.again_at_once(self._now)
            case on.DatabaseUnreachable():
                self.lease.unknown()

    def _keep_high_water(self, before: HighWater) -> None:
        mark = self.lease.high_water
        if mark != before:
            self._do(do.KeepHighWater(mark.epoch, mark.version, mark.identity))

    def _after_read(self) -> None:
        self._obey(self._verdict())
        if self.role in (Role.JOINING, Role.PASSIVE):
            self._note_standing()

    def _verdict(self) -> do.Action | Foreign | Lost | Waits | None:
        if self.acting:
            # R3: whoever is named in a release that may have taken effect waits for no ttl.
            ends = -math.inf if self.releasing else self.authority_ends()
            return self.lessee.read_as_holder(self._now, self.epoch, ends, stopping=self.stopping)
        if self.stopping or self.role is Role.STOPPED or self._cutting:
            return None
        return self.lessee.read_as_other(self._now, new=self.last == ORIGIN)

    def _obey(self, verdict: do.Action | Foreign | Lost | Waits | None) -> None:
        match verdict:
            case None:
                pass
            case Foreign(why):
                self._become_stopped(why)
            case Lost(why):
                self._become_demoting(why)
            case Waits(why):
                self.why = why
            case action:
                self._do(action)

    def _after_write(self) -> None:
        row = self.lease.row
        assert row is not None
        if self.acting and not self.lease.mine and not self.stopping:
            self._after_release()
            return
        if self.lease.mine and not self.stopping:
            # A renewal that took effect: whatever release was sent before it is void (R3).
            self.releasing = False
        # R15: a renewal that was in flight when this epoch ended does not bring it back.
        new = self.lease.mine and not self.lease.regressed and row.epoch > self.epoch
        if not new or self.stopping or self._cutting:
            return
        if self.acting:
            self._become_demoting("the database had lost the lease row; it is written again")
        self._become_promoting(row.epoch, row.group_id)

    def _hear_of(self, epoch: int, where: str) -> None:
        """R14: kept on disk, so that no row below it is ever acquired from or renewed (R5)."""
        self.lease.heard_of(epoch)
        if epoch > self.epoch and self.acting:
            self._become_demoting(f"{where} carries epoch {epoch}")

    @property
    def acting(self) -> bool:
        """Whether this node holds an epoch."""
        return self.role in (Role.ACTIVE, Role.PROMOTING)

    # -- transitions -------------------------------------------------------------------------------

    def _become(self, role: Role, why: str) -> None:
        check_transition(self.role, role)
        self.role, self.why = role, why
        self._do(do.ChangeRole(role, self.epoch, why))

    def _become_promoting(self, epoch: int, group_id: str) -> None:
        """The lease is ours; the epoch record commits the whole journal first (R3)."""
        self.epoch, self.releasing, self.handover = epoch, False, None
        self.following.end()
        self._become(Role.PROMOTING, f"acquired epoch {epoch}")
        self._bind(group_id)
        me, timing = self.lease.member, self.peer_timing
        self.leading = Leading(me, epoch, timing, self._now, self.connected)
        self._append(EpochStart(self.identity.node, self.identity.process))
        self.epoch_record = self.last.sequence

    def _bind(self, group_id: str) -> None:
        if self.group_id is None:
            self.lessee.group_id = group_id
            self._do(do.BindGroup(group_id))

    @property
    def group_id(self) -> str | None:
        return self.lessee.group_id

    def _become_active_when_committed(self) -> None:
        if self.role is not Role.PROMOTING or self.committed < self.epoch_record or self.stopping:
            return
        self._become(Role.ACTIVE, f"the journal is committed through {self.last}")
        change = self.deployment.change(self.committed)
        if change is not None:
            self._append(change)
        self.receiving = True
        self._do(do.OpenReceivers())
        self._do(do.StartPublishing(self.epoch))

    def _suspend_or_resume(self) -> None:
        if self.role is not Role.ACTIVE or self.stopping or self.receiving == self.may_act():
            return
        if self.handover is not None:
            return
        if self.receiving:
            self._suspend()
        else:
            self._resume()

    def _suspend(self) -> None:
        """R15: past safe_until. Events that nobody may ack are refused, not kept waiting."""
        self.receiving = False
        self.why = "the lease was not renewed in time; it goes on with the next renewal"
        self._do(do.CloseReceivers(self.why, None))

    def _resume(self) -> None:
        """R15: the same process, under the same epoch, after a renewal."""
        self.receiving, self.why = True, "it holds the lease"
        self._do(do.OpenReceivers())

    def _become_demoting(self, why: str) -> None:
        self._become(Role.DEMOTING, why)
        self._close(why)
        self.leading, self.handover, self.releasing = None, None, False
        self._do(do.StopStreams())
        self._become(Role.JOINING, why)

    def _become_stopped(self, why: str) -> None:
        if self.role is Role.ACTIVE:
            self._become(Role.DEMOTING, why)
            if not self.stopping:
                self._close(why)
        self._become(Role.STOPPED, why)
        self._do(do.Exit(why))

    def _close(self, why: str) -> None:
        self.receiving, self._named = False, self.active_url()
        self._do(do.CloseReceivers(why, self._named))
        self._do(do.StopPublishing())

    def active_url(self) -> str | None:
        """The URL at which another node takes events, as the row says."""
        row = self.lease.row
        if row is None or row.holder is None or row.holder.node == self.identity.node:
            return None
        return row.advertise

    def _note_standing(self) -> None:
        """What the row says of a node that does not hold it: in sync or not, and who is active."""
        row, active = self.lease.row, self.active_url()
        if active != self._named:
            self._named = active
            self._do(do.CloseReceivers("this node is not the active", active))
        if row is None or row.holder is None or self.lease.regressed:
            return
        listed = self.lease.member in row.in_sync and row.holder.node != self.identity.node
        role = Role.PASSIVE if listed else Role.JOINING
        if role is not self.role:
            self._become(role, "its journal is in sync" if listed else "its journal is not in sync")

    def _stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._close("the node is stopping")
        if self.process.incarnation is not None:
            self._do(do.StopQueryProcess(self.process.incarnation, "the node is stopping"))

    def _leave(self) -> None:
        """Commits what was taken, then gives the lease up so that nobody need wait for a ttl.

        One try: where the database does not answer, the others wait instead.
        """
        waits = self.lease.sent_at is not None or self.durable < self.last.sequence
        if not self.stopping or self.role is Role.STOPPED or waits:
            return
        if self.lease.row is None or not self.lease.mine or self.lease.regressed or self.releasing:
            self._become_stopped("the node was asked to stop")
            return
        self.releasing = True
        self._do(self.lessee.release(self._now, None, "stopped"))

    # -- records -----------------------------------------------------------------------------------

    def _append(self, body: Body, payload: bytes = b"") -> None:
        position = Position(self.epoch, self.last.sequence + 1)
        record = Record(position, self.committed, body, payload)
        self._take(record)
        self._do(do.AppendRecords((record,)))

    def _take(self, record: Record) -> None:
        """The one place where a record changes what the core knows, at start and at run time."""
        if record.position.epoch > self.last.epoch:
            self.epochs += (record.position,)
        self.last = record.position
        self.deployment.take(record)

    def _on_offered(self, event: on.EventsOffered) -> None:
        if not self.receiving:
            raise ValueError("events were offered while receivers are closed")
        self._append(event.events, event.payload)

    def _commit(self) -> None:
        """I3: durable on every member that any outcome of a write has in sync.

        Records of earlier epochs are committed by this epoch's own first record (R3). A follower
        takes the holder's word for what is committed, as far as it has it (R12).
        """
        if not self.acting:
            if self.following.epoch:
                heard = min(self.following.committed, self.durable)
                self.committed = max(self.committed, heard)
            return
        assert self.leading is not None
        limit = self.leading.commit_limit(self.durable, self.lease.possible)
        signed = self.role is Role.PROMOTING and limit >= self.epoch_record
        may_ack = self.role is Role.ACTIVE and self._now < self.authority_ends()
        if limit > self.committed and (signed or may_ack) and not self.releasing:
            self.committed = limit
            self._do(do.Commit(limit))
            self._out += self.leading.heartbeats(limit)

    # -- other members: the holder's side ----------------------------------------------------------

    def _lead(self) -> None:
        leading = self.leading
        assert leading is not None
        if self._now - self._ticked_at > self.peer_timing.sync_timeout / 2:
            leading.restart_timers(self._now)
        self._ticked_at = self._now
        asks = self.lease.failing and not self.lease.alone
        self._out += leading.tick(self._now, self.last.sequence, self.committed, asks)
        leading.admit(self._now)

    def _wanted_in_sync(self) -> tuple[Member, ...] | None:
        """Whom the row should list; None while there is no row."""
        row = self.lease.row
        if row is None:
            return None
        if self.leading is None or self.role is not Role.ACTIVE or self.handover is not None:
            return row.in_sync
        wanted = self.leading.wanted(self._now, row.in_sync, self.committed)
        if self._now < self.lease.safe_until:
            return wanted
        # Who is alone may act past safe_until; from the moment a second member may be listed, not
        # (R15). So it renews first.
        return tuple(member for member in wanted if member in row.in_sync)

    def _change_in_sync(self) -> None:
        """R9: who is late leaves the row before a commit goes on without it; see Leading.wanted."""
        lease, row = self.lease, self.lease.row
        free = lease.idle and not lease.failing
        holds = self.role is Role.ACTIVE and lease.mine and not lease.regressed
        if not free or not holds or self.stopping or row is None:
            return
        if self._wanted_in_sync() != row.in_sync:
            self._ask_lease()

    def _hand_over(self) -> None:
        """R3: released with equal durable ends, or not at all."""
        handover, leading = self.handover, self.leading
        if handover is None or leading is None or self.releasing or self.stopping:
            return
        row, since = self.lease.row, self._now - handover.since
        heir = next((m for m in row.in_sync if m.node == handover.to), None) if row else None
        paused = row is not None and row.paused  # R7: nobody could acquire what is released
        if heir is None or paused or since > HANDOVER_SECONDS_MAX or not self.lease.mine:
            self._resume_after_handover(f"{handover.to} could not take over")
        elif leading.match_of(heir) == self.last.sequence == self.committed and self.lease.idle:
            self.releasing = True
            self._do(self.lessee.release(self._now, handover.to, handover.why))

    def _resume_after_handover(self, why: str) -> None:
        self.handover, self.why = None, why
        self._do(do.StartPublishing(self.epoch))

    def _after_release(self) -> None:
        assert self.handover is not None
        for name in sorted(self.connected):
            self._do(do.Tell(name, say.Released(self.epoch)))
        self._become_demoting(self.handover.why)

    def why_no_switchover(self, to: str | None) -> str | None:
        """Why ``to``, or any member, cannot take over now; None when one can."""
        row, leading = self.lease.row, self.leading
        if self.role is not Role.ACTIVE or row is None or leading is None:
            return "this node is not the active"
        if row.paused:
            return "failover is paused; run: ha-engine resume"
        if self.handover is not None:
            return f"a handover to {self.handover.to} is under way"
        members = [m for m in row.in_sync if m != self.lease.member and to in (None, m.node)]
        reasons = [leading.why_no_heir(member, row.in_sync) for member in members]
        if None in reasons:
            return None
        return next(iter(reasons), f"{to or 'no other node'} is not in sync")

    def _on_switchover(self, event: on.SwitchoverAsked) -> None:
        if self.why_no_switchover(event.to) is not None:
            return
        assert self.leading is not None
        assert self.lease.row is not None
        in_sync = tuple(m for m in self.lease.row.in_sync if event.to in (None, m.node))
        heir = self.leading.heir(in_sync, {})
        if heir is not None:
            self._begin_handover(heir, f"switchover by {event.by}")

    def _begin_handover(self, to: str, why: str) -> None:
        self.handover = Handover(to, self._now, why)
        self.receiving = False
        self._do(do.CloseReceivers(why, None))
        self._do(do.StopPublishing())

    def _give_way(self, why: str, in_flight: dict[str, int]) -> None:
        """R22: a member whose queries are past the batch in flight takes over at once."""
        row, leading = self.lease.row, self.leading
        if not self.may_act() or row is None or leading is None or row.paused:
            return
        heir = leading.heir(row.in_sync, in_flight)
        if heir is not None:
            self._begin_handover(heir, why)

    # -- other members: links and messages ---------------------------------------------------------

    def _on_peer(self, event: on.PeerConnected | on.PeerLost | on.PeerSaid) -> None:
        match event:
            case on.PeerConnected(peer):
                self.connected.add(peer)
                if self.leading is not None:
                    self._out += self.leading.linked(self._now, peer)
            case on.PeerLost(peer):
                self._on_lost(peer)
            case on.PeerSaid(peer, say.Standing() | say.Ack() | say.Promise() as message):
                self._on_answer(peer, message)
            case on.PeerSaid(peer, message):
                self._on_word(peer, message)

    def _on_lost(self, peer: str) -> None:
        self.connected.discard(peer)
        if self.leading is not None:
            self.leading.unlinked(peer)
        if self.following.lost(peer):
            self.following.end()
            self.lease.again_at_once(self._now)

    def _on_answer(self, peer: str, message: say.Standing | say.Ack | say.Promise) -> None:
        if message.epoch > self.lease.high_water.epoch:
            self._hear_of(message.epoch, peer)
        leading = self.leading
        if leading is None or message.epoch != self.epoch:
            return
        match message:
            case say.Standing():
                self._out += leading.stands(self._now, peer, message, self.epochs, self.last)
            case say.Ack():
                leading.acked(self._now, peer, message)
            case say.Promise():
                leading.promised(peer, message)

    def _on_word(self, peer: str, message: say.Message) -> None:
        """I14: of an older epoch, or to a node that holds its own, nothing is heard."""
        if message.epoch > self.lease.high_water.epoch:
            self._hear_of(message.epoch, peer)
        stale = message.epoch < self.lease.high_water.epoch
        if stale or self.acting or self.stopping or self._cutting or self.role is Role.STOPPED:
            return
        self.following.heard(self._now, peer)
        match message:
            case say.Probe():
                self._stand(peer, message.epoch)
            case say.Follow():
                self._on_follow(peer, message)
            case say.Records():
                self._on_records(message)
            case say.Heartbeat():
                self._on_heartbeat(peer, message)
            case say.Released():
                self.lease.again_at_once(self._now)
            case say.BatchDigest(_, query, number, digest):
                self._compare(self.digests.note_theirs(query, number, digest), query, number)

    # -- other members: the follower's side --------------------------------------------------------

    def _stand(self, peer: str, epoch: int) -> None:
        standing = say.Standing(
            epoch, self.identity.journal_id, self.last, self.committed, self.epochs
        )
        self._do(do.Tell(peer, standing))

    def _on_follow(self, peer: str, message: say.Follow) -> None:
        if message.journal_id != self.identity.journal_id:
            return
        if self.following.epoch != message.epoch:
            if message.match != self.last:
                self._cut(message.match, peer)
                return
            self.following.begin(message.epoch)
            if self.lease.row is not None:
                self._bind(self.lease.row.group_id)
            self.lease.again_at_once(self._now)
        self._ack(peer)

    def _cut(self, match: Position, leader: str) -> None:
        """I8, R8: never below what is committed, and only once the row was read without us."""
        row = self.lease.row
        out = row is not None and row.epoch == self.lease.high_water.epoch
        if not out or not self.lease.read_once or self.lease.member in (row.in_sync if row else ()):
            self.lease.again_at_once(self._now)
        elif match.sequence < self.committed:
            self._become_stopped(
                f"{leader} does not have what is committed here behind {match}: the two journals "
                "are of different histories; keep the right one, and reinit the other node"
            )
        elif match < self.last:
            self._cutting = True
            self._do(do.CutJournal(match, f"{leader} became active with a journal up to {match}"))

    def _on_records(self, message: say.Records) -> None:
        self.following.told_committed(message.epoch, message.committed)
        records = self.following.fresh(message, self.last)
        for record in records:
            self._take(record)
        if records:
            self._do(do.AppendRecords(records))

    def _on_heartbeat(self, peer: str, message: say.Heartbeat) -> None:
        self.following.told_committed(message.epoch, message.committed)
        if message.request and self.lease.promise(self._now, message.epoch):
            self._do(do.Tell(peer, say.Promise(message.epoch, message.request)))
        if self.following.epoch == message.epoch:
            self._ack(peer)

    def _on_durable(self, sequence: int) -> None:
        if sequence > self.durable:
            self.durable = sequence
            if self.following.epoch and self.following.leader is not None:
                self._ack(self.following.leader)

    @property
    def protected(self) -> bool:
        """Whether a second member is in sync, as far as the row that was read last tells."""
        row = self.lease.row
        return row is not None and len(row.in_sync) > 1 and row.holder is not None

    @property
    def warm(self) -> bool:
        """R10: the queries run, are as far as what is published, and no batch differed."""
        caught_up = self.deployment.caught_up(self.committed)
        return self.process.attended and not self.digests.differing and caught_up

    def _ack(self, peer: str) -> None:
        me, deployment = self.identity, self.deployment
        batches = deployment.progress() if self.process.attended else ()
        ack = say.Ack(
            self.following.epoch, me.journal_id, self.durable, self.room, self.warm, batches
        )
        self._do(do.Tell(peer, ack))

    # -- digests -----------------------------------------------------------------------------------

    def _on_digested(self, event: on.BatchDigested) -> None:
        query, number, digest = event.query, event.number, event.digest
        if self.leading is not None:
            for peer in sorted(self.connected):
                self._do(do.Tell(peer, say.BatchDigest(self.epoch, query, number, digest)))
        self._compare(self.digests.note_mine(query, number, digest), query, number)

    def _compare(self, equal: bool, query: str, number: int) -> None:
        """I6, R10: the journal's protection is not touched by a difference, *warm* is."""
        if not equal and self.leading is None:
            self._do(do.ReportDifference(query, number))

    # -- queries -----------------------------------------------------------------------------------

    def _plan_marks(self) -> None:
        if self.may_act() and not self.stopping:
            behind = self._some_member_is_behind
            for mark in list(self.deployment.next_marks(self._now, self.committed, behind)):
                self._append(mark)

    def _some_member_is_behind(self, query: str, batch: int) -> bool:
        row = self.lease.row
        if self.leading is None or row is None:
            return False
        return self.leading.is_behind(row.in_sync, query, batch)

    def _run_queries(self) -> None:
        if self.stopping or self.role in (Role.STARTING, Role.STOPPED):
            return
        incarnation = self.process.start(self._now)
        if incarnation is not None:
            self._do(do.StartQueryProcess(incarnation))
        if self.process.attended:
            self._out += self.deployment.runs(self._now, self.identity.journal_id)

    def _on_admitted(self, event: on.BatchAdmitted) -> None:
        self.deployment.admitted(event)
        self.process.proved_itself()

    def _on_published(self, event: on.SinkPublished) -> None:
        holds = self.role is Role.ACTIVE and not self.releasing and self.handover is None
        record = self.deployment.published(event) if holds else None
        if record is not None:
            self._append(record)

    def _on_attended(self, event: on.QueryProcessAttended) -> None:
        if self.process.attend(event.incarnation):
            self.deployment.attended()

    def _on_process_gone(self, event: on.QueryProcessGone) -> None:
        if self.process.gone(self._now, event.incarnation, event.reason):
            in_flight = self.deployment.in_flight()
            self.deployment.process_died(self._now, event.reason)
            self._give_way(f"the query process died: {event.reason}", in_flight)

    def _on_query_failed(self, event: on.QueryFailed) -> None:
        in_flight = self.deployment.in_flight()
        self.deployment.failed(self._now, event)
        self._give_way(f"query {event.query} failed: {event.reason}", in_flight)

    def _on_skip(self, event: on.SkipAsked) -> None:
        record = self.deployment.skip(event) if self.may_act() else None
        if record is not None:
            self._append(record)

    def _do(self, action: do.Action) -> None:
        self._out.append(action)
