"""Decide when the next mark of a query is due: after a pause for other members, or as an empty
batch.

Every member runs the batches that the active planned. A member that is behind, or whose queries
start, catches up because the active plans fewer and larger batches. Fewer batches help even a
member that shares its CPU cores with the active.
"""

from __future__ import annotations

import math

CATCH_UP_BATCHES = 4
"""While a member catches up, the pause between two marks is the shortest if the member has run this
many batches since the last mark."""
CATCH_UP_BATCHES_MIN = 2
"""A member of any speed catches up if the active plans at most one new batch for every two that the
member runs."""
CATCH_UP_SECONDS = (1.0, 5.0)
"""The shortest and the longest pause between two marks while a member catches up. The longest pause
applies once the member has run CATCH_UP_BATCHES_MIN batches since the last mark."""
CATCH_UP_SECONDS_MAX = 20.0
"""The longest pause between two marks in any case, since the member that is behind may have
stopped."""
EMPTY_BATCHES_MAX = 3
"""The highest number of empty batches without input in between. Chained stateful operators yield
all their rows within this many batches. A query in complete mode yields rows at every empty batch,
so only this limit ends the series."""
PAUSE_IN_BATCHES = 5
"""While a member's queries start, the pause after a mark is this many durations of the last batch.
If both nodes share their CPU cores, Spark starts several times as fast with this pause."""


class Pace:
    """The pace of one query's marks. Times are in seconds."""

    def __init__(self, min_interval: float, idle_batch_interval: float) -> None:
        self._min_interval, self._idle_batch_interval = min_interval, idle_batch_interval
        self.planned_at = -math.inf
        # The duration of the newest batch that was timed, and its number.
        self._took, self._timed = 0.0, 0
        # The batch of the slowest member when the newest mark was planned, or None if no member was
        # behind.
        self._slowest_then: int | None = None
        # Whether the newest batch was empty and yielded no rows, so that only new input brings more
        # output.
        self.quiet = False
        self._empty_in_a_row = 0

    def planned(self, now: float, slowest: int | None) -> None:
        self.planned_at, self._slowest_then = now, slowest

    def ended(self, now: float, batch: int) -> None:
        """Note that Spark has finished ``batch``, which the newest mark ends."""
        if batch > self._timed and self.planned_at > -math.inf:
            self._took, self._timed = now - self.planned_at, batch

    def note_input(self) -> None:
        self._empty_in_a_row, self.quiet = 0, False

    def planned_empty(self) -> None:
        self._empty_in_a_row += 1

    @property
    def empty_batch_at(self) -> float:
        """The moment at which an empty batch is due, or infinity if another empty batch would yield
        nothing."""
        if self.quiet or self._empty_in_a_row >= EMPTY_BATCHES_MAX:
            return math.inf
        return self.planned_at + self._idle_batch_interval

    def pause_ends_at(self, slowest: int | None, *, starting: bool, full: bool) -> float:
        """The moment at which the pause after the last mark ends.

        ``slowest`` is the newest batch of the slowest member that is catching up, or None.
        ``starting`` says whether a member has not reported a batch yet. ``full`` is True if the
        next batch has reached its limit.
        """
        pause = 0.0 if full else self._pause_seconds(slowest, starting)
        return self.planned_at + max(self._min_interval, pause)

    def _pause_seconds(self, slowest: int | None, starting: bool) -> float:
        least, most = CATCH_UP_SECONDS
        if slowest is None:
            return min(most, max(least, PAUSE_IN_BATCHES * self._took)) if starting else 0.0
        before = self._slowest_then
        if before is None or slowest >= before + CATCH_UP_BATCHES:
            return least
        return most if slowest >= before + CATCH_UP_BATCHES_MIN else CATCH_UP_SECONDS_MAX
