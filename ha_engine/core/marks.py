"""Where each query cuts its micro-batches, and how far each batch has come.

A mark is planned when the query asks for one and there is committed input that no mark covers yet;
or, when input pauses, as a *tick*: an empty batch that lets Spark act on the watermark of the batch
before. Under load the batch grows up to the limit; it is never held back to fill.
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
        # The mark before those that are kept one by one.
        self.before = self.initial
        # The newest mark in the journal, committed or not.
        self.last = self.initial
        # Marks that a snapshot brought, and the journal does not have yet.
        self.unwritten: list[Mark] = []
        self._throughs = array("Q")
        self._sequences = array("Q")
        self._uncut = PendingEvents(limits.max_events_per_batch)
        self.kept = OutboxUsage()
        self.admitted = 0
        self.published: dict[str, int] = dict.fromkeys(sinks, 0)
        # Of every sink that a record names, whether the application still has it or not.
        self.recorded: dict[str, int] = {}
        self._published_uncommitted: deque[tuple[int, Published]] = deque()
        self._published_committed: dict[str, int] = dict.fromkeys(sinks, 0)
        self.wanted: int | None = None
        # The highest batch that Spark has behind it, by the word of the process that runs now.
        self.passed: int | None = None
        # The highest batch that Spark has committed, by the word of the same.
        self.finished: int | None = None
        self._pace = Pace(limits.min_batch_interval, limits.idle_batch_interval)
        # RULES.md#r26: whose ledger has yet to tell how far the history went that was given up, and
        # how far each did. Empty batches lead up to there.
        self.unheard: set[str] = set()
        self._given_up: dict[str, int] = {}

    # -- what the journal says ---------------------------------------------------------------------

    def restart_at(self, initial: Mark) -> None:
        """An application record starts the query's state anew after ``initial``.

        Marks that were planned after it stand: the new version runs the same batches.
        """
        if initial.number < self.before.number:
            # Those that the new version would run are trimmed here: its state cannot be made.
            self.initial = initial
            return
        kept = initial.number - self.before.number
        self.initial = self.before = initial
        self._throughs, self._sequences = self._throughs[kept:], self._sequences[kept:]
        self.last = self.mark_at(initial.number + len(self._throughs))
        self.admitted = initial.number
        self._uncut.drop_through(initial.through)

    def may_have_run(self, since: int) -> bool:
        """Whether a batch ran on the state that the record ``since`` began: one that was cut later
        may have run on another node."""
        if self.admitted > self.initial.number:
            return True
        return self.last != self.initial and self.record_of(self.last.number) > since

    def mark_at(self, number: int) -> Mark:
        """The mark ``number``, which is the one before those that are kept, or a later one."""
        if number == self.before.number:
            return self.before
        return Mark(self.query, number, self._throughs[number - 1 - self.before.number])

    def saw_events(self, sequence: int, events: Events) -> None:
        if events.stream in self.streams and sequence > self.last.through:
            self._uncut.append(sequence, events.rows)

    @property
    def events_uncut(self) -> int:
        """Events in the journal that no batch of the query has yet."""
        return self._uncut.events

    def saw_mark(self, sequence: int, mark: Mark) -> None:
        """Takes in the mark whose record is ``sequence``; a snapshot may have brought it before."""
        if mark.number <= self.before.number and mark.through <= self.before.through:
            self.unwritten = [one for one in self.unwritten if one != mark]
            return
        if mark.number != self.last.number + 1 or mark.through < self.last.through:
            raise InvariantBroken(
                f"mark {mark} does not follow {self.last} (RULES.md#i5, RULES.md#i6)"
            )
        self._throughs.append(mark.through)
        self._sequences.append(sequence)
        self.last = mark
        self._uncut.drop_through(mark.through)

    def saw_published(self, sequence: int, published: Published) -> None:
        self.unheard.discard(published.sink)
        batch = max(published.batch, self.recorded.get(published.sink, 0))
        self.recorded[published.sink] = batch
        if published.sink in self.published:
            self.published[published.sink] = batch
            self._published_uncommitted.append((sequence, published))

    def published_committed(self, committed: int) -> int:
        """The batch that every sink has, as far as committed records tell (RULES.md#r25).

        Nothing records that a query without sinks came on but its next mark, which it asks for
        after the batch before.
        """
        if not self.sinks:
            marks_committed = bisect_right(self._sequences, committed)
            return self.before.number + max(0, marks_committed - 1)
        while self._published_uncommitted and self._published_uncommitted[0][0] <= committed:
            published = self._published_uncommitted.popleft()[1]
            self._published_committed[published.sink] = published.batch
        return min(self._published_committed.values())

    @property
    def published_through(self) -> int:
        """The batch that every sink has; without sinks, the one before the last mark's."""
        before_last = max(self.initial.number, self.last.number - 1)
        return min(self.published.values(), default=before_last)

    def history_was_given_up(self) -> None:
        """RULES.md#r26: a sink may have batches with numbers that this journal has yet to reach."""
        self.unheard = set(self.sinks)

    def ledger_says(self, sink: str, batch: int) -> None:
        """How far the ledger of ``sink`` has come, planned here or not."""
        if sink in self.unheard:
            self.unheard.discard(sink)
            self._given_up[sink] = batch

    def numbers_passed(self) -> list[Published]:
        """Once: what the ledgers have of the given up numbers, when these are behind us."""
        if self.unheard or self.admitted < self._given_up_through:
            return []
        ahead, self._given_up = self._given_up, {}
        known = self.published
        return [Published(self.query, s, n) for s, n in sorted(ahead.items()) if n > known[s]]

    @property
    def _given_up_through(self) -> int:
        return max(self._given_up.values(), default=0)

    @property
    def ledger_end_max(self) -> float:
        """The highest batch that a ledger can have; infinite while nobody knows (RULES.md#r26)."""
        return math.inf if self.unheard else max(self.last.number, self._given_up_through)

    # -- records that are no longer there ---------------------------------------------------------

    def stand_on(self, base: QueryBase) -> None:
        """What the records said before the first that will be taken in."""
        self.initial, self.before, self.unwritten = base.initial, base.last, [*base.ahead]
        self.last = base.last
        self.admitted = base.last.number
        self.recorded = dict(base.published)
        self.unheard = set(base.unheard) & set(self.sinks)
        for sink in self.sinks:
            self.published[sink] = self._published_committed[sink] = self.recorded.get(sink, 0)

    def record_of(self, number: int) -> int:
        """The sequence of the record of a mark that is kept one by one."""
        return self._sequences[number - 1 - self.before.number]

    def ending_at(self, through: int) -> int | None:
        """The batch that ends at ``through``; None while there is none."""
        index = bisect_left(self._throughs, through)
        if index == len(self._throughs) or self._throughs[index] != through:
            return None
        return self.before.number + index + 1

    @property
    def need(self) -> int:
        """The sequence behind which Spark may read again; where it stands is known once it asks."""
        finished = self.finished
        if finished is None or finished > self.last.number:
            return self.before.through
        return self.mark_at(max(finished, self.before.number)).through

    def forget_through(self, sequence: int) -> None:
        """The marks up to there are asked for no more, since every query is past them."""
        count = bisect_right(self._sequences, sequence)
        if count:
            self.before = self.mark_at(self.before.number + count)
            self._throughs, self._sequences = self._throughs[count:], self._sequences[count:]

    # -- batches -----------------------------------------------------------------------------------

    def restore_floor(self, first_kept: int | None, left: int) -> int:
        """The batch behind which the outbox goes on: ``first_kept`` is the lowest that it has, and
        ``left`` the highest that has left it.

        Nothing is concluded from what the journal calls published: a member may have yet to run
        it. A sink that no record names begins at the floor.
        """
        floor = max(left, self.initial.number) if first_kept is None else first_kept - 1
        self.admitted = max(self.admitted, floor)
        self._begin_behind(floor)
        return floor

    def _begin_behind(self, floor: int) -> None:
        self.kept.begin_behind(floor)
        for sink in self.published.keys() - self.recorded.keys():
            self.published[sink] = self._published_committed[sink] = floor

    @property
    def _lacks_numbers(self) -> bool:
        """Whether its state begins behind batches that will never come out here."""
        return self.kept.last < self.initial.number

    @property
    def waits_for_outbox(self) -> bool:
        """Until that goes on without them (RULES.md#r19); not on the way to a given up history
        (RULES.md#r26)."""
        return self._lacks_numbers and not self.unheard and not self._given_up

    def pass_numbers(self) -> int | None:
        """Once: the batch behind which the outbox goes on, when all that it has is published."""
        if not self._lacks_numbers or self.kept.backlog[0]:
            return None
        self._begin_behind(self.initial.number)
        return self.initial.number

    def start_after(self, sink: str) -> int:
        """Where ``sink`` begins when its ledger has no row: at no batch later than it had."""
        begins = self.initial.number if self._lacks_numbers else self.kept.floor
        return min(begins, self.recorded.get(sink, begins))

    def asked(self, now: float, after: int) -> None:
        """Spark has finished batch ``after`` and waits for the mark that follows."""
        if after == self.last.number:
            self._pace.ended(now, after)
        self.wanted, self.passed = after, max(self.passed or 0, after)
        self.finished = max(self.finished or 0, after)

    def ended(self) -> None:
        """Nobody waits for a mark, and how far the next process is, it will tell."""
        self.wanted = self.passed = self.finished = None

    def saw_admitted(self, number: int, rows: int, size: int) -> None:
        self.passed = max(self.passed or 0, number)
        if number <= self.admitted:
            return
        if number != self.admitted + 1 or number > self.last.number:
            raise InvariantBroken(
                f"{self.query} admitted batch {number} after {self.admitted} (RULES.md#i6)"
            )
        self._enter_outbox(number, rows, size)

    def restore_admitted(self, number: int, rows: int, size: int) -> None:
        """A batch that lies in the outbox at start; older than ``initial`` after a reset."""
        self._enter_outbox(number, rows, size)

    def _enter_outbox(self, number: int, rows: int, size: int) -> None:
        # Data that yields nothing still moves the watermark; only a tick without rows is the end.
        self._pace.quiet = rows == 0 and self._is_tick(number)
        self.admitted = max(self.admitted, number)
        self.kept.add(number, size)

    @property
    def settled(self) -> bool:
        """Everything that the events so far yield is in every sink: only new ones bring more."""
        number = self.last.number
        return (
            not self.events_uncut
            and self.admitted >= number
            and all(batch >= number for batch in self.published.values())
            and (number == self.initial.number or self._pace.tick_at == math.inf)
        )

    @property
    def in_flight(self) -> int | None:
        """The batch that Spark runs now, as far as this node can tell."""
        return self.admitted + 1 if self.last.number > self.admitted else None

    # -- planning ----------------------------------------------------------------------------------

    def answer(self, committed: int) -> Mark | None:
        """The mark that the waiting query gets, if its record is committed (RULES.md#i5)."""
        if self.wanted is None:
            return None
        index = self.wanted - self.before.number
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
        """The next mark; None while there is nothing to cut, nobody to run it, or no room.

        ``slowest``: the batch that a member has come to which has some to catch up with;
        ``starting``: a member has not said yet where it is; ``barrier``: one batch ends there.
        """
        if now < self.wake_at(committed, slowest, starting=starting, barrier=barrier):
            return None
        if self._lacks_given_up:
            return self._next(now, self.last.through, slowest)
        through = self._uncut.cut(committed, self._ahead(barrier))
        if through is not None:
            self._pace.data_came()
        else:
            self._pace.ticked()
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
        """When ``plan`` has a mark, if nothing but time goes on; arguments as there."""
        if self.wanted != self.last.number or self.unheard:
            return math.inf
        if self._lacks_given_up:
            return -math.inf
        if self._outbox_full():
            return math.inf
        rested = self._pace.rests_until(slowest, starting=starting, full=self._is_full)
        if self._ahead(barrier) is not None or self._uncut.begins_by(committed):
            return rested
        if self.last.number > self.initial.number:
            return max(rested, self._pace.tick_at)
        return math.inf

    def _ahead(self, barrier: int | None) -> int | None:
        """The barrier, until a batch has ended there."""
        return barrier if barrier is not None and self.last.through < barrier else None

    @property
    def _lacks_given_up(self) -> bool:
        return self.last.number < self._given_up_through

    def _next(self, now: float, through: int, slowest: int | None) -> Mark:
        self._pace.cut(now, slowest)
        return Mark(self.query, self.last.number + 1, through)

    @property
    def _is_full(self) -> bool:
        return self._uncut.events >= self.limits.max_events_per_batch

    def _is_tick(self, number: int) -> bool:
        if number <= self.before.number:
            return False
        return self.mark_at(number).through == self.mark_at(number - 1).through

    def _outbox_full(self) -> bool:
        batches, size = self.kept.backlog if self.sinks else (0, 0)
        return batches >= self.limits.outbox_batches_max or size >= self.limits.outbox_bytes_max
