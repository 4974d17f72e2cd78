"""Decide where each micro-batch of a query ends, and track how far each batch is.

``QueryMarks`` plans a mark when the query asks for one and there is committed input that no mark
covers yet. When input pauses it plans an empty batch, which lets Spark act on the watermark
of the batch before. Under load the batch grows up to the limit, but it never waits to fill.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

from ha_engine.core.outbox_usage import OutboxUsage
from ha_engine.core.pace import Pace
from ha_engine.core.pending_events import PendingEvents
from ha_engine.errors import InvariantBroken
from ha_engine.types import Events, Mark, Published, QueryBase


@dataclass(frozen=True, slots=True)
class MarkLimits:
    """Sizes in events, batches and bytes; times in seconds."""

    max_events_per_batch: int
    min_batch_interval: float
    idle_batch_interval: float
    outbox_batches_max: int
    outbox_bytes_max: int


class QueryMarks:
    """The marks of one query. Batch n is mark n (RULES.md#i6); marks are contiguous from
    ``initial``."""

    def __init__(
        self, query: str, streams: frozenset[str], sinks: tuple[str, ...], limits: MarkLimits
    ) -> None:
        self.query, self.streams, self.sinks, self.limits = query, streams, sinks, limits
        self.initial = Mark(query, 0, 0)
        # This object has forgotten the marks up to this one, and keeps the later ones.
        self.kept_after = self.initial
        # The newest mark in the journal, committed or not.
        self.last = self.initial
        # Marks from a restored snapshot whose records the journal does not have yet.
        self.unwritten: list[Mark] = []
        self._throughs = array("Q")
        self._sequences = array("Q")
        self._pending = PendingEvents(limits.max_events_per_batch)
        self.outbox = OutboxUsage()
        self.admitted = 0
        self.published: dict[str, int] = dict.fromkeys(sinks, 0)
        # The published batch of every sink that a record names, also of removed sinks.
        self.recorded: dict[str, int] = {}
        self._published_uncommitted: deque[tuple[int, Published]] = deque()
        self._published_committed: dict[str, int] = dict.fromkeys(sinks, 0)
        self.wanted: int | None = None
        # The highest batch that the current query process has admitted or finished.
        self.passed: int | None = None
        # The highest batch that Spark has committed, as the current query process reported it.
        self.finished: int | None = None
        self._pace = Pace(limits.min_batch_interval, limits.idle_batch_interval)
        # RULES.md#r26: the sinks whose ledger has not answered since a history was given up, and
        # the batch in each ledger that has. Empty batches lead up to the highest.
        self.unanswered: set[str] = set()
        self._given_up: dict[str, int] = {}

    # -- what the journal says ---------------------------------------------------------------------

    def restart_at(self, initial: Mark) -> None:
        """Restart the query's state after ``initial``, as an application record says.

        Later marks remain: the new version runs the same batches.
        """
        if initial.number < self.kept_after.number:
            # Marks that the new version would run are trimmed here, so nothing can make its state.
            self.initial = initial
            return
        kept = initial.number - self.kept_after.number
        self.initial = self.kept_after = initial
        self._throughs, self._sequences = self._throughs[kept:], self._sequences[kept:]
        self.last = self.mark_at(initial.number + len(self._throughs))
        self.admitted = initial.number
        self._pending.drop_through(initial.through)

    def may_have_run(self, since: int) -> bool:
        """Whether a batch may have run on the state that the record ``since`` began.

        A batch that was planned later may have run on another node.
        """
        if self.admitted > self.initial.number:
            return True
        return self.last != self.initial and self.record_of(self.last.number) > since

    def mark_at(self, number: int) -> Mark:
        """The mark ``number``: ``before``, or one of those that are kept one by one."""
        if number == self.kept_after.number:
            return self.kept_after
        return Mark(self.query, number, self._throughs[number - 1 - self.kept_after.number])

    def apply_events(self, sequence: int, events: Events) -> None:
        if events.stream in self.streams and sequence > self.last.through:
            self._pending.append(sequence, events.rows)

    @property
    def events_pending(self) -> int:
        """The number of events in the journal that no batch of the query has yet."""
        return self._pending.events

    def apply_mark(self, sequence: int, mark: Mark) -> None:
        """Apply the mark whose record is ``sequence``.

        A restored snapshot may have brought it already. Raises InvariantBroken on a gap.
        """
        if mark.number <= self.kept_after.number and mark.through <= self.kept_after.through:
            self.unwritten = [one for one in self.unwritten if one != mark]
            return
        if mark.number != self.last.number + 1 or mark.through < self.last.through:
            raise InvariantBroken(
                f"mark {mark} does not follow {self.last} (RULES.md#i5, RULES.md#i6)"
            )
        self._throughs.append(mark.through)
        self._sequences.append(sequence)
        self.last = mark
        self._pending.drop_through(mark.through)

    def apply_published(self, sequence: int, published: Published) -> None:
        self.unanswered.discard(published.sink)
        batch = max(published.batch, self.recorded.get(published.sink, 0))
        self.recorded[published.sink] = batch
        if published.sink in self.published:
            self.published[published.sink] = batch
            self._published_uncommitted.append((sequence, published))

    def published_committed(self, committed: int) -> int:
        """The newest batch that every sink has, by committed records (RULES.md#r25).

        A query without sinks has no such records. It asks for its next mark after it has run the
        batch before, so that batch counts.
        """
        if not self.sinks:
            marks_committed = bisect_right(self._sequences, committed)
            return self.kept_after.number + max(0, marks_committed - 1)
        while self._published_uncommitted and self._published_uncommitted[0][0] <= committed:
            published = self._published_uncommitted.popleft()[1]
            self._published_committed[published.sink] = published.batch
        return min(self._published_committed.values())

    @property
    def published_through(self) -> int:
        """The newest batch that every sink has; without sinks, the one before the last mark's."""
        before_last = max(self.initial.number, self.last.number - 1)
        return min(self.published.values(), default=before_last)

    def history_was_given_up(self) -> None:
        """Wait for every ledger: a sink may have batches with numbers above those of this journal
        (RULES.md#r26)."""
        self.unanswered = set(self.sinks)

    def ledger_answered(self, sink: str, batch: int) -> None:
        """Note the batch in the ledger of ``sink``, whether this journal has its mark or not."""
        if sink in self.unanswered:
            self.unanswered.discard(sink)
            self._given_up[sink] = batch

    def skipped_published(self) -> list[Published]:
        """Published records for the given up numbers, once all batches up to them are admitted.

        They are returned once.
        """
        if self.unanswered or self.admitted < self._given_up_through:
            return []
        ahead, self._given_up = self._given_up, {}
        known = self.published
        return [Published(self.query, s, n) for s, n in sorted(ahead.items()) if n > known[s]]

    @property
    def _given_up_through(self) -> int:
        return max(self._given_up.values(), default=0)

    @property
    def ledger_end_max(self) -> float:
        """The highest batch that a ledger can have; infinite while a ledger has not answered
        (RULES.md#r26)."""
        return math.inf if self.unanswered else max(self.last.number, self._given_up_through)

    # -- records that are no longer there ---------------------------------------------------------

    def load_base(self, base: QueryBase) -> None:
        """Load from the base what the trimmed records said about the query."""
        self.initial, self.kept_after, self.unwritten = base.initial, base.last, [*base.ahead]
        self.last = base.last
        self.admitted = base.last.number
        self.recorded = dict(base.published)
        self.unanswered = set(base.unanswered) & set(self.sinks)
        for sink in self.sinks:
            self.published[sink] = self._published_committed[sink] = self.recorded.get(sink, 0)

    def record_of(self, number: int) -> int:
        """The sequence of the record of mark ``number``, one of those that are kept."""
        return self._sequences[number - 1 - self.kept_after.number]

    def ending_at(self, through: int) -> int | None:
        """The batch that ends at ``through``; None without one."""
        index = bisect_left(self._throughs, through)
        if index == len(self._throughs) or self._throughs[index] != through:
            return None
        return self.kept_after.number + index + 1

    @property
    def need(self) -> int:
        """The sequence after which Spark may still read.

        Spark's own position is known once it asks for a mark.
        """
        finished = self.finished
        if finished is None or finished > self.last.number:
            return self.kept_after.through
        return self.mark_at(max(finished, self.kept_after.number)).through

    def forget_through(self, sequence: int) -> None:
        """Drop the marks up to ``sequence``: every query is past them, so no query asks again."""
        count = bisect_right(self._sequences, sequence)
        if count:
            self.kept_after = self.mark_at(self.kept_after.number + count)
            self._throughs, self._sequences = self._throughs[count:], self._sequences[count:]

    # -- batches -----------------------------------------------------------------------------------

    def set_outbox_floor(self, first_kept: int | None, trimmed_through: int) -> int:
        """Set and return the floor at start: the outbox has only batches after it.

        ``first_kept`` is the lowest batch that the outbox has, and ``trimmed_through`` the highest
        that it has removed. Published records do not count here, since this node may not have run
        those batches yet. A sink that no record names begins at the floor.
        """
        floor = max(trimmed_through, self.initial.number) if first_kept is None else first_kept - 1
        self.admitted = max(self.admitted, floor)
        self._begin_behind(floor)
        return floor

    def _begin_behind(self, floor: int) -> None:
        self.outbox.begin_behind(floor)
        for sink in self.published.keys() - self.recorded.keys():
            self.published[sink] = self._published_committed[sink] = floor

    @property
    def _lacks_numbers(self) -> bool:
        """Whether its state begins after batches that this node will never run."""
        return self.outbox.last < self.initial.number

    @property
    def waits_for_outbox(self) -> bool:
        """Whether the query waits until the outbox passes those batches (RULES.md#r19).

        False while empty batches lead up to the numbers of a given up history (RULES.md#r26).
        """
        return self._lacks_numbers and not self.unanswered and not self._given_up

    def skip_numbers(self) -> int | None:
        """The batch after which the outbox continues, once all that it has is published.

        It is returned once, None otherwise.
        """
        if not self._lacks_numbers or self.outbox.backlog[0]:
            return None
        self._begin_behind(self.initial.number)
        return self.initial.number

    def start_after(self, sink: str) -> int:
        """The batch after which ``sink`` begins if its ledger has no row.

        It is no later than the batch that records say the sink has.
        """
        begins = self.initial.number if self._lacks_numbers else self.outbox.floor
        return min(begins, self.recorded.get(sink, begins))

    def asked(self, now: float, after: int) -> None:
        """Note that Spark has finished batch ``after`` and waits for the next mark."""
        if after == self.last.number:
            self._pace.ended(now, after)
        self.wanted, self.passed = after, max(self.passed or 0, after)
        self.finished = max(self.finished or 0, after)

    def ended(self) -> None:
        """Forget the process that ended; the next one reports its own position."""
        self.wanted = self.passed = self.finished = None

    def note_admitted(self, number: int, rows: int, size: int) -> None:
        self.passed = max(self.passed or 0, number)
        if number <= self.admitted:
            return
        if number != self.admitted + 1 or number > self.last.number:
            raise InvariantBroken(
                f"{self.query} admitted batch {number} after {self.admitted} (RULES.md#i6)"
            )
        self._enter_outbox(number, rows, size)

    def restore_admitted(self, number: int, rows: int, size: int) -> None:
        """Note a batch that the outbox has at start; it may be older than ``initial`` after a
        reset."""
        self._enter_outbox(number, rows, size)

    def _enter_outbox(self, number: int, rows: int, size: int) -> None:
        # Data without output rows still moves the watermark. Only an empty batch without output
        # rows is the end.
        self._pace.quiet = rows == 0 and self._is_empty(number)
        self.admitted = max(self.admitted, number)
        self.outbox.add(number, size)

    @property
    def settled(self) -> bool:
        """Whether every sink has all output of the events so far: only new events bring more."""
        number = self.last.number
        return (
            not self.events_pending
            and self.admitted >= number
            and all(batch >= number for batch in self.published.values())
            and (number == self.initial.number or self._pace.empty_batch_at == math.inf)
        )

    @property
    def in_flight(self) -> int | None:
        """The batch that Spark runs now, as far as this node can tell."""
        return self.admitted + 1 if self.last.number > self.admitted else None

    # -- planning ----------------------------------------------------------------------------------

    def answer(self, committed: int) -> Mark | None:
        """The mark for the query that waits, once its record is committed (RULES.md#i5)."""
        if self.wanted is None:
            return None
        index = self.wanted - self.kept_after.number
        if not 0 <= index < len(self._throughs) or self._sequences[index] > committed:
            return None
        number, self.wanted = self.wanted + 1, None
        return Mark(self.query, number, self._throughs[index])

    def plan(
        self,
        now: float,
        committed: int,
        slowest: int | None = None,
        *,
        starting: bool = False,
        barrier: int | None = None,
    ) -> Mark | None:
        """The next mark; None while there is no input, no query that waits, or no outbox space.

        ``slowest``: the newest batch of a member that is catching up. ``starting``: a member has
        not reported a batch yet. ``barrier``: a sequence at which one batch must end.
        """
        if now < self.wake_at(committed, slowest, starting=starting, barrier=barrier):
            return None
        if self._lacks_given_up:
            return self._next(now, self.last.through, slowest)
        through = self._pending.next_batch_end(committed, self._barrier_ahead(barrier))
        if through is not None:
            self._pace.input_came()
        else:
            self._pace.planned_empty()
            through = self.last.through
        return self._next(now, through, slowest)

    def wake_at(
        self,
        committed: int,
        slowest: int | None = None,
        *,
        starting: bool = False,
        barrier: int | None = None,
    ) -> float:
        """When ``plan`` has a mark, if no input arrives before; arguments as there."""
        if self.wanted != self.last.number or self.unanswered:
            return math.inf
        if self._lacks_given_up:
            return -math.inf
        if self._outbox_full():
            return math.inf
        rested = self._pace.rests_until(slowest, starting=starting, full=self._is_full)
        if self._barrier_ahead(barrier) is not None or self._pending.begins_by(committed):
            return rested
        if self.last.number > self.initial.number:
            return max(rested, self._pace.empty_batch_at)
        return math.inf

    def _barrier_ahead(self, barrier: int | None) -> int | None:
        """The barrier, until a batch has ended at it; then None."""
        return barrier if barrier is not None and self.last.through < barrier else None

    @property
    def _lacks_given_up(self) -> bool:
        return self.last.number < self._given_up_through

    def _next(self, now: float, through: int, slowest: int | None) -> Mark:
        self._pace.planned(now, slowest)
        return Mark(self.query, self.last.number + 1, through)

    @property
    def _is_full(self) -> bool:
        return self._pending.events >= self.limits.max_events_per_batch

    def _is_empty(self, number: int) -> bool:
        if number <= self.kept_after.number:
            return False
        return self.mark_at(number).through == self.mark_at(number - 1).through

    def _outbox_full(self) -> bool:
        batches, size = self.outbox.backlog if self.sinks else (0, 0)
        return batches >= self.limits.outbox_batches_max or size >= self.limits.outbox_bytes_max
