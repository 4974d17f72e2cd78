"""The holder's view of the other members: how far each journal is, and which members a commit waits
for.

Each epoch has its own ``Replication``. ``Replication`` decides which messages to send, which
records count as committed, and which members the lease row should list.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ha_engine.core import actions as do
from ha_engine.core import messages as say
from ha_engine.core.deadlines import ahead
from ha_engine.core.journal_state import JournalState
from ha_engine.core.progress import Peer, PeerTiming, Stage, common_end
from ha_engine.types import ORIGIN, Member, Position

REQUESTS_KEPT = 16
RETAIN_SECONDS = 300.0
"""The journal keeps records for a joining member until that member has made no progress for this
many seconds."""


class Replication:
    """The members other than ``me`` during ``epoch``.

    ``fits`` says whether a peer may be in sync. ``backup`` names the group's backup, or is None.
    The other members are *regular*. ``inherited`` is the in-sync list at the end of the epoch
    before.
    """

    def __init__(
        self,
        me: Member,
        epoch: int,
        timing: PeerTiming,
        now: float,
        connected: Iterable[str],
        last: int,
        fits: Callable[[str], bool] = lambda peer: True,
        backup: str | None = None,
        inherited: tuple[Member, ...] = (),
    ) -> None:
        self.me, self.epoch, self.timing, self._fits = me, epoch, timing, fits
        self.backup = backup
        self.peers = {name: self._peer(name, now) for name in sorted(connected)}
        # RULES.md#r37: since when the lease row lists no other regular member. The moment is
        # infinite while the row lists one. It is long ago if the backup was the second disk in the
        # epoch before, so that it is again at once.
        self._missing_since = -math.inf if self._stood_in(inherited) else math.inf
        # Members that a commit waits for already, before the lease row lists them as in sync
        # (RULES.md#r9).
        self.near: frozenset[Member] = frozenset()
        # RULES.md#r13: when the next heartbeat is due. The moment is infinite while no member is
        # connected and each has been silent for a sync_timeout.
        self._heartbeat_at = now
        # A member becomes near when it has all records that the journal had at the heartbeat before
        # the last one. ``_next_goal`` is the end of the journal at the last heartbeat.
        self._goal = self._next_goal = last
        # Pairs of a time and the journal's last sequence at that time. Every member must have that
        # sequence durably one sync_timeout later.
        self._appended: deque[tuple[float, int]] = deque()
        self._requests: dict[int, float] = {}
        self._request = 0

    # -- links and answers -------------------------------------------------------------------------

    def linked(self, now: float, name: str, last: int) -> Iterator[do.Action]:
        if self._heartbeat_at == math.inf:
            self._heartbeat_at = now + self.timing.heartbeat_interval
            self._goal = self._next_goal = last
        self.peers.setdefault(name, self._peer(name, now)).linked(now)
        yield do.Send(name, say.Probe(self.epoch))

    def _peer(self, name: str, now: float) -> Peer:
        return Peer(name, now, is_backup=name == self.backup)

    def unlinked(self, name: str) -> None:
        if name in self.peers:
            self.peers[name].unlinked()

    def on_probe_reply(
        self,
        now: float,
        name: str,
        reply: say.ProbeReply,
        journal: JournalState,
        digests: Iterable[say.BatchDigest],
        begins: Position,
    ) -> Iterator[do.Action]:
        """Answer a member's ProbeReply with the position to follow from.

        If the member has nothing to truncate (RULES.md#i8), the holder then sends it records. The
        holder also sends the digests of its newest batches, since the member may still have to run
        some of them (RULES.md#i6). A member with an empty journal restores a snapshot that is at
        ``begins`` or later, unless ``begins`` is the start of the journal.

        A journal that has acked a record in this epoch shares it with the holder. If the shared
        part ends before that record, the journal's disk went back in time. The holder then no
        longer counts these acks (RULES.md#r8). A link delivers in order, and a newer link silences
        the older one, so no ProbeReply is older than an ack that was counted.
        """
        peer = self.peers.get(name)
        if peer is None or peer.stage is Stage.REPLICATE:
            return
        shared_end = common_end(journal.epochs, journal.last, reply.epochs, reply.last)
        acked = peer.acked_through_of(reply.journal_id)
        if shared_end.sequence < acked:
            peer.disk_went_back(reply.journal_id, shared_end.sequence)
            yield do.ReportDiskWentBack(name, acked, shared_end.sequence)
        follow = say.Follow(
            self.epoch,
            reply.journal_id,
            shared_end,
            reply.last,
            journal.forced_after(shared_end),
            begins if reply.last == ORIGIN else journal.base,
            journal.epochs,
        )
        yield do.Send(name, follow)
        peer.replied(now, reply.journal_id, reply.last)
        if follow.by_snapshot:
            peer.begins(now, follow.begins.sequence)
        elif shared_end == reply.last:
            peer.follows(now, reply.journal_id)
            yield do.StreamRecords(name, self.epoch, shared_end)
            for digest in digests:
                yield do.Send(name, digest)

    def acked(self, now: float, name: str, ack: say.Ack) -> None:
        if name in self.peers:
            self.peers[name].acked(now, ack)

    def promised(self, name: str, promise: say.Promise) -> None:
        peer, sent_at = self.peers.get(name), self._requests.get(promise.request)
        if peer is not None and sent_at is not None:
            peer.promised(promise.journal_id, sent_at)

    def retain_after(self, now: float, in_sync: Iterable[Member]) -> float:
        """The sequence after which joining members still need records (RULES.md#r29).

        A member that makes no progress for RETAIN_SECONDS no longer counts, and the backup counts
        for RETAIN_SECONDS only (RULES.md#r37). The result is infinite if no joining member counts.
        """
        listed = {member.node for member in in_sync}
        needs = (p.needs(now, RETAIN_SECONDS) for p in self.peers.values() if p.name not in listed)
        return min(needs, default=math.inf)

    # -- time --------------------------------------------------------------------------------------

    def tick(
        self, now: float, last: int, committed: int, oldest_revision: int, asks: bool
    ) -> Iterator[do.Action]:
        """Send heartbeats if they are due.

        ``asks`` says whether heartbeats also ask for promises, since the database does not answer
        (RULES.md#r16).
        """
        if now < self._heartbeat_at:
            self._probe_again(now)
            return
        if now >= self._heartbeat_at + self._gap_seconds:
            self.restart_timers(now)
        self._note(now, last)
        self._probe_again(now)
        self._heartbeat_at = (
            now + self.timing.heartbeat_interval if self._has_listener(now) else math.inf
        )
        self._goal, self._next_goal = self._next_goal, last
        if asks:
            self._ask(now)
        request = self._request if asks else 0
        yield from self._beat(say.Heartbeat(self.epoch, committed, request, oldest_revision))

    def _beat(self, heartbeat: say.Heartbeat) -> Iterator[do.Action]:
        for peer in self.peers.values():
            if peer.connected:
                yield do.Send(peer.name, heartbeat)
            if peer.connected and peer.stage is Stage.PROBE:
                yield do.Send(peer.name, say.Probe(self.epoch))

    def send_to_all(self, message: say.HolderMessage) -> Iterator[do.Action]:
        for name, peer in sorted(self.peers.items()):
            if peer.connected:
                yield do.Send(name, message)

    @property
    def _gap_seconds(self) -> float:
        """How many seconds late a heartbeat must be to prove that this node was paused.

        A node without listeners plans no heartbeat, so its sleep does not look like a pause. If a
        heartbeat is this late, half a sync_timeout lies between two heartbeats.
        """
        return self.timing.sync_timeout / 2 - self.timing.heartbeat_interval

    def _has_listener(self, now: float) -> bool:
        """Whether a member is connected, or has been silent for less than a sync_timeout."""
        timeout = self.timing.sync_timeout
        return any(p.connected or now < p.last_message_at + timeout for p in self.peers.values())

    def restart_timers(self, now: float) -> None:
        """Forget the silence of all members, after a gap in this node's own heartbeats
        (RULES.md#r13)."""
        self._appended.clear()
        for peer in self.peers.values():
            peer.last_message_at = peer.advanced_at = now

    def _note(self, now: float, last: int) -> None:
        """Note the end of the journal. The holder does so once a heartbeat, so that the notes are
        few.

        Of the overdue notes only the newest is kept, since it covers the older ones.
        """
        appended, timeout = self._appended, self.timing.sync_timeout
        if not appended or appended[-1][1] < last:
            appended.append((now, last))
        while len(appended) > 1 and now >= appended[1][0] + timeout:
            appended.popleft()

    def _overdue_at(self, acked: int) -> float:
        """The moment at which a member with records up to ``acked`` only has been behind for a
        sync_timeout."""
        noted = (at for at, last in self._appended if acked < last)
        return next(noted, math.inf) + self.timing.sync_timeout

    def _probe_again(self, now: float) -> None:
        """Probe each member that makes no progress, since records to it may be lost.

        After the ProbeReply, the holder sends records again from the end of that member's journal.
        """
        for peer in self.peers.values():
            if now >= self._stuck_at(peer):
                peer.stage = Stage.PROBE

    def _stuck_at(self, peer: Peer) -> float:
        if peer.stage is not Stage.REPLICATE:
            return math.inf
        return max(
            peer.advanced_at + self.timing.sync_timeout, self._overdue_at(peer.acked_through)
        )

    def wake_at(self, now: float) -> float:
        """The next moment at which time alone changes what ``tick``, ``choose_near`` or a property
        returns."""
        if self.near != self._near(now):
            return now
        peers = self.peers.values()
        return min(
            self._heartbeat_at,
            *(self._stuck_at(peer) for peer in peers),
            *(ahead(now, self._late_at(peer)) for peer in peers),
            *(peer.wake_at(now, RETAIN_SECONDS) for peer in peers),
            ahead(now, self._backup_joins_at) if self.backup in self.peers else math.inf,
        )

    def _ask(self, now: float) -> None:
        self._request += 1
        self._requests[self._request] = now
        self._requests.pop(self._request - REQUESTS_KEPT, None)

    # -- commit and in-sync ------------------------------------------------------------------------

    def commit_limit(self, durable: int, in_sync: frozenset[Member]) -> int:
        """The highest sequence that is durable on every member of ``in_sync`` and every near member
        (RULES.md#i3).

        A member that is far behind delays no commit.
        """
        others = (in_sync | self.near) - {self.me}
        return min([durable, *(self.acked_through(member) for member in others)])

    def all_had(self, sequence: int, in_sync: frozenset[Member]) -> bool:
        """Whether each member of ``in_sync`` has ever acked ``sequence`` in this epoch."""
        return all(self._ever_acked(member) >= sequence for member in in_sync - {self.me})

    def _ever_acked(self, member: Member) -> int:
        peer = self.peers.get(member.node)
        before = 0 if peer is None else peer.acked_before(member.journal_id)
        return max(before, self.acked_through(member))

    def acked_through(self, member: Member) -> int:
        peer = self.peers.get(member.node)
        return 0 if peer is None else peer.acked_through_of(member.journal_id)

    def choose_near(self, now: float) -> None:
        """Choose the near members: joining members that a commit waits for.

        A member becomes near when it has almost all records, and stops being near when it falls
        behind. A member with a nearly full disk does not become near, since it would block the
        producers as soon as it is in sync (RULES.md#r30). The backup is near only while the group
        needs it as a second disk (RULES.md#r37).
        """
        self.near = self._near(now)

    def note_listed(self, now: float, in_sync: tuple[Member, ...]) -> None:
        """Note whether the lease row lists another regular member (RULES.md#r37)."""
        if any(self._is_regular(member) for member in in_sync):
            self._missing_since = math.inf
        elif self._missing_since == math.inf:
            self._missing_since = now

    def _is_regular(self, member: Member) -> bool:
        """Whether ``member`` is another node than this one and the backup."""
        return member != self.me and member.node != self.backup

    def _stood_in(self, in_sync: tuple[Member, ...]) -> bool:
        """Whether the backup was the second disk of a group with this in-sync list."""
        has_backup = any(member.node == self.backup for member in in_sync)
        return has_backup and not any(self._is_regular(member) for member in in_sync)

    def without_backup(self, members: Iterable[Member]) -> tuple[Member, ...]:
        """This node and the regular ones of ``members``, in their order."""
        return tuple(one for one in members if one == self.me or self._is_regular(one))

    @property
    def _backup_joins_at(self) -> float:
        """The moment from which the group needs the backup as a second disk."""
        return self._missing_since + self.timing.backup_after

    def _near(self, now: float) -> frozenset[Member]:
        near = (
            peer.member
            for peer in self.peers.values()
            if peer.stage is Stage.REPLICATE and now < self._late_at(peer)
            if self._fits(peer.name)
            if not peer.is_backup or now >= self._backup_joins_at
            if (peer.acked_through >= self._goal and peer.headroom) or peer.member in self.near
        )
        return frozenset(member for member in near if member is not None)

    def wanted(self, now: float, listed: tuple[Member, ...], committed: int) -> tuple[Member, ...]:
        """The members that the lease row should list as in sync.

        A late member leaves the list, and so does a member that stops (RULES.md#r9) or has lost
        committed records (RULES.md#r8). A near member enters the list once it has every committed
        record. The backup leaves the list once the list has another regular member, so that the
        list has two members all the time (RULES.md#r37).
        """
        kept = tuple(m for m in listed if m == self.me or not self._is_lost(m, now))
        new = tuple(m for m in sorted(self.near, key=lambda m: m.node) if m not in kept)
        has_all = [m for m in kept + new if m == self.me or self.acked_through(m) >= committed]
        if any(self._is_regular(member) for member in has_all if member in listed):
            return self.without_backup(has_all)
        return tuple(has_all)

    def promised_until(self, in_sync: frozenset[Member], ttl: float, margin: float) -> float:
        """Until when every other member of ``in_sync`` has promised not to acquire
        (RULES.md#r16)."""
        others = in_sync - {self.me}
        if not others:
            return -math.inf
        return min(self._promised_at(member) for member in others) + ttl - margin

    def _promised_at(self, member: Member) -> float:
        peer = self.peers.get(member.node)
        return -math.inf if peer is None else peer.promised_at(member.journal_id)

    def full(self, in_sync: tuple[Member, ...]) -> str | None:
        """The name of an in-sync member whose disk is too full for events, or None.

        A full member stays in sync (RULES.md#r30).
        """
        others = (self.peers.get(member.node) for member in in_sync if member != self.me)
        return next((peer.name for peer in others if peer is not None and not peer.headroom), None)

    def slowest(
        self, now: float, in_sync: tuple[Member, ...], query: str, batch: int
    ) -> int | None:
        """The lowest batch of an in-sync member that is catching up with ``batch``, or None.

        Only members on which ``query`` makes progress count, since the output waits for no other
        member. The backup runs no query, so the output does not wait for it (RULES.md#r37).
        """
        with_progress = self._with_progress(now, in_sync, query)
        newest = (peer.catching_up_at(query, batch) for peer in with_progress)
        return min((at for at in newest if at is not None), default=None)

    def note_behind(self, now: float, in_sync: tuple[Member, ...], batches: dict[str, int]) -> None:
        """Note the members that are far behind ``batches``, the holder's newest batch of each
        query."""
        for query, batch in batches.items():
            for peer in self._with_progress(now, in_sync, query):
                peer.note_behind(query, batch)

    def starting(self, now: float, in_sync: tuple[Member, ...], query: str) -> bool:
        """Whether an in-sync member has not reported a batch of ``query`` yet.

        A member without progress for STUCK_AFTER_SECONDS does not count.
        """
        return any(query not in peer.batches for peer in self._with_progress(now, in_sync, query))

    def _with_progress(self, now: float, in_sync: tuple[Member, ...], query: str) -> Iterator[Peer]:
        for member in in_sync:
            peer = self.peers.get(member.node)
            if self._is_regular(member) and peer and peer.makes_progress(now, query):
                yield peer

    def successor(
        self, in_sync: tuple[Member, ...], batches: dict[str, int], to: str | None = None
    ) -> str | None:
        """A warm in-sync member whose outbox has all of ``batches``, or None (RULES.md#r22).

        ``to`` names the member, or is None for any regular member.
        """
        for member in self.candidates(in_sync, to):
            if self.why_no_successor(member, in_sync) is None:
                has = self.peers[member.node].batches
                if all(has.get(query, 0) >= number for query, number in batches.items()):
                    return member.node
        return None

    def candidates(self, in_sync: tuple[Member, ...], to: str | None) -> list[Member]:
        """The other members of ``in_sync`` that may take over: the one named ``to``, or every
        regular member if ``to`` is None (RULES.md#r37)."""
        if to is None:
            return [member for member in in_sync if self._is_regular(member)]
        return [member for member in in_sync if member != self.me and member.node == to]

    def is_reached(self, member: Member) -> bool:
        """Whether ``member`` is another node that is connected and does not stop."""
        peer = self.peers.get(member.node)
        return peer is not None and peer.connected and not peer.leaves

    def why_no_successor(self, member: Member, in_sync: tuple[Member, ...]) -> str | None:
        """The reason why ``member`` cannot take over without a pause of the output, or None if it
        can."""
        peer = self.peers.get(member.node)
        if member == self.me:
            return f"{member.node} is the active already"
        if peer is None or not peer.connected:
            return f"{member.node} is not connected"
        if member not in in_sync:
            return f"{member.node} is not in sync"
        if peer.leaves:
            return f"{member.node} is stopping"
        return None if peer.warm else f"the queries of {member.node} have not caught up"

    def _is_lost(self, member: Member, now: float) -> bool:
        peer = self.peers.get(member.node)
        if peer is None or not self._fits(peer.name):
            return True
        return peer.member != member or now >= self._late_at(peer)

    def _late_at(self, peer: Peer) -> float:
        """The moment at which ``peer`` has been silent or behind for a sync_timeout. It is in the
        past for a member that leaves."""
        if peer.leaves:
            return -math.inf
        return min(
            peer.last_message_at + self.timing.sync_timeout, self._overdue_at(peer.acked_through)
        )
