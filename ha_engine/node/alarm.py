"""One timer on the event loop, for a moment that another object keeps changing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

SLEEP_SECONDS_MIN = 0.001
"""The least wait, also for a moment in the past. A caller that always names one would otherwise
take a whole processor."""


class Alarm:
    """Calls ``ring`` once ``clock`` reaches the moment that ``wake_at`` returns; inf: never."""

    def __init__(
        self, clock: Callable[[], float], wake_at: Callable[[], float], ring: Callable[[], None]
    ) -> None:
        self._clock, self._wake_at, self._ring = clock, wake_at, ring
        self._loop = asyncio.get_running_loop()
        self._runs = self._looking = False
        # The next look, and when it is due on ``clock``.
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
        """Read the moment again, once in each turn of the event loop: it may have changed."""
        if self._runs and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Move the timer to the new moment, unless it fires earlier or is due already.

        A timer that fires too early only looks again, so it stays. One that is due stays too:
        otherwise inputs in quick succession would delay the alarm for ever.
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
