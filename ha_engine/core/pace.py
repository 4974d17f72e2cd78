"""When the next mark of a query comes: after a rest so that other members follow, or as a tick.

A member runs each batch as it was cut. One that is behind, or whose queries start, catches up by
fewer and larger batches, where both nodes share their cores too.
"""

from __future__ import annotations

import math

CATCH_UP_BATCHES = 4
"""The next mark comes once a member that is behind has run so many batches since the last one."""
CATCH_UP_BATCHES_MIN = 2
"""A member gets level, however slow it is, if each two that it runs bring at most one new batch."""
CATCH_UP_SECONDS = (1.0, 5.0)
"""From one mark to the next meanwhile: the least, and the most if the member has run those two."""
CATCH_UP_SECONDS_MAX = 20.0
"""The most in any case: a member may have stopped."""
TICKS_IN_A_ROW_MAX = 3
"""Chained stateful operators settle within these; complete mode never falls quiet."""
BATCHES_OF_REST = 5
"""While a member's queries start, a mark comes when the last batch could have run so many times:
where both nodes share their cores, Spark starts several times as fast."""


class Pace:
    """Of one query's marks. Times in seconds."""

    def __init__(self, min_interval: float, idle_batch_interval: float) -> None:
        self._min_interval, self._tick_after = min_interval, idle_batch_interval
        self.cut_at = -math.inf
        # What the newest batch that was timed took, and its number.
        self._took, self._timed = 0.0, 0
        # How far the slowest member had come then; None when nobody was behind.
        self._slowest_then: int | None = None
        # The newest batch said that there is nothing to come but for new input.
        self.quiet = False
        self._ticks = 0

    def cut(self, now: float, slowest: int | None) -> None:
        self.cut_at, self._slowest_then = now, slowest

    def ended(self, now: float, batch: int) -> None:
        """Spark has finished ``batch``, which the newest mark ends."""
        if batch > self._timed and self.cut_at > -math.inf:
            self._took, self._timed = now - self.cut_at, batch

    def data_came(self) -> None:
        self._ticks, self.quiet = 0, False

    def ticked(self) -> None:
        self._ticks += 1

    @property
    def tick_at(self) -> float:
        """When a batch without new input is due; infinite where it would bring nothing."""
        if self.quiet or self._ticks >= TICKS_IN_A_ROW_MAX:
            return math.inf
        return self.cut_at + self._tick_after

    def rests_until(self, slowest: int | None, *, starting: bool, full: bool) -> float:
        """``slowest``: the batch that a member has come to which has some to catch up with;
        ``starting``: one has not said yet where it is; ``full``: the next batch cannot grow."""
        rest = 0.0 if full else self._rest(slowest, starting)
        return self.cut_at + max(self._min_interval, rest)

    def _rest(self, slowest: int | None, starting: bool) -> float:
        least, most = CATCH_UP_SECONDS
        if slowest is None:
            return min(most, max(least, BATCHES_OF_REST * self._took)) if starting else 0.0
        before = self._slowest_then
        if before is None or slowest >= before + CATCH_UP_BATCHES:
            return least
        return most if slowest >= before + CATCH_UP_BATCHES_MIN else CATCH_UP_SECONDS_MAX
