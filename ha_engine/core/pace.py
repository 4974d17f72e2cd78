"""Decide when the next mark of a query comes: after a pause for other members, or as an empty
batch.

A member runs each batch as it was planned. A member that is behind, or whose queries start, catches
up because the active plans fewer and larger batches. That holds for nodes that share their cores
too.
"""

from __future__ import annotations

import math

CATCH_UP_BATCHES = 4
"""The next mark comes once a member that is behind has run so many batches since the last mark."""
CATCH_UP_BATCHES_MIN = 2
"""A member of any speed catches up if every two batches that it runs bring at most one new one."""
CATCH_UP_SECONDS = (1.0, 5.0)
"""From one mark to the next while a member catches up: the least, and the most if the member has
run CATCH_UP_BATCHES_MIN since."""
CATCH_UP_SECONDS_MAX = 20.0
"""The most in any case, since a member may have stopped."""
EMPTY_BATCHES_MAX = 3
"""Empty batches without input in between. Chained stateful operators settle within these. A query
in complete mode yields rows at every empty batch, so it needs this limit."""
BATCHES_OF_REST = 5
"""While a member's queries start, the next mark comes after so many durations of the last batch.
Where both nodes share their cores, Spark then starts several times as fast."""


class Pace:
    """The pace of one query's marks. Times are in seconds."""

    def __init__(self, min_interval: float, idle_batch_interval: float) -> None:
        self._min_interval, self._idle_batch_interval = min_interval, idle_batch_interval
        self.planned_at = -math.inf
        # The duration of the newest batch that was timed, and its number.
        self._took, self._timed = 0.0, 0
        # The batch of the slowest member at that moment; None if no member was behind.
        self._slowest_then: int | None = None
        # The newest batch was empty and yielded no rows: only new input can bring more.
        self.quiet = False
        self._empty_in_a_row = 0

    def planned(self, now: float, slowest: int | None) -> None:
        self.planned_at, self._slowest_then = now, slowest

    def ended(self, now: float, batch: int) -> None:
        """Note that Spark has finished ``batch``, which the newest mark ends."""
        if batch > self._timed and self.planned_at > -math.inf:
            self._took, self._timed = now - self.planned_at, batch

    def input_came(self) -> None:
        self._empty_in_a_row, self.quiet = 0, False

    def planned_empty(self) -> None:
        self._empty_in_a_row += 1

    @property
    def empty_batch_at(self) -> float:
        """When a batch without new input is due; infinite if it would yield nothing."""
        if self.quiet or self._empty_in_a_row >= EMPTY_BATCHES_MAX:
            return math.inf
        return self.planned_at + self._idle_batch_interval

    def rests_until(self, slowest: int | None, *, starting: bool, full: bool) -> float:
        """When the rest after the last mark ends.

        ``slowest``: the newest batch of a member that is catching up. ``starting``: a member has
        not reported a batch yet. ``full``: the next batch cannot grow.
        """
        rest = 0.0 if full else self._rest(slowest, starting)
        return self.planned_at + max(self._min_interval, rest)

    def _rest(self, slowest: int | None, starting: bool) -> float:
        least, most = CATCH_UP_SECONDS
        if slowest is None:
            return min(most, max(least, BATCHES_OF_REST * self._took)) if starting else 0.0
        before = self._slowest_then
        if before is None or slowest >= before + CATCH_UP_BATCHES:
            return least
        return most if slowest >= before + CATCH_UP_BATCHES_MIN else CATCH_UP_SECONDS_MAX
