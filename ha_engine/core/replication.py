"""The holder's view of the other members: who is asked, who gets records, for whom a commit waits.

Made anew with each epoch. It changes nothing by itself: it says what to tell whom, up to where the
journal may count as committed, and whom the lease row should list as in sync.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from ha_engine.core import actions as do
from ha_engine.core import messages as say
from ha_engine.core.deadlines import ahead
from ha_engine.core.journal_state import JournalState
from ha_engine.core.progress import Peer, PeerTiming, Stage, common_prefix
from ha_engine.types import ORIGIN, Member, Position

REQUESTS_KEPT = 16
HOLD_SECONDS = 300.0
"""So long a member that begins from a snapshot or catches up may stand still and is waited for."""


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
        # Counted for a commit, and not yet written as in sync (RULES.md#r9: first wait, then
        # record).
        self.joining: frozenset[Member] = frozenset()
        # RULES.md#r13: infinite while nobody listens and nobody's silence counts.
        self._heartbeat_at = now
        # Near is who has what was the end of the journal a heartbeat ago.
        self._goal = self._next_goal = last
        # (time, last sequence): what has to be durable everywhere a sync_timeout later.
        self._appended: deque[tuple[float, int]] = deque()
        self._requests: dict[int, float] = {}
        self._request = 0

    # -- links and answers -------------------------------------------------------------------------

    def linked(self, now: float, name: str, last: int) -> Iterator[do.Action]:
        if self._heartbeat_at == math.inf:
            self._heartbeat_at = now + self.timing.heartbeat_interval
            self._goal = self._next_goal = last
        self.peers.setdefault(name, Peer(name, now, connected=True)).linked(now)
        yield do.Tell(name, say.Probe(self.epoch))

    def unlinked(self, name: str) -> None:
        if name in self.peers:
            self.peers[name].unlinked()

    def stands(
        self,
        now: float,
        name: str,
        standing: say.Standing,
        journal: JournalState,
        digests: Iterable[say.BatchDigest],
        begins: Position,
    ) -> Iterator[do.Action]:
        """Tells a member where to go on, and sends it records if it has nothing to cut
        (RULES.md#i8), with what the newest batches came to: it may still have to run some
        (RULES.md#i6). One with an empty journal begins from a snapshot that stands at ``begins`` or
        later, if that is not 0."""
        peer = self.peers.get(name)
        if peer is None or peer.stage is Stage.REPLICATE:
            return
        match = common_prefix(journal.epochs, journal.last, standing.epochs, standing.last)
        follow = say.Follow(
            self.epoch,
            standing.journal_id,
            match,
            standing.last,
            journal.forced_behind(match),
            begins if standing.last == ORIGIN else journal.base,
            journal.epochs,
        )
        yield do.Tell(name, follow)
        peer.stands(now, standing.journal_id, standing.last)
        if follow.by_snapshot:
            peer.begins(follow.begins.sequence)
        elif match == standing.last:
            peer.follows(now, standing.journal_id)
            yield do.StreamRecords(name, self.epoch, match)
            for digest in digests:
                yield do.Tell(name, digest)

    def acked(self, now: float, name: str, ack: say.Ack) -> None:
        if name in self.peers:
            self.peers[name].acked(now, ack)

    def promised(self, name: str, promise: say.Promise) -> None:
        peer, sent_at = self.peers.get(name), self._requests.get(promise.request)
        if peer is not None and sent_at is not None:
            peer.promised(promise.journal_id, sent_at)

    def hold(self, now: float, in_sync: Iterable[Member]) -> float:
        """RULES.md#r29: what a member that is on its way needs stays, for a while; infinite without
        one."""
        listed = {member.node for member in in_sync}
        needs = (p.needs(now, HOLD_SECONDS) for p in self.peers.values() if p.name not in listed)
        return min(needs, default=math.inf)

    # -- time --------------------------------------------------------------------------------------

    def tick(
        self, now: float, last: int, committed: int, kept: int, asks: bool
    ) -> Iterator[do.Action]:
        """Heartbeats; ``asks``: the database does not answer, so promises are asked for
        (RULES.md#r16)."""
        if now < self._heartbeat_at:
            self._probe_again(now)
            return
        if now >= self._heartbeat_at + self._gap_seconds:
            self.restart_timers(now)
        self._note(now, last)
        self._probe_again(now)
        self._heartbeat_at = (
            now + self.timing.heartbeat_interval if self._is_heard(now) else math.inf
        )
        self._goal, self._next_goal = self._next_goal, last
        if asks:
            self._ask(now)
        request = self._request if asks else 0
        yield from self._beat(say.Heartbeat(self.epoch, committed, request, kept))

    def _beat(self, heartbeat: say.Heartbeat) -> Iterator[do.Action]:
        for peer in self.peers.values():
            if peer.connected:
                yield do.Tell(peer.name, heartbeat)
            if peer.connected and peer.stage is Stage.PROBE:
                yield do.Tell(peer.name, say.Probe(self.epoch))

    def tell_all(self, message: say.Word) -> Iterator[do.Action]:
        for name, peer in sorted(self.peers.items()):
            if peer.connected:
                yield do.Tell(name, message)

    @property
    def _gap_seconds(self) -> float:
        """A heartbeat that is so late proves that this node stood still: one that sleeps because
        nothing is due has none to send. Half a sync_timeout lies between the two heartbeats then.
        """
        return self.timing.sync_timeout / 2 - self.timing.heartbeat_interval

    def _is_heard(self, now: float) -> bool:
        """Whether somebody is connected, or loses in-sync by a silence that lasts."""
        timeout = self.timing.sync_timeout
        return any(p.connected or now < p.heard_at + timeout for p in self.peers.values())

    def restart_timers(self, now: float) -> None:
        """RULES.md#r13: after a gap in our own heartbeats nobody else counts as having been
        silent."""
        self._appended.clear()
        for peer in self.peers.values():
            peer.heard_at = peer.advanced_at = now

    def _note(self, now: float, last: int) -> None:
        """Once a heartbeat, so that there are few; the newest that is overdue says all of them."""
        appended, timeout = self._appended, self.timing.sync_timeout
        if not appended or appended[-1][1] < last:
            appended.append((now, last))
        while len(appended) > 1 and now >= appended[1][0] + timeout:
            appended.popleft()

    def _overdue_at(self, match: int) -> float:
        """When who has no more than ``match`` lacks what had to be durable everywhere."""
        noted = (at for at, last in self._appended if match < last)
        return next(noted, math.inf) + self.timing.sync_timeout

    def _probe_again(self, now: float) -> None:
        """Records that got lost on the way are sent again from where it stands."""
        for peer in self.peers.values():
            if now >= self._stuck_at(peer):
                peer.stage = Stage.PROBE

    def _stuck_at(self, peer: Peer) -> float:
        if peer.stage is not Stage.REPLICATE:
            return math.inf
        return max(peer.advanced_at + self.timing.sync_timeout, self._overdue_at(peer.match))

    def wake_at(self, now: float) -> float:
        """When ``tick``, ``admit`` or what is asked here comes to something else by time alone."""
        if self.joining != self._near(now):
            return now
        peers = self.peers.values()
        return min(
            self._heartbeat_at,
            *(self._stuck_at(peer) for peer in peers),
            *(ahead(now, self._late_at(peer)) for peer in peers),
            *(peer.wake_at(now, HOLD_SECONDS) for peer in peers),
            math.inf,
        )

    def _ask(self, now: float) -> None:
        self._request += 1
        self._requests[self._request] = now
        self._requests.pop(self._request - REQUESTS_KEPT, None)

    # -- commit and in-sync ------------------------------------------------------------------------

    def commit_limit(self, durable: int, in_sync: frozenset[Member]) -> int:
        """RULES.md#i3: durable on each member that any outcome lists as in sync, and on who
        joins."""
        others = (in_sync | self.joining) - {self.me}
        return min([durable, *(self.match_of(member) for member in others)])

    def all_have(self, sequence: int, in_sync: frozenset[Member]) -> bool:
        return all(self.match_of(member) >= sequence for member in in_sync - {self.me})

    def match_of(self, member: Member) -> int:
        peer = self.peers.get(member.node)
        return 0 if peer is None else peer.match_of(member.journal_id)

    def admit(self, now: float) -> None:
        """Start to wait for who has nearly caught up; stop to wait for who fell behind again.

        A member without room would stop producers the moment it is in sync (RULES.md#r30): it is
        not begun to be waited for.
        """
        self.joining = self._near(now)

    def _near(self, now: float) -> frozenset[Member]:
        near = (
            peer.member
            for peer in self.peers.values()
            if peer.stage is Stage.REPLICATE and now < self._late_at(peer)
            if (peer.match >= self._goal and peer.room) or peer.member in self.joining
        )
        return frozenset(member for member in near if member is not None)

    def wanted(self, now: float, listed: tuple[Member, ...], committed: int) -> tuple[Member, ...]:
        """Whom the row should list: late members leave, and who has all that is committed joins."""
        kept = tuple(m for m in listed if m == self.me or not self._is_lost(m, now))
        new = (m for m in sorted(self.joining, key=lambda m: m.node) if m not in kept)
        return kept + tuple(m for m in new if self.match_of(m) >= committed)

    def promised_until(self, in_sync: frozenset[Member], ttl: float, margin: float) -> float:
        """RULES.md#r16: as far as every possible in-sync member has promised not to acquire."""
        others = in_sync - {self.me}
        if not others:
            return -math.inf
        return min(self._promised_at(member) for member in others) + ttl - margin

    def _promised_at(self, member: Member) -> float:
        peer = self.peers.get(member.node)
        return -math.inf if peer is None else peer.promised_at(member.journal_id)

    def full(self, in_sync: tuple[Member, ...]) -> str | None:
        """RULES.md#r30: an in-sync member whose disk takes no more events; it stays in sync."""
        others = (self.peers.get(member.node) for member in in_sync if member != self.me)
        return next((peer.name for peer in others if peer is not None and not peer.room), None)

    def slowest(
        self, now: float, in_sync: tuple[Member, ...], query: str, batch: int
    ) -> int | None:
        """The batch that an in-sync member has come to, if it catches up with ``batch``.

        Only of members where ``query`` gets on: the output waits for no other.
        """
        getting_on = self._getting_on(now, in_sync, query)
        come_to = (peer.catching_up_at(query, batch) for peer in getting_on)
        return min((at for at in come_to if at is not None), default=None)

    def note_behind(self, now: float, in_sync: tuple[Member, ...], batches: dict[str, int]) -> None:
        """The holder has ``batches``, query by query."""
        for query, batch in batches.items():
            for peer in self._getting_on(now, in_sync, query):
                peer.note_behind(query, batch)

    def starting(self, now: float, in_sync: tuple[Member, ...], query: str) -> bool:
        """Whether an in-sync member has yet to say where ``query`` is there; not for ever."""
        return any(query not in peer.batches for peer in self._getting_on(now, in_sync, query))

    def _getting_on(self, now: float, in_sync: tuple[Member, ...], query: str) -> Iterator[Peer]:
        for member in in_sync:
            peer = self.peers.get(member.node)
            if member != self.me and peer and peer.gets_on(now, query):
                yield peer

    def heir(self, in_sync: tuple[Member, ...], batches: dict[str, int]) -> str | None:
        """A warm in-sync member whose outbox has ``batches``, query by query (RULES.md#r22)."""
        for member in in_sync:
            if self.why_no_heir(member, in_sync) is None:
                has = self.peers[member.node].batches
                if all(has.get(query, 0) >= number for query, number in batches.items()):
                    return member.node
        return None

    def why_no_heir(self, member: Member, in_sync: tuple[Member, ...]) -> str | None:
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
        """When it is silent or behind for a sync_timeout."""
        return min(peer.heard_at + self.timing.sync_timeout, self._overdue_at(peer.match))
