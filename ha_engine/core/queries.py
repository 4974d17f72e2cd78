"""Decide whether each query may run, when it restarts after a failure, and when it is FAILED
(RULES.md#i15)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

DOUBLINGS_MAX = 30
"""The highest number of doublings of a backoff. A node may fail for days, and a float overflows
after about a thousand doublings."""

ON_CHANGE_MISSING = (
    "the definition of this query changed since it last ran; set on_change to keep (it keeps its "
    "state), reset (it starts without state at the present position) or backfill (it makes its "
    "state again from the events that the journal has)"
)


class QueryState(Enum):
    """A query is WAITING for the query process or for its restart, RUNNING, or FAILED until an
    operator acts. It is on STANDBY while only the active runs it, and this node is not the active
    (RULES.md#r33)."""

    STANDBY = "standby"
    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"


_NOT_TRIED = (QueryState.FAILED, QueryState.STANDBY)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """One query of the application.

    ``on_change`` is keep, reset, backfill, or None if the application does not say. If ``warm``,
    only the active runs the query; otherwise every node does. ``partitions`` is the number of
    partitions with which the query's state begins, or None for the number in the config.
    """

    name: str
    digest: str
    streams: frozenset[str]
    sinks: tuple[str, ...]
    on_change: str | None = None
    warm: bool = False
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a batch may fail, and how long a query waits before each restart.

    A batch is poisoned after ``attempts_per_batch`` failures of its query, or ``deaths_per_batch``
    deaths of the query process. A death may have another cause than the batch, so the limit for
    deaths is higher. Times are in seconds.
    """

    attempts_per_batch: int = 2
    deaths_per_batch: int = 5
    backoff_max: float = 30.0

    def backoff(self, failures: int) -> float:
        """The seconds to wait before a restart: none after the first failure, then one second,
        doubled after each further failure."""
        doublings = min(failures - 2, DOUBLINGS_MAX)
        return 0.0 if failures <= 1 else min(self.backoff_max, 2.0**doublings)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a query: the number of its batch (0 before any batch), and one line of
    reason."""

    number: int
    reason: str


class QueryLife:
    """The state and the failures of one query on this node."""

    def __init__(self, query: str, policy: RestartPolicy, *, warm: bool = False) -> None:
        self.query, self.policy = query, policy
        self.state = QueryState.STANDBY if warm else QueryState.WAITING
        # The record that began the state which the query process was told to run.
        self.lineage: int | None = None
        self.failure: Failure | None = None
        self.restart_at = -math.inf
        self.restarts = 0
        # The number of times that the query became FAILED at a batch (RULES.md#i15), for status and
        # metrics.
        self.poisoned = 0
        # The batch in which the query process last died on this node. Neither a takeover nor a
        # retry resets it.
        self._died_in: int | None = None
        self._failed_batch: int | None = None
        self._failures = 0
        self._deaths = 0
        self._hindrances = 0

    def runnable(self, now: float) -> bool:
        return now >= self.wake_at

    @property
    def wake_at(self) -> float:
        """The moment at which the query may run again, or infinity while it runs or is FAILED."""
        return self.restart_at if self.state is QueryState.WAITING else math.inf

    def started(self, lineage: int) -> None:
        """Note that the query process was told to run the query with the state of ``lineage``."""
        self.state, self.lineage = QueryState.RUNNING, lineage

    def take_over(self) -> None:
        """Let a query on STANDBY run, since this node is the active now."""
        if self.state is QueryState.STANDBY:
            self.revive()

    def stand_by(self) -> None:
        """Put the query on STANDBY, since this node is no longer the active."""
        self.state = QueryState.STANDBY

    def superseded(self) -> None:
        """Note that the query, if it runs, must be started again."""
        if self.state is QueryState.RUNNING:
            self.state = QueryState.WAITING

    def advanced(self) -> None:
        """Forget earlier failures, since a batch was admitted."""
        self.failure, self._failed_batch = None, None
        self._failures = self._deaths = self._hindrances = 0

    def died_in(self, number: int) -> bool:
        """Whether the newest death of the query process on this node was in batch ``number``."""
        return number == self._died_in

    def failed(self, now: float, number: int, reason: str) -> None:
        """Note that the query itself ended with an error.

        Enough errors in one batch make the query FAILED.
        """
        if self.state in _NOT_TRIED:
            return
        if number != self._failed_batch:
            self._failed_batch, self._failures, self._deaths = number, 0, 0
        self._failures += 1
        self._wait_or_give_up(now, number, reason, self._failures >= self.policy.attempts_per_batch)

    def failed_by_host(self, now: float, number: int, reason: str) -> None:
        """Note that the host ended the query.

        A failure by the host never makes the query FAILED (RULES.md#i15).
        """
        if self.state in _NOT_TRIED:
            return
        self._hindrances += 1
        self._wait(now, number, reason, self._hindrances + 1)

    def process_died(
        self, now: float, number: int | None, reason: str, *, by_host: bool = False
    ) -> None:
        """Note a death of the query process. Enough deaths in the same batch make the query FAILED.

        A death does not count against the batch if the process had not started the query, or if the
        host caused the death.
        """
        if self.state in _NOT_TRIED:
            return
        if number is None or self.state is not QueryState.RUNNING:
            self.state = QueryState.WAITING
            return
        self._died_in = number
        if by_host:
            self.failed_by_host(now, number, reason)
            return
        if number != self._failed_batch:
            self._failed_batch, self._failures, self._deaths = number, 0, 0
        self._deaths += 1
        self._wait_or_give_up(now, number, reason, self._deaths >= self.policy.deaths_per_batch)

    def _wait_or_give_up(self, now: float, number: int, reason: str, give_up: bool) -> None:
        self._wait(now, number, reason, self._failures)
        if give_up:
            self.state = QueryState.FAILED
            self.poisoned += 1

    def _wait(self, now: float, number: int, reason: str, failures: int) -> None:
        self.failure = Failure(number, reason)
        self.restarts += 1
        self.restart_at = now + self.policy.backoff(failures)
        self.state = QueryState.WAITING

    def refused(self, reason: str) -> None:
        if self.state is QueryState.STANDBY:
            return
        self.state, self.failure = QueryState.FAILED, Failure(0, reason)

    def revive(self) -> None:
        """Let a query run again at once, with no failures counted."""
        self.state, self.restart_at = QueryState.WAITING, -math.inf
        self.advanced()
