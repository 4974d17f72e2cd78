"""The events of one query that no mark covers yet, counted in bounded memory.

A query that is FAILED plans no batches, while events keep arriving. When the list of
records gets long, neighbouring records merge into one *run*. A batch includes a run as a whole or
not at all. The merge depends on the records alone, not on time. A node that replays the journal
therefore makes the same runs, and the marks in the journal end where runs end.
"""

from __future__ import annotations

from collections import deque

RUNS_MAX = 4096
"""The number of runs before the first merge; these runs take 400 kB. A merge leaves the newer half
of the runs as it is."""
RUNS_IN_A_BATCH = 8
"""A merged run has at most one eighth of the events that a batch may have. So a batch under load
has at least 7/8 of its limit, unless single records are larger than a run."""


class PendingEvents:
    """Runs of (last sequence, events), oldest first. ``events`` is the sum over all runs."""

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
        """Remove the runs that a mark at ``sequence`` covers.

        If the limits have changed, a mark may end within a run. A later mark removes such a run.
        """
        while self._runs and self._runs[0][0] <= sequence:
            self.events -= self._runs.popleft()[1]

    def begins_by(self, sequence: int) -> bool:
        """Whether a batch that ends at ``sequence`` has events."""
        return bool(self._runs) and self._runs[0][0] <= sequence

    def next_batch_end(self, committed: int, barrier: int | None = None) -> int | None:
        """The sequence at which the next batch ends: where it is full, at ``committed``, or at
        ``barrier``.

        The barrier is a committed sequence. A batch ends exactly at the barrier, even if no event
        of the query has that sequence.
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
        # If records are too large to merge, an attempt to merge at each new record would take
        # quadratic time.
        self._merge_above = max(self._runs_max, 2 * len(runs))
