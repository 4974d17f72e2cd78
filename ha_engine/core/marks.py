"""Decide where each micro-batch of a query ends, and track how far each batch is.

``QueryMarks`` plans a mark when the query asks for one and there is committed input that no mark
covers yet. When input pauses, ``QueryMarks`` plans an empty batch, so that Spark acts on the
watermark of the previous batch. Under load a batch grows up to the limit, but no batch waits until
it is full.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ha_engine.core.outbox_usage import OutboxUsage
from ha_engine.core.pace import Pace
from ha_engine.core.pending_events import PendingEvents
from ha_engine.errors import InvariantBroken
from ha_engine.types import Events, Mark, Position, Published, QueryBase


@dataclass(frozen=True, slots=True)
class MarkLimits:
    """Sizes are in events, batches and bytes; times are in seconds."""

    max_events_per_batch: int
    min_batch_interval: float
    idle_batch_interval: float
    outbox_batches_max: int
    outbox_bytes_max: int


class QueryMarks:
    """The marks of one query.

    Mark n ends batch n (RULES.md#i6); the numbers continue from ``initial`` without a gap.
    """

    def __init__(
        self, query: str, streams: frozenset[str], sinks: tuple[str, ...], limits: MarkLimits
    ) -> None:
        self.query, self.streams, self.sinks, self.limits = query, streams, sinks, limits
        self.initial = Mark(query, 0, 0)
        # The newest mark that this object has forgotten; it keeps every later mark.
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
        # The newest published batch of each sink that a record names, removed sinks included.
        self.recorded: dict[str, int] = {}
        self._published_uncommitted: deque[tuple[int, Published]] = deque()
        self._published_committed: dict[str, int] = dict.fromkeys(sinks, 0)
        self.wanted: int | None = None
        # The highest batch of the current query process that is admitted or finished.
        self.passed: int | None = None
        # The highest batch that Spark has committed, as the current query process reported it.
        self.finished: int | None = None
        self._pace = Pace(limits.min_batch_interval, limits.idle_batch_interval)
        # RULES.md#r26: after a forced failover, the sinks whose ledgers have not answered, and the
        # batch in each ledger that has. Empty batches lead up to the highest batch in a ledger.
        self.unanswered: set[str] = set()
        self._given_up: dict[str, int] = {}

    # -- what the journal says ---------------------------------------------------------------------

    def restart_at(self, initial: Mark) -> None:
        """Restart the query's state after ``initial``, as an application record says.

        Later marks remain valid, since the new version runs the same batches.
        """
        if initial.number < self.kept_after.number:
            # This node has trimmed marks of batches that the new version would run, so it cannot
            # build the state of that version.
            self.initial = initial
            return
        kept = initial.number - self.kept_after.number
        self.initial = self.kept_after = initial
        self._throughs, self._sequences = self._throughs[kept:], self._sequences[kept:]
        self.last = self.mark_at(initial.number + len(self._throughs))
        # The new version may run batches again that the outbox has, or has had.
        self.admitted = max(initial.number, self.outbox.last)
        self._pending.drop_through(initial.through)

    def continue_shadow(self, first: Mark) -> None:
        """Continue the state of a shadow, which has run the batches after ``first``.

        Every sink has the earlier batches, and this node makes none of them that it still lacks.
        """
        self.initial = first
        self.admitted = max(self.admitted, first.number)

    def may_have_run(self, since: int) -> bool:
        """Whether a batch whose mark is after the record ``since`` may have run on the state that
        this record began.

        Batches with older marks can run again from ``initial``, if the journal has their records.
        """
        return self.last != self.initial and self.record_of(self.last.number) > since

    def mark_at(self, number: int) -> Mark:
        """The mark with this number, which must be ``kept_after`` or a later mark."""
        if number == self.kept_after.number:
            return self.kept_after
        return Mark(self.query, number, self._throughs[number - 1 - self.kept_after.number])

    def reset_after(self, committed: int, trimmed_through: int) -> Mark:
        """The mark after which the state begins if it is reset: of the newest batch that every sink
        has.

        Another node may publish next, and makes the batches that a sink still lacks.
        """
        published = min(self.admitted, self.published_committed(committed))
        return self._whole_after(max(self.kept_after.number, published), trimmed_through)

    def backfill_after(self, trimmed_through: int) -> Mark:
        """The mark after which the state begins if it is made again: of the oldest batch after
        which the journal has every record."""
        return self._whole_after(self.kept_after.number, trimmed_through)

    def _whole_after(self, number: int, trimmed_through: int) -> Mark:
        """The mark of batch ``number``, or of the first later batch after which the journal has
        every record.

        If the newest mark is before the end of the trimmed records, these have no events of the
        query, and the state begins with that end.
        """
        while number < self.last.number and self.mark_at(number).through < trimmed_through:
            number += 1
        return Mark(self.query, number, max(self.mark_at(number).through, trimmed_through))

    def apply_events(self, sequence: int, events: Events) -> None:
        if events.stream in self.streams and sequence > self.last.through:
            self._pending.append(sequence, events.rows)

    @property
    def events_pending(self) -> int:
        """The number of events in the journal that no batch of the query has yet."""
        return self._pending.events

    def apply_mark(self, sequence: int, mark: Mark) -> None:
        """Apply the mark in the record ``sequence``. Raises InvariantBroken on a gap in the
        numbers.

        If a restored snapshot already includes the mark, only note that its record exists.
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

        A query without sinks has no published records. Without sinks, the batch before the newest
        committed mark counts, since the query asks for a mark only after it has run the batch
        before.
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
        """The newest batch that every sink has, or without sinks the batch before the newest
        mark."""
        before_last = max(self.initial.number, self.last.number - 1)
        return min(self.published.values(), default=before_last)

    def history_was_given_up(self) -> None:
        """Plan no mark until every ledger has answered.

        A sink may have batches with higher numbers than those of this journal (RULES.md#r26).
        """
        self.unanswered = set(self.sinks)

    def ledger_answered(self, sink: str, batch: int) -> None:
        """Note the batch in the ledger of ``sink``, even if this journal does not have the mark of
        that batch."""
        if sink in self.unanswered:
            self.unanswered.discard(sink)
            self._given_up[sink] = batch

    def published_in_given_up_history(self) -> list[Published]:
        """Published records for the batch numbers that a sink has from a given-up history.

        The method returns these records once, after the node has admitted all batches up to these
        numbers.
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
        """The highest batch that a sink's ledger can have, or infinity while a ledger has not
        answered (RULES.md#r26)."""
        return math.inf if self.unanswered else max(self.last.number, self._given_up_through)

    # -- records that are no longer there ---------------------------------------------------------

    def load_base(self, base: QueryBase) -> None:
        """Load from the base what the trimmed records said about the query."""
        self.initial, self.kept_after, self.unwritten = base.initial, base.last, [*base.ahead]
        self.last = base.last
        self.admitted = base.last.number
        self.recorded = dict(base.published)
        self.unanswered = set(base.unheard) & set(self.sinks)
        for sink in self.sinks:
            self.published[sink] = self._published_committed[sink] = self.recorded.get(sink, 0)

    def record_of(self, number: int) -> int:
        """The sequence of the record of the mark with this number, which must be a kept mark."""
        return self._sequences[number - 1 - self.kept_after.number]

    def ending_at(self, through: int) -> int | None:
        """The number of the batch that ends at the sequence ``through``, or None if no batch
        does."""
        index = bisect_left(self._throughs, through)
        if index == len(self._throughs) or self._throughs[index] != through:
            return None
        return self.kept_after.number + index + 1

    @property
    def need(self) -> int:
        """The sequence after which Spark may still read records.

        This node learns Spark's own position only when Spark asks for a mark. The batches that a
        sink lacks count too, because Spark makes them again after a reset (RULES.md#r23).
        """
        finished = self.finished
        if finished is None or finished > self.last.number:
            return self.kept_after.through
        passed = min(finished, self.published_through)
        return self.mark_at(max(passed, self.kept_after.number)).through

    def forget_through(self, sequence: int) -> None:
        """Forget the marks in records up to ``sequence``.

        The query never asks again for the mark of a batch that it has run, or that another node has
        run instead.
        """
        count = bisect_right(self._sequences, sequence)
        if count:
            self.kept_after = self.mark_at(self.kept_after.number + count)
            self._throughs, self._sequences = self._throughs[count:], self._sequences[count:]
            self.admitted = max(self.admitted, self.kept_after.number)

    # -- batches -----------------------------------------------------------------------------------

    def set_outbox_floor(self, first_kept: int | None, trimmed_through: int) -> int:
        """Set the floor when the node starts, and return it. The outbox has only batches after the
        floor.

        ``first_kept`` is the lowest batch that the outbox has, and ``trimmed_through`` the highest
        that it has removed. Published records do not raise the floor, since this node may not have
        run their batches yet. A sink that no published record names begins at the floor.
        """
        floor = max(trimmed_through, self.initial.number) if first_kept is None else first_kept - 1
        self.admitted = max(self.admitted, floor)
        self._begin_after(floor)
        return floor

    def outbox_restored(self, left: int) -> None:
        """Note that the outbox begins after batch ``left``, because a snapshot has the state of the
        query and the batches after ``left``."""
        if left > self.outbox.floor:
            self.admitted = max(self.admitted, left)
            self.outbox.trim(left)
            self._begin_after(left)

    def _begin_after(self, floor: int) -> None:
        self.outbox.begin_after(floor)
        for sink in self.published.keys() - self.recorded.keys():
            self.published[sink] = self._published_committed[sink] = floor

    @property
    def _lacks_numbers(self) -> bool:
        """Whether the query's state begins after batches that this node will never run."""
        return self.outbox.last < self.initial.number

    @property
    def waits_for_outbox(self) -> bool:
        """Whether the query waits until the outbox has passed the batches that this node never runs
        (RULES.md#r19).

        The query does not wait while empty batches lead up to the numbers of a given-up history
        (RULES.md#r26).
        """
        return self._lacks_numbers and not self.unanswered and not self._given_up

    def skip_numbers(self) -> int | None:
        """The batch after which the outbox continues, once all batches in the outbox are published.

        The method returns this number once, and None otherwise.
        """
        if not self._lacks_numbers or self.outbox.backlog[0]:
            return None
        self._begin_after(self.initial.number)
        return self.initial.number

    def start_after(self, sink: str) -> int:
        """The batch after which ``sink`` begins if its ledger has no row.

        If a record names a published batch of the sink, the result is not above that batch.
        """
        begins = self.initial.number if self._lacks_numbers else self.outbox.floor
        return min(begins, self.recorded.get(sink, begins))

    def asked(self, now: float, after: int) -> None:
        """Note that Spark has finished batch ``after`` and waits for the next mark."""
        if after == self.last.number:
            self._pace.ended(now, after)
        self.wanted = after
        self.note_passed(after)
        self.finished = max(self.finished or 0, after)

    def ended(self) -> None:
        """Forget the position of the query process that ended.

        The next process reports its own position.
        """
        self.wanted = self.passed = self.finished = None

    def note_passed(self, number: int) -> None:
        """Note that the query process has come as far as batch ``number``."""
        self.passed = max(self.passed or 0, number)

    def note_admitted(self, number: int, rows: int, size: int) -> None:
        if number <= self.admitted:
            return
        if number != self.admitted + 1 or number > self.last.number:
            raise InvariantBroken(
                f"query {self.query} admitted batch {number} after batch {self.admitted} "
                "(RULES.md#i6)"
            )
        self._enter_outbox(number, rows, size)

    def restore_admitted(self, number: int, rows: int, size: int) -> None:
        """Note a batch that the outbox has when the node starts.

        After a reset of the query, such a batch may be older than ``initial``.
        """
        self._enter_outbox(number, rows, size)

    def _enter_outbox(self, number: int, rows: int, size: int) -> None:
        # Events move the watermark even if their batch yields no rows. Only an empty batch without
        # output rows shows that no more output comes without new input.
        self._pace.quiet = rows == 0 and self._is_empty(number)
        self.admitted = max(self.admitted, number)
        self.outbox.add(number, size)

    @property
    def all_published(self) -> bool:
        """Whether all events are in a batch, and every sink has all batches."""
        number = self.last.number
        return not self.events_pending and all(one >= number for one in self.published.values())

    @property
    def settled(self) -> bool:
        """Whether every sink has all output of the events so far, so that only new events bring
        more."""
        number = self.last.number
        return (
            self.all_published
            and self.admitted >= number
            and (number == self.initial.number or self._pace.empty_batch_at == math.inf)
        )

    @property
    def in_flight(self) -> int | None:
        """The batch that Spark runs now, as far as this node can tell."""
        # After a reset, the outbox may have later batches than the query.
        at = self.admitted if self.passed is None else self.passed
        return at + 1 if self.last.number > at else None

    # -- another node's state ----------------------------------------------------------------------

    def shared(
        self, epochs: tuple[Position, ...], committed: int, trimmed_through: int
    ) -> Iterator[tuple[int, int]]:
        """For each epoch, the newest batch that every sink has and that the epoch's active may have
        run too.

        ``epochs`` has the first position of each epoch. Two journals with the same epoch record
        have the same records before it, and an active writes all records of its epoch. So the
        active of an epoch has run this journal's batches up to the last mark of that epoch. Only
        batches after which this node can continue count: the journal must have their marks and all
        later records.
        """
        published = self.published_committed(committed)
        ends = [start.sequence - 1 for start in epochs[1:]] + [committed]
        for start, end in zip(epochs, ends, strict=True):
            number = min(published, self.kept_after.number + bisect_right(self._sequences, end))
            has_mark = number > self.kept_after.number
            if has_mark and self.mark_at(number).through >= trimmed_through:
                yield start.epoch, number

    @property
    def need_on_standby(self) -> int:
        """Like ``need``, while only another node runs the query.

        The state will be one after a batch that every sink has, or that of a snapshot.
        """
        number = min(self.published_through, self.last.number)
        return self.mark_at(max(number, self.kept_after.number)).through

    # -- planning ----------------------------------------------------------------------------------

    def answer(self, committed: int) -> Mark | None:
        """The mark for the query that waits, once the record of that mark is committed
        (RULES.md#i5)."""
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
        """The next mark, or None. A mark needs a query that waits, space in the outbox, and new
        input or a due empty batch.

        ``slowest`` is the newest batch of the slowest member that is catching up, or None.
        ``starting`` says whether a member has not reported a batch yet. ``barrier`` is a sequence
        at which one batch must end.
        """
        if now < self.wake_at(committed, slowest, starting=starting, barrier=barrier):
            return None
        if self._lacks_given_up:
            return self._next(now, self.last.through, slowest)
        through = self._pending.next_batch_end(committed, self._barrier_ahead(barrier))
        if through is not None:
            self._pace.note_input()
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
        """The moment at which ``plan`` has a mark, if no input arrives before.

        The arguments are those of ``plan``.
        """
        if self.wanted != self.last.number or self.unanswered:
            return math.inf
        if self._lacks_given_up:
            return -math.inf
        if self._outbox_full():
            return math.inf
        pause_over = self._pace.pause_ends_at(slowest, starting=starting, full=self._is_full)
        if self._barrier_ahead(barrier) is not None or self._pending.begins_by(committed):
            return pause_over
        if self.last.number > self.initial.number:
            return max(pause_over, self._pace.empty_batch_at)
        return math.inf

    def _barrier_ahead(self, barrier: int | None) -> int | None:
        """The barrier until a batch has ended at it, and None afterwards."""
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
