"""The batches that operators have skipped (RULES.md#i15)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Skips:
    """Pairs of query and batch from the journal's skip records."""

    def __init__(self, known: Iterable[tuple[str, int]] = ()) -> None:
        self.known = set(known)
        self._uncommitted: deque[tuple[int, str]] = deque()

    def apply(self, sequence: int, query: str, number: int) -> None:
        self.known.add((query, number))
        self._uncommitted.append((sequence, query))

    def forget(self, query: str, through: int) -> None:
        """Forget the skips of batches up to ``through``, which no query runs again.

        A replay may still read the skip record of such a batch, even after the marks of later
        batches.
        """
        self.known = {skip for skip in self.known if skip[0] != query or skip[1] > through}

    def pending(self, query: str) -> bool:
        """Whether a skip of ``query`` is not committed yet, so that a failover could discard it."""
        return any(skipped == query for _, skipped in self._uncommitted)

    def committed(self, committed: int) -> Iterator[str]:
        """The queries whose skips have become committed; each skip is yielded once."""
        while self._uncommitted and self._uncommitted[0][0] <= committed:
            yield self._uncommitted.popleft()[1]
