"""The schedule of events in true time; in the simulation only the judges read this clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Deed = Callable[[], None]


class Agenda:
    """Deeds by true time, in seconds; those of one moment run in the order of their insertion."""

    def __init__(self) -> None:
        self.now = 0.0
        self._deeds: list[tuple[float, int, Deed]] = []
        self._order = count()

    def at(self, when: float, deed: Deed) -> None:
        heapq.heappush(self._deeds, (max(when, self.now), next(self._order), deed))

    def after(self, delay: float, deed: Deed) -> None:
        self.at(self.now + delay, deed)

    def run_until(self, end: float) -> None:
        while self._deeds and self._deeds[0][0] <= end:
            self.now, _, deed = heapq.heappop(self._deeds)
            deed()
        self.now = end
