"""One timer on the event loop, for the moment that somebody else names again and again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

SLEEP_SECONDS_MIN = 0.001
"""Before a moment that has passed already: who always names one would take a whole processor."""


class Alarm:
    """Calls ``ring`` once ``clock`` reads what ``wake_at`` answers; infinite: never."""

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
        """The moment may be another one; asked once in each turn of the event loop."""
        if self._runs and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """A timer that fires too early stays: it only looks again. One that is due stays too, or
        inputs in quick succession would put the alarm off for ever."""
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
