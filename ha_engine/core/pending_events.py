"""The events of one query that no mark covers yet, in bounded memory however many there are.

A query that has FAILED, or that nobody decided about, cuts nothing while events go on to arrive. So
when the list gets long, neighbours become one *run*, which a batch then takes whole or not at all.
What is merged follows from the records alone and not from time, so that a node that reads the
journal again has the same runs, and the marks in it end where runs end.
"""

from __future__ import annotations

from collections import deque

RUNS_MAX = 4096
"""Runs before the first merge: 400 kB of them. The newer half is left as it came."""
RUNS_IN_A_BATCH = 8
"""A batch under load is at least so nearly full: 7/8 of its limit, unless records are larger."""


class PendingEvents:
    """Runs of (last sequence, events), oldest first. ``events`` is their sum."""

    def __init__(self, batch_events_max: int, runs_max: int = RUNS_MAX) -> None:
        self.events = 0
        self._runs: deque[tuple[int, int]] = deque()
        self._batch_events_max, self._runs_max = batch_events_max, runs_max
        self._merge_above = runs_max

    def __len__(self) -> int:
        return len(self._runs)

    def append(self, sequence: int, events: int) -> None:
        self._runs.append((sequence, events))
        self.events += events
        if len(self._runs) > self._merge_above:
            self._merge()

    def drop_through(self, sequence: int) -> None:
        """What a mark covers goes; a run that it ends within, under other limits, goes later."""
        while self._runs and self._runs[0][0] <= sequence:
            self.events -= self._runs.popleft()[1]

    def begins_by(self, sequence: int) -> bool:
        """Whether a batch that ends there has events."""
        return bool(self._runs) and self._runs[0][0] <= sequence

    def cut(self, committed: int, barrier: int | None = None) -> int | None:
        """Where the next batch ends: full, at the end of what is committed, or at the ``barrier``.

        That lies in what is committed; a batch ends there though no event does.
        """
        through, total, limit = None, 0, committed if barrier is None else barrier
        for sequence, events in self._runs:
            if sequence > limit:
                break
            if through is not None and total + events > self._batch_events_max:
                return through
            through, total = sequence, total + events
        return through if barrier is None else barrier

    def _merge(self) -> None:
        run_events_max = self._batch_events_max // RUNS_IN_A_BATCH
        older = len(self._runs) - self._runs_max // 2
        runs: deque[tuple[int, int]] = deque()
        for number, (sequence, events) in enumerate(self._runs):
            if 0 < number < older and runs[-1][1] + events <= run_events_max:
                events += runs.pop()[1]
            runs.append((sequence, events))
        self._runs = runs
        # Where records are too large to merge, trying at each of them would cost their square.
        self._merge_above = max(self._runs_max, 2 * len(runs))
