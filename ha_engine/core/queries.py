"""Whether each query may run, when it runs again after a failure, and when it is given up
(RULES.md#i15)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

DOUBLINGS_MAX = 30
"""Of a wait; a float holds no more than a thousand, and a node may fail for days."""

UNDECIDED = (
    "its definition changed since it last ran; set on_change to keep (its state goes on) or reset "
    "(its state is emptied and it starts at the present position)"
)


class QueryState(Enum):
    """WAITING for the process or for a retry, RUNNING, or FAILED until an operator acts."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What the application says of one query; ``on_change`` is keep, reset or undecided (None)."""

    name: str
    digest: str
    streams: frozenset[str]
    sinks: tuple[str, ...]
    on_change: str | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """``attempts_per_batch`` failures of one batch poison it; deaths of the whole process, whose
    guilt is unknown, need more of them. Times in seconds."""

    attempts_per_batch: int = 2
    deaths_per_batch: int = 5
    backoff_max: float = 30.0

    def backoff(self, failures: int) -> float:
        """No wait before the first restart, then doubling from one second."""
        doublings = min(failures - 2, DOUBLINGS_MAX)
        return 0.0 if failures <= 1 else min(self.backoff_max, 2.0**doublings)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query is not running: batch (0: before any), one line of reason, and when."""

    number: int
    reason: str


class QueryLife:
    """The life of one query on this node."""

    def __init__(self, query: str, policy: RestartPolicy) -> None:
        self.query, self.policy = query, policy
        self.state = QueryState.WAITING
        self.failure: Failure | None = None
        self.restart_at = -math.inf
        self.restarts = 0
        # Batches at which the query became FAILED (RULES.md#i15), for people.
        self.poisoned = 0
        self._failed_batch: int | None = None
        self._failures = 0
        self._deaths = 0
        self._hindrances = 0

    def runnable(self, now: float) -> bool:
        return now >= self.wake_at

    @property
    def wake_at(self) -> float:
        """When the query may run again; not while it runs, and not by itself after FAILED."""
        return self.restart_at if self.state is QueryState.WAITING else math.inf

    def started(self) -> None:
        self.state = QueryState.RUNNING

    def advanced(self) -> None:
        """A batch was admitted: whatever failed before is over."""
        self.failure, self._failed_batch = None, None
        self._failures = self._deaths = self._hindrances = 0

    def failed(self, now: float, number: int, reason: str) -> None:
        """The query itself ended with an error."""
        if self.state is QueryState.FAILED:
            return
        if number != self._failed_batch:
            self._failed_batch, self._failures, self._deaths = number, 0, 0
        self._failures += 1
        self._wait_or_give_up(now, number, reason, self._failures >= self.policy.attempts_per_batch)

    def hindered(self, now: float, number: int, reason: str) -> None:
        """The query ended for want of what it runs on: no batch is given up for that
        (RULES.md#i15)."""
        if self.state is QueryState.FAILED:
            return
        self._hindrances += 1
        self._wait(now, number, reason, self._hindrances + 1)

    def process_died(
        self, now: float, number: int | None, reason: str, *, by_host: bool = False
    ) -> None:
        """The process under the query died; only deaths while it ran one and the same batch count.

        A process that dies before it runs the query says nothing against the batch. Neither does
        one that the host killed.
        """
        if self.state is QueryState.FAILED:
            return
        if number is None or self.state is not QueryState.RUNNING:
            self.state = QueryState.WAITING
            return
        if by_host:
            self.hindered(now, number, reason)
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
        self.state, self.failure = QueryState.FAILED, Failure(0, reason)

    def revive(self) -> None:
        """An operator has acted."""
        self.state, self.restart_at = QueryState.WAITING, -math.inf
        self.advanced()
