"""Bring every node to the deployed application, one after the other (RULES.md#r37).

Only a new process can run another application. So each follower restarts first, while the holder
takes events. The holder then hands the lease to a follower that has restarted, and restarts too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ha_engine.core.deadlines import ahead
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.types import Member

FOLLOWERS_SECONDS_MAX = 60.0
"""A holder waits so long for a follower that restarts, and then restarts without it."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """The holder waits since ``since`` for a follower. ``any`` says whether one was in sync."""

    since: float
    any: bool


class Rollout:
    """Decides which member may be in sync, and who holds the lease next.

    ``archives`` has the archive that each peer ran when it connected last, or None for a file.
    """

    def __init__(self, deployment: Deployment, journal: JournalState) -> None:
        self._deployment, self._journal = deployment, journal
        self.archives: dict[str, str | None] = {}
        self._wait: _Wait | None = None

    @property
    def is_due(self) -> bool:
        """Whether this process must end, because it runs a former application."""
        return self._deployment.is_superseded(self._journal.committed)

    def fits(self, peer: str) -> bool:
        """Whether ``peer`` runs the application that the group should run.

        Another one may not be in sync: it is about to restart, and no ack shall wait for it.
        """
        wanted = self._deployment.archive_at(self._journal.committed)
        return self.archives.get(peer, wanted) == wanted

    def next_holder(self, now: float, me: Member, in_sync: tuple[Member, ...]) -> str | None:
        """The node that shall hold the lease instead of this process, or None while the holder
        waits. It is this node if no other is there; then its next process acquires the lease."""
        others = [member.node for member in in_sync if member != me]
        if self._wait is None:
            self._wait = _Wait(now, any=bool(others))
        ready = next(filter(self.fits, others), None)
        if ready is None and now >= self._ends_at:
            return me.node
        return ready

    @property
    def _ends_at(self) -> float:
        wait = self._wait
        if wait is None:
            return math.inf
        return wait.since + (FOLLOWERS_SECONDS_MAX if wait.any else 0.0)

    def wake_at(self, now: float) -> float:
        """The moment at which ``next_holder`` has another answer by time alone."""
        return ahead(now, self._ends_at)
