"""When the holder has a snapshot taken, where it stands, and by whom.

A snapshot stands at a *barrier*: a committed sequence at which every query ends a batch. A query is
not held up by it, and none waits for another; each cuts there once, on its way. So the state of
each is as of exactly there, and no query needs an earlier record (RULES.md#r28).
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
from ha_engine.types import Cut, Member

ALIGN_SECONDS_MAX = 60.0
"""A query that has not come to the barrier by then is too far behind; it is tried again later."""
TAKE_SECONDS_MAX = 900.0
"""Who was asked to take a snapshot and has not answered by then never will."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """``by`` is a member, None: this node itself. ``taken`` is what it answered."""

    cut: Cut
    by: str | None
    since: float
    taken: say.SnapshotTaken | None = None


class Snapshots:
    """Of one epoch. ``interval`` is in seconds; 0: only those that are asked for."""

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
        # The sequence at which every query is to end a batch, and since when.
        self.barrier: int | None = None
        self._since = now
        self._asked: _Asked | None = None
        # What the batches it stands on came to here; they are soon forgotten otherwise.
        self._came_to: dict[tuple[str, int], str] = {}
        # A draft is complete, and whether it became visible is not known yet.
        self._showing = False
        # The newest input that a snapshot of this epoch has.
        self._newest_input = 0
        self.why_not: str | None = None

    @property
    def state(self) -> str:
        """In one word, for people."""
        if self._asked is not None or self._showing:
            return "taking"
        return "waiting" if self.barrier is None else "aligning"

    def idle(self, now: float) -> bool:
        """Whether none is under way, or due."""
        return self.state == "waiting" and now < self._due_at

    def ask(self, now: float) -> None:
        """An operator wants one, or a member needs a newer one than there is."""
        self._due_at, self._newest_input, self.why_not = now, 0, None

    def every(self, now: float, interval: float) -> None:
        """Another interval; what is due keeps its time, unless the new one is over before."""
        changed, self._interval = interval != self._interval, interval
        if changed and self._due_at > now:
            self._due_at = min(self._due_at, now + interval) if interval else math.inf

    def hurry(self, now: float) -> bool:
        """The next one is due now; False where there is nothing new, or no interval."""
        wanted = self._interval > 0 and self._deployment.newest_input > self._newest_input
        if wanted:
            self._due_at = now
        return wanted

    def need(self, now: float) -> None:
        """There is none that is of use; one that is under way will be."""
        if self.state == "waiting":
            self.ask(now)

    def tick(self, now: float, in_sync: tuple[Member, ...], kept: int) -> Iterator[do.Action]:
        """``kept`` is where the oldest revision stands."""
        if self._asked is not None:
            yield from self._await(now, self._asked)
        elif self._showing:
            return
        elif self.barrier is not None:
            yield from self._align(now, self.barrier, in_sync)
        elif now >= self.wake_at(now):
            self._begin(now, kept)

    def wake_at(self, now: float) -> float:
        """When ``tick`` has something to do, if nothing but time goes on."""
        if self._asked is not None:
            return now if self._is_over(self._asked) else self._asked.since + TAKE_SECONDS_MAX
        if self._showing:
            return math.inf
        if self.barrier is not None:
            aligned = barriers.batches_at(self._deployment, self.barrier) is not None
            return now if aligned else self._since + ALIGN_SECONDS_MAX
        # What stands below a change would be told of as if it stood above.
        changing = self._deployment.changed_at > self._journal.committed
        return math.inf if changing else self._due_at

    def _is_over(self, asked: _Asked) -> bool:
        """Whether ``_await`` has learned anything."""
        known = ((batch, self._query_control.digests.mine(*batch)) for batch in asked.cut.batches)
        new = any(digest not in (None, self._came_to.get(batch)) for batch, digest in known)
        shown = asked.taken is not None and self._is_ours(asked.taken)
        gone = asked.by is not None and not self._replication.peers[asked.by].connected
        return new or shown or gone

    def _begin(self, now: float, kept: int) -> None:
        self._due_at = now + self._interval if self._interval else math.inf
        self.why_not = barriers.why_none(self._deployment)
        # What only the newest revision has, the journal keeps for who begins from an older one.
        stored = min(self._newest_input, kept)
        if self.why_not is None and self._deployment.newest_input > stored:
            self.barrier, self._since = self._journal.committed, now

    def _align(self, now: float, barrier: int, in_sync: tuple[Member, ...]) -> Iterator[do.Action]:
        batches = barriers.batches_at(self._deployment, barrier)
        if batches is not None:
            self._requests += 1
            place, written = map(
                self._journal.position_at, (barrier, barriers.written(self._deployment, batches))
            )
            cut = Cut(self._requests, place, batches, written)
            # It spares this node the work, and has what it takes to go on with it.
            by = self._replication.heir(in_sync, {})
            self.barrier, self._asked, self._came_to = None, _Asked(cut, by, now), {}
            if by is None:
                self._query_control.capture(self._replication.epoch, cut)
            else:
                yield do.Tell(by, say.TakeSnapshot(self._replication.epoch, cut))
        elif now >= self._since + ALIGN_SECONDS_MAX:
            self.barrier, self.why_not = None, "a query is too far behind"

    def _await(self, now: float, asked: _Asked) -> Iterator[do.Action]:
        self._note_digests(asked.cut)
        if asked.taken is not None and self._is_ours(asked.taken):
            self._asked, self._newest_input = None, asked.cut.position.sequence
            self._showing = True
            yield do.ShowSnapshot(asked.taken.draft, self._replication.epoch)
        elif now >= asked.since + TAKE_SECONDS_MAX:
            self._end("it took too long")
        elif asked.by is not None and not self._replication.peers[asked.by].connected:
            self._end(f"{asked.by} is no longer connected")

    def _is_ours(self, taken: say.SnapshotTaken) -> bool:
        """RULES.md#r28: what it stands on came out here as it did there; may have to be waited
        for."""
        came_to = self._came_to
        return all(came_to.get((query, n)) == digest for query, n, digest in taken.batches)

    def _note_digests(self, cut: Cut) -> None:
        for batch in cut.batches:
            digest = self._query_control.digests.mine(*batch)
            if digest is not None:
                self._came_to[batch] = digest

    def taken(self, by: str | None, message: say.SnapshotTaken) -> None:
        asked, stands_on = self._answered(by, message), tuple(one[:2] for one in message.batches)
        # What answers another holder's wish stands elsewhere.
        if asked is not None and stands_on == asked.cut.batches:
            self._asked = replace(asked, taken=message)

    def failed(self, by: str | None, message: say.SnapshotFailed) -> None:
        if self._answered(by, message) is not None:
            self._end(message.reason)

    def _answered(self, by: str | None, message: say.SnapshotAnswer) -> _Asked | None:
        asked, who = self._asked, (message.epoch, by, message.request)
        if asked is None or who != (self._replication.epoch, asked.by, asked.cut.request):
            return None
        return asked

    def linked(self, name: str) -> None:
        """Wish or answer may be lost with the link before."""
        if self._asked is not None and self._asked.by == name:
            self._end(f"{name} was no longer connected")

    def broke(self, why: str) -> None:
        """What a batch came to here may never be told, and is waited for (RULES.md#r28)."""
        if self._asked is not None and len(self._came_to) < len(self._asked.cut.batches):
            self._end(why)

    def shown(self) -> None:
        """The database has told which revisions are visible."""
        self._showing = False

    def not_shown(self, reason: str) -> None:
        if self._showing:
            self._showing, self._newest_input = False, 0
            self.why_not = reason

    def _end(self, why: str) -> None:
        self._asked, self.why_not = None, why
