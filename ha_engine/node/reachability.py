"""Decide when to log that the database is unreachable, and when to log that it answers again.

On a slow host, single calls on the lease row are late every few seconds. A log line for each late
call would hide other lines. The metric ``ha_engine_database_failures`` counts every
failed or late call.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

HELD_SECONDS = 10.0
"""The log says that the database answers once no call has failed for so long."""


class Reachability:
    """Logs whether the database is reachable, from the outcome of each call on the lease row."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The time of the first failed call after the last success in the log, and the number of
        # failed calls since then.
        self._unreachable_since: float | None = None
        self._failures = 0
        self._failed_at = 0.0

    def failed(self, reason: str) -> None:
        now = self._clock()
        if self._unreachable_since is None:
            self._unreachable_since, self._failures = now, 0
            log.warning("database unreachable, retrying", reason=reason)
        self._failures, self._failed_at = self._failures + 1, now

    def answered(self) -> None:
        since, now = self._unreachable_since, self._clock()
        if since is not None and now >= self._failed_at + HELD_SECONDS:
            seconds = round(self._failed_at - since, 1)
            log.info("database answers again", failures=self._failures, seconds=seconds)
            self._unreachable_since = None
