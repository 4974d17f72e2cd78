"""Notice a call on a disk that does not return, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STUCK_SECONDS = 30.0
"""The node ends if its disk does not answer for this long, because the other node has a disk that
answers."""
LOOKS = 6
"""The number of checks in ``STUCK_SECONDS``, each run by the event loop. While a host is suspended,
its event loop runs no check, so its disk does not count as stuck."""


class StuckWatch:
    """Watches calls in other threads that follow one another.

    ``on_stuck`` is called on the event loop when calls have run for ``stuck_after`` seconds and
    none has returned.
    """

    def __init__(self, on_stuck: Callable[[], None], stuck_after: float = STUCK_SECONDS) -> None:
        self._on_stuck, self._pause = on_stuck, stuck_after / LOOKS
        self._look: asyncio.TimerHandle | None = None
        self._looks = self._running = 0

    @property
    def is_late(self) -> bool:
        """Whether calls run, and none has returned for longer than the first check takes."""
        return self._looks > 0

    def begin(self) -> None:
        """Note that a call begins now, or waits for an earlier one."""
        self._running += 1
        if self._running == 1:
            self._look_later()

    def end(self) -> None:
        """Note that a call has returned."""
        if self._look is not None:
            self._look.cancel()
        self._look, self._looks = None, 0
        self._running -= 1
        if self._running:
            self._look_later()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(self._pause, self._check)

    def _check(self) -> None:
        self._looks += 1
        if self._looks == LOOKS:
            self._on_stuck()
        else:
            self._look_later()
