"""The use of a node's outbox by one query, as far as the core needs it to plan, wait and trim."""

from __future__ import annotations

from collections import deque


class OutboxUsage:
    """The outbox of one query has no batch up to ``floor``, and admits the one after ``last`` next
    (RULES.md#r19).

    ``floor`` is set at the node's start, and where the outbox passes batches that never run here.
    """

    def __init__(self) -> None:
        self.floor = self.last = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def begin_behind(self, floor: int) -> None:
        """Set the floor: the outbox has no batch up to there, and will have none."""
        self.floor, self.last = floor, max(floor, self.last)

    def add(self, number: int, size: int) -> None:
        self._sizes.append((number, size))
        self._bytes += size
        self.last = max(self.last, number)

    def trim(self, through: int) -> None:
        while self._sizes and self._sizes[0][0] <= through:
            self._bytes -= self._sizes.popleft()[1]
        self.last = max(self.last, through)

    @property
    def backlog(self) -> tuple[int, int]:
        """Batches and bytes that are admitted and not yet published."""
        return len(self._sizes), self._bytes
