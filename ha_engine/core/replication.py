"""The holder's view of the other members: how far each is, and which a commit waits for.

Each epoch creates a new ``Replication``. It answers three questions: which messages to send, up to
where the journal may count as committed, and which members the lease row should list as in sync.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from ha_engine.core import actions as do
from ha_engine.core import messages as say
from ha_engine.core.deadlines import ahead
from ha_engine.core.journal_state import JournalState
from ha_engine.core.progress import Peer, PeerTiming, Stage, common_end
from ha_engine.types import ORIGIN, Member, Position

REQUESTS_KEPT = 16
RETAIN_SECONDS = 300.0
"""The journal keeps records for a joining member until it has made no progress for so long."""


class Replication:
    """The members other than ``me`` under ``epoch``."""

    def __init__(
        self,
        me: Member,
        epoch: int,
        timing: PeerTiming,
        now: float,
        connected: Iterable[str],
        last: int,
    ) -> None:
        self.me, self.epoch, self.timing = me, epoch, timing
        self.peers = {name: Peer(name, now, connected=True) for name in sorted(connected)}
        # Members that a commit waits for before the row lists them as in sync (RULES.md#r9).
        self.near: frozenset[Member] = frozenset()
        # RULES.md#r13: infinite while no member is connected and each has been silent for a
        # sync_timeout.
        self._heartbeat_at = now
        # A member is near if it has what was the end of the journal a heartbeat ago.
        self._goal = self._next_goal = last
        # (time, last sequence): what every member must have durably a sync_timeout later.
        self._appended: deque[tuple[float, int]] = deque()
        self._requests: dict[int, float] = {}
        self._request = 0

    # -- links and answers -------------------------------------------------------------------------

    def linked(self, now: float, name: str, last: int) -> Iterator[do.Action]:
        if self._heartbeat_at == math.inf:
            self._heartbeat_at = now + self.timing.heartbeat_interval
            self._goal = self._next_goal = last
        self.peers.setdefault(name, Peer(name, now, connected=True)).linked(now)
        yield do.Send(name, say.Probe(self.epoch))

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

        If the member has nothing to truncate (RULES.md#i8), send it records, and the digests of the
        newest batches, since it may still have to run some of these (RULES.md#i6). A member with an
        empty journal restores a snapshot that is at ``begins`` or later, unless ``begins`` is 0.
        """
        peer = self.peers.get(name)
        if peer is None or peer.stage is Stage.REPLICATE:
            return
        shared_end = common_end(journal.epochs, journal.last, reply.epochs, reply.last)
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
            peer.begins(follow.begins.sequence)
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

        A member without progress counts for RETAIN_SECONDS. Infinite if there is none.
        """
        listed = {member.node for member in in_sync}
        needs = (p.needs(now, RETAIN_SECONDS) for p in self.peers.values() if p.name not in listed)
        return min(needs, default=math.inf)

    # -- time --------------------------------------------------------------------------------------

    def tick(
        self, now: float, last: int, committed: int, oldest_revision: int, asks: bool
    ) -> Iterator[do.Action]:
        """Send heartbeats. ``asks``: also ask for promises, since the database does not answer
        (RULES.md#r16)."""
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

    def send_to_all(self, message: say.Word) -> Iterator[do.Action]:
        for name, peer in sorted(self.peers.items()):
            if peer.connected:
                yield do.Send(name, message)

    @property
    def _gap_seconds(self) -> float:
        """How late a heartbeat must be to prove that this node was paused.

        A node that sleeps because nothing is due has no heartbeat to send. At that lateness half a
        sync_timeout lies between two heartbeats.
        """
        return self.timing.sync_timeout / 2 - self.timing.heartbeat_interval

    def _has_listener(self, now: float) -> bool:
        """Whether a member is connected, or its silence has not lasted a sync_timeout yet."""
        timeout = self.timing.sync_timeout
        return any(p.connected or now < p.last_message_at + timeout for p in self.peers.values())

    def restart_timers(self, now: float) -> None:
        """Forget the silence of all members, after a gap in our own heartbeats (RULES.md#r13)."""
        self._appended.clear()
        for peer in self.peers.values():
            peer.last_message_at = peer.advanced_at = now

    def _note(self, now: float, last: int) -> None:
        """Note the end of the journal, once a heartbeat so that the notes are few.

        Only the newest note that is overdue stays: it covers the older ones.
        """
        appended, timeout = self._appended, self.timing.sync_timeout
        if not appended or appended[-1][1] < last:
            appended.append((now, last))
        while len(appended) > 1 and now >= appended[1][0] + timeout:
            appended.popleft()

    def _overdue_at(self, acked: int) -> float:
        """When a member that has no more than ``acked`` is behind for a sync_timeout."""
        noted = (at for at, last in self._appended if acked < last)
        return next(noted, math.inf) + self.timing.sync_timeout

    def _probe_again(self, now: float) -> None:
        """Probe a member again that makes no progress, since records may be lost on the way.

        The holder then sends again from where that member's journal ends.
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
        """When ``tick``, ``choose_near`` or a question here has a new result by time alone."""
        if self.near != self._near(now):
            return now
        peers = self.peers.values()
        return min(
            self._heartbeat_at,
            *(self._stuck_at(peer) for peer in peers),
            *(ahead(now, self._late_at(peer)) for peer in peers),
            *(peer.wake_at(now, RETAIN_SECONDS) for peer in peers),
            math.inf,
        )

    def _ask(self, now: float) -> None:
        self._request += 1
        self._requests[self._request] = now
        self._requests.pop(self._request - REQUESTS_KEPT, None)

    # -- commit and in-sync ------------------------------------------------------------------------

    def commit_limit(self, durable: int, in_sync: frozenset[Member]) -> int:
        """The sequence that is durable on every member of ``in_sync`` and every near member
        (RULES.md#i3). A member that is far behind delays no commit."""
        others = (in_sync | self.near) - {self.me}
        return min([durable, *(self.acked_through(member) for member in others)])

    def all_have(self, sequence: int, in_sync: frozenset[Member]) -> bool:
        return all(self.acked_through(member) >= sequence for member in in_sync - {self.me})

    def acked_through(self, member: Member) -> int:
        peer = self.peers.get(member.node)
        return 0 if peer is None else peer.acked_through_of(member.journal_id)

    def choose_near(self, now: float) -> None:
        """Choose the joining members that a commit waits for.

        A member joins when it has nearly caught up, and leaves when it falls behind again. A member
        without room does not join: in sync, it would stop the producers at once (RULES.md#r30).
        """
        self.near = self._near(now)

    def _near(self, now: float) -> frozenset[Member]:
        near = (
            peer.member
            for peer in self.peers.values()
            if peer.stage is Stage.REPLICATE and now < self._late_at(peer)
            if (peer.acked_through >= self._goal and peer.headroom) or peer.member in self.near
        )
        return frozenset(member for member in near if member is not None)

    def wanted(self, now: float, listed: tuple[Member, ...], committed: int) -> tuple[Member, ...]:
        """The members that the row should list.

        Late members leave, and a joining member enters once it has all that is committed.
        """
        kept = tuple(m for m in listed if m == self.me or not self._is_lost(m, now))
        new = (m for m in sorted(self.near, key=lambda m: m.node) if m not in kept)
        return kept + tuple(m for m in new if self.acked_through(m) >= committed)

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
        """An in-sync member whose disk takes no more events; it stays in sync (RULES.md#r30)."""
        others = (self.peers.get(member.node) for member in in_sync if member != self.me)
        return next((peer.name for peer in others if peer is not None and not peer.headroom), None)

    def slowest(
        self, now: float, in_sync: tuple[Member, ...], query: str, batch: int
    ) -> int | None:
        """The lowest batch of an in-sync member that is catching up with ``batch``; None without.

        Only members count where ``query`` makes progress: the output waits for no other.
        """
        getting_on = self._with_progress(now, in_sync, query)
        newest = (peer.catching_up_at(query, batch) for peer in getting_on)
        return min((at for at in newest if at is not None), default=None)

    def note_behind(self, now: float, in_sync: tuple[Member, ...], batches: dict[str, int]) -> None:
        """Note the members that are far behind ``batches``, the holder's batch of each query."""
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
            if member != self.me and peer and peer.makes_progress(now, query):
                yield peer

    def successor(self, in_sync: tuple[Member, ...], batches: dict[str, int]) -> str | None:
        """A warm in-sync member whose outbox has ``batches``, query by query (RULES.md#r22)."""
        for member in in_sync:
            if self.why_no_successor(member, in_sync) is None:
                has = self.peers[member.node].batches
                if all(has.get(query, 0) >= number for query, number in batches.items()):
                    return member.node
        return None

    def why_no_successor(self, member: Member, in_sync: tuple[Member, ...]) -> str | None:
        """Why ``member`` cannot take over without a gap; None when it can."""
        peer = self.peers.get(member.node)
        if member == self.me:
            return "it is the active already"
        if peer is None or not peer.connected:
            return f"{member.node} is not connected"
        if member not in in_sync:
            return f"{member.node} is not in sync"
        return None if peer.warm else f"the queries of {member.node} have not caught up"

    def _is_lost(self, member: Member, now: float) -> bool:
        peer = self.peers.get(member.node)
        return peer is None or peer.member != member or now >= self._late_at(peer)

    def _late_at(self, peer: Peer) -> float:
        """When ``peer`` has been silent or behind for a sync_timeout."""
        return min(
            peer.last_message_at + self.timing.sync_timeout, self._overdue_at(peer.acked_through)
        )
