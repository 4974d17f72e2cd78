"""The batches that operators have given up (RULES.md#i15)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Skips:
    """Pairs of query and batch, as records tell them."""

    def __init__(self, known: Iterable[tuple[str, int]] = ()) -> None:
        self.known = set(known)
        self._uncommitted: deque[tuple[int, str]] = deque()

    def take(self, sequence: int, query: str, number: int) -> None:
        self.known.add((query, number))
        self._uncommitted.append((sequence, query))

    def forget(self, query: str, through: int) -> None:
        """Nobody runs those batches again. The record of a skip may be read again behind them."""
        self.known = {skip for skip in self.known if skip[0] != query or skip[1] > through}

    def pending(self, query: str) -> bool:
        """Whether a failover could still discard one."""
        return any(skipped == query for _, skipped in self._uncommitted)

    def committed(self, committed: int) -> Iterator[str]:
        """Once: the queries of those that no failover discards any more."""
        while self._uncommitted and self._uncommitted[0][0] <= committed:
            yield self._uncommitted.popleft()[1]
