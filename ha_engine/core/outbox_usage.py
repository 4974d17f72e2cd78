"""The part of a node's outbox that one query uses, as the core needs it to plan marks and to
trim."""

from __future__ import annotations

from collections import deque


class OutboxUsage:
    """The outbox of one query. The outbox has no batch up to ``floor``, and next admits the batch
    after ``last`` (RULES.md#r19).

    ``floor`` is set when the node starts, and when the outbox passes batches that this node never
    runs.
    """

    def __init__(self) -> None:
        self.floor = self.last = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def begin_after(self, floor: int) -> None:
        """Set the floor. The outbox has no batch up to the floor, and will get none."""
        self.floor, self.last = floor, max(floor, self.last)

    def add(self, number: int, size: int) -> None:
        """Note an admitted batch.

        After a reset the query makes batches again that the outbox has: they take no further space.
        """
        if number <= self.last:
            return
        self._sizes.append((number, size))
        self._bytes += size
        self.last = max(self.last, number)

    def trim(self, through: int) -> None:
        while self._sizes and self._sizes[0][0] <= through:
            self._bytes -= self._sizes.popleft()[1]
        self.last = max(self.last, through)

    @property
    def backlog(self) -> tuple[int, int]:
        """The number of batches that are admitted and not yet published, and their total bytes."""
        return len(self._sizes), self._bytes
