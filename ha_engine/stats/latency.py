"""Quantiles of recent durations in constant memory, for people who look at the status now.

Prometheus does not use these quantiles. The histogram for Prometheus counts from the start of the
process, and has other buckets.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

WINDOW_SECONDS = 5.0
_STEP, _LEAST_SECONDS, _STEPS = 1.2, 0.0001, 70
BOUNDS = tuple(_LEAST_SECONDS * _STEP**step for step in range(_STEPS))
"""The upper bounds of buckets in seconds, from 0.1 ms to half a minute, in steps of 20 %."""


class RecentLatency:
    """The durations in the last one to two windows of WINDOW_SECONDS.

    The function ``clock`` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._now, self._before = _empty(), _empty()

    def observe(self, seconds: float) -> None:
        self._turn()
        self._now[bisect_left(BOUNDS, seconds, hi=_STEPS - 1)] += 1

    def quantiles(self, *of: float) -> tuple[float, ...] | None:
        """The quantiles of the recent durations in seconds, each at most 20 % too high.

        Returns None if no recent durations exist.
        """
        self._turn()
        counts = [now + before for now, before in zip(self._now, self._before, strict=True)]
        return tuple(_quantile(counts, one) for one in of) if any(counts) else None

    def _turn(self) -> None:
        age = self._clock() - self._began
        if age < WINDOW_SECONDS:
            return
        self._before = self._now if age < 2 * WINDOW_SECONDS else _empty()
        self._now, self._began = _empty(), self._clock()


def _empty() -> list[int]:
    return [0] * _STEPS


def _quantile(counts: Sequence[int], of: float) -> float:
    wanted, passed = of * sum(counts), 0
    for bound, count in zip(BOUNDS, counts, strict=True):
        passed += count
        if count and passed >= wanted:
            return bound
    return BOUNDS[-1]
