"""What a node's outbox has of one query, as far as the core must know to plan, wait and trim."""

from __future__ import annotations

from collections import deque


class OutboxUsage:
    """The outbox began behind ``floor``, when the node started or where it went on without batches
    that never ran; ``last`` is the number that the next batch to admit must follow (RULES.md#r19).
    """

    def __init__(self) -> None:
        self.floor = self.last = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def begin_behind(self, floor: int) -> None:
        """No batch up to ``floor`` is there, or will be."""
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
        """Admitted and not yet published: batches, bytes."""
        return len(self._sizes), self._bytes
