"""Decide when the holder has a snapshot taken, at which position, and by which node.

A snapshot has the position of a *barrier*: a committed sequence at which every query ends a batch.
A query does not stop at the barrier, and does not wait for another query. The snapshot has the
state of each query at exactly the barrier, so no query needs an earlier record (RULES.md#r28).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ha_engine.core import actions as do
from ha_engine.core import barrier as barriers
from ha_engine.core import messages as say
from ha_engine.core.journal_state import JournalState
from ha_engine.core.query_control import QueryControl
from ha_engine.core.replication import Replication
from ha_engine.types import Member, SnapshotPlace

ALIGN_SECONDS_MAX = 60.0
"""A query that does not end a batch at the barrier within this many seconds is too far behind. The
holder then tries again later, with another barrier."""
TAKE_SECONDS_MAX = 900.0
"""The holder gives up a snapshot that a node has not finished within this many seconds."""


@dataclass(frozen=True, slots=True)
class _Requested:
    """A snapshot that the holder requested of the member ``by``, or takes itself if ``by`` is None.

    ``taken`` is the member's answer.
    """

    place: SnapshotPlace
    by: str | None
    since: float
    taken: say.SnapshotTaken | None = None


class Snapshots:
    """The snapshots of one epoch.

    ``interval`` is the time between snapshots in seconds; 0 means only on request.
    """

    def __init__(
        self,
        journal: JournalState,
        query_control: QueryControl,
        replication: Replication,
        interval: float,
        now: float,
    ) -> None:
        self._journal, self._query_control, self._replication = journal, query_control, replication
        self._deployment, self._interval = query_control.deployment, interval
        self._due_at = now + interval if interval else math.inf
        self._requests = 0
        # The sequence at which every query must end a batch, and the time at which the holder chose
        # it.
        self.barrier: int | None = None
        self._since = now
        self._requested: _Requested | None = None
        # This node's digests of the batches at the barrier, since ``Digests`` soon forgets them.
        self._digests: dict[tuple[str, int], str] = {}
        # Whether a draft is complete, but this node does not know yet whether the draft became
        # visible.
        self._showing = False
        # The sequence up to which the newest snapshot of this epoch includes the input.
        self._newest_input = 0
        self.why_not: str | None = None

    @property
    def state(self) -> str:
        """The progress of the current snapshot in one word, for people."""
        if self._requested is not None or self._showing:
            return "taking"
        return "waiting" if self.barrier is None else "aligning"

    def idle(self, now: float) -> bool:
        """Whether no snapshot is under way or due."""
        return self.state == "waiting" and now < self._due_at

    def take_now(self, now: float) -> None:
        """Begin a snapshot now, since an operator asked or a member needs a newer revision."""
        self._due_at, self._newest_input, self.why_not = now, 0, None

    def set_interval(self, now: float, interval: float) -> None:
        """Change the interval between snapshots. The holder still takes a snapshot that is due.

        A later snapshot keeps its time, unless the new interval ends earlier or is 0.
        """
        changed, self._interval = interval != self._interval, interval
        if changed and self._due_at > now:
            self._due_at = min(self._due_at, now + interval) if interval else math.inf

    def begin_if_input(self, now: float) -> bool:
        """Make the next snapshot due now. Return False if there is no new input or no interval."""
        wanted = self._interval > 0 and self._deployment.newest_input > self._newest_input
        if wanted:
            self._due_at = now
        return wanted

    def ensure_one(self, now: float) -> None:
        """Begin a snapshot if none is under way, since no revision is usable."""
        if self.state == "waiting":
            self.take_now(now)

    def tick(
        self, now: float, in_sync: tuple[Member, ...], oldest_revision: int
    ) -> Iterator[do.Action]:
        """Advance the snapshot under way, or begin one that is due.

        ``oldest_revision`` is the sequence of the oldest kept revision.
        """
        if self._requested is not None:
            yield from self._await(now, self._requested)
        elif self._showing:
            return
        elif self.barrier is not None:
            yield from self._align(now, self.barrier, in_sync)
        elif now >= self.wake_at(now):
            self._begin(now, oldest_revision)

    def wake_at(self, now: float) -> float:
        """The moment at which ``tick`` has work next, if no input arrives before."""
        if self._requested is not None:
            return (
                now if self._is_over(self._requested) else self._requested.since + TAKE_SECONDS_MAX
            )
        if self._showing:
            return math.inf
        if self.barrier is not None:
            aligned = barriers.batches_at(self._deployment, self.barrier) is not None
            return now if aligned else self._since + ALIGN_SECONDS_MAX
        # Begin no snapshot while a change of the application is uncommitted. The snapshot of an
        # earlier barrier would name the definitions after the change.
        changing = self._deployment.changed_at > self._journal.committed
        return math.inf if changing else self._due_at

    def _is_over(self, asked: _Requested) -> bool:
        """Whether ``_await`` has work now."""
        known = ((batch, self._query_control.digests.mine(*batch)) for batch in asked.place.batches)
        new = any(digest not in (None, self._digests.get(batch)) for batch, digest in known)
        shown = asked.taken is not None and self._is_ours(asked.taken)
        gone = asked.by is not None and not self._replication.peers[asked.by].connected
        return new or shown or gone

    def _begin(self, now: float, oldest_revision: int) -> None:
        self._due_at = now + self._interval if self._interval else math.inf
        self.why_not = barriers.why_none(self._deployment)
        # The journal keeps all records after the oldest revision, since a member may restore that
        # revision. The holder takes snapshots until the oldest revision includes the newest input
        # too.
        stored = min(self._newest_input, oldest_revision)
        if self.why_not is None and self._deployment.newest_input > stored:
            self.barrier, self._since = self._journal.committed, now

    def _align(self, now: float, barrier: int, in_sync: tuple[Member, ...]) -> Iterator[do.Action]:
        batches = barriers.batches_at(self._deployment, barrier)
        if batches is not None:
            self._requests += 1
            position, last_mark = map(
                self._journal.position_at, (barrier, barriers.last_mark(self._deployment, batches))
            )
            place = SnapshotPlace(self._requests, position, batches, last_mark)
            # A warm in-sync member takes the snapshot, which saves the holder the work. The holder
            # takes the snapshot itself if there is no such member, or if only the holder has the
            # state of some query.
            only_here = self._deployment.has_warm
            by = None if only_here else self._replication.successor(in_sync, {})
            self.barrier, self._requested, self._digests = None, _Requested(place, by, now), {}
            if by is None:
                self._query_control.request_snapshot(self._replication.epoch, place)
            else:
                yield do.Send(by, say.TakeSnapshot(self._replication.epoch, place))
        elif now >= self._since + ALIGN_SECONDS_MAX:
            self.barrier, self.why_not = None, "a query is too far behind"

    def _await(self, now: float, asked: _Requested) -> Iterator[do.Action]:
        self._note_digests(asked.place)
        if asked.taken is not None and self._is_ours(asked.taken):
            self._requested, self._newest_input = None, asked.place.position.sequence
            self._showing = True
            yield do.ShowSnapshot(asked.taken.draft, self._replication.epoch)
        elif now >= asked.since + TAKE_SECONDS_MAX:
            self._end("the snapshot took too long")
        elif asked.by is not None and not self._replication.peers[asked.by].connected:
            self._end(f"{asked.by} is no longer connected")

    def _is_ours(self, taken: say.SnapshotTaken) -> bool:
        """Whether the digests of the snapshot's batches equal this node's digests (RULES.md#r28).

        The result is also False while this node does not know one of its digests yet.
        """
        digests = self._digests
        return all(digests.get((query, n)) == digest for query, n, digest in taken.batches)

    def _note_digests(self, place: SnapshotPlace) -> None:
        for batch in place.batches:
            digest = self._query_control.digests.mine(*batch)
            if digest is not None:
                self._digests[batch] = digest

    def taken(self, by: str | None, message: say.SnapshotTaken) -> None:
        asked, batches = self._answered(by, message), tuple(one[:2] for one in message.batches)
        # An answer to another holder's request names other batches.
        if asked is not None and batches == asked.place.batches:
            self._requested = replace(asked, taken=message)

    def failed(self, by: str | None, message: say.SnapshotFailed) -> None:
        if self._answered(by, message) is not None:
            self._end(message.reason)

    def _answered(self, by: str | None, message: say.SnapshotAnswer) -> _Requested | None:
        asked, who = self._requested, (message.epoch, by, message.request)
        if asked is None or who != (self._replication.epoch, asked.by, asked.place.request):
            return None
        return asked

    def linked(self, name: str) -> None:
        """Give up the snapshot that was requested of ``name``, since the old link may have lost the
        request or the answer."""
        if self._requested is not None and self._requested.by == name:
            self._end(f"{name} was no longer connected")

    def lost_digests(self, reason: str) -> None:
        """Give up a snapshot that waits for a digest of this node, since that digest may never
        arrive (RULES.md#r28)."""
        if self._requested is not None and len(self._digests) < len(self._requested.place.batches):
            self._end(reason)

    def shown(self) -> None:
        """Note that the database has listed the visible revisions."""
        self._showing = False

    def not_shown(self, reason: str) -> None:
        if self._showing:
            self._showing, self._newest_input = False, 0
            self.why_not = reason

    def _end(self, reason: str) -> None:
        self._requested, self.why_not = None, reason
