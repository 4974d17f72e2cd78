"""A timer on the event loop, for a point in time that another object may change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

SLEEP_SECONDS_MIN = 0.001
"""The least wait, also for a moment in the past. A caller that always names one would otherwise
take a whole processor."""


class Alarm:
    """Calls ``ring`` when ``clock`` reaches the time that ``wake_at`` returns. If ``wake_at``
    returns infinity, the alarm never calls ``ring``."""

    def __init__(
        self, clock: Callable[[], float], wake_at: Callable[[], float], ring: Callable[[], None]
    ) -> None:
        self._clock, self._wake_at, self._ring = clock, wake_at, ring
        self._loop = asyncio.get_running_loop()
        self._runs = self._looking = False
        # The timer of the next call of ``wake_at``, and the time on ``clock`` when the timer fires.
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf

    def start(self) -> None:
        self._runs = True
        self.look_soon()

    def stop(self) -> None:
        self._runs = False
        if self._timer is not None:
            self._timer.cancel()

    def look_soon(self) -> None:
        """Call ``wake_at`` in the next turn of the event loop, because its result may have changed.
        Several calls of ``look_soon`` in one turn cause one call of ``wake_at``."""
        if self._runs and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Move the timer to the time that ``wake_at`` returns, unless the timer fires earlier or is
        already due.

        A timer that fires too early need not move, because it only calls ``wake_at`` again. A timer
        that is already due must not move, or inputs in quick succession would delay the alarm for
        ever.
        """
        self._looking = False
        now, wake_at = self._clock(), self._wake_at()
        if not self._runs or self._due_at <= max(now, wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = max(now, wake_at)
        self._timer = self._loop.call_later(max(SLEEP_SECONDS_MIN, wake_at - now), self._wake)

    def _wake(self) -> None:
        self._due_at, self._timer = math.inf, None
        if self._clock() >= self._wake_at():
            self._ring()
        self.look_soon()
