"""Bring every node to the deployed application, one after the other (RULES.md#r36).

Only a new process can run another application. So each follower restarts first, while the holder
takes events. The holder then hands the lease to a follower that has restarted, and restarts too.
"""

from __future__ import annotations

import math

from ha_engine.core.deadlines import ahead
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.types import Member

FOLLOWERS_SECONDS_MAX = 60.0
"""A holder waits so long for a follower that restarts, and then restarts without it."""
AGAIN_SECONDS = 5.0


class Rollout:
    """Decides which member may be in sync, and who holds the lease next.

    ``archives`` has the archive that each peer ran when it connected last, or None for a file.
    """

    def __init__(self, deployment: Deployment, journal: JournalState) -> None:
        self._deployment, self._journal = deployment, journal
        self.archives: dict[str, str | None] = {}
        # The holder hands the lease over at this moment at the latest, and not before the other.
        self._alone_at = math.inf
        self._again_at = -math.inf

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

    def begin(self, now: float, me: Member, in_sync: tuple[Member, ...]) -> None:
        """Begin to wait for a follower that restarts, if one is in sync."""
        if self._alone_at == math.inf:
            followers = any(member != me for member in in_sync)
            self._alone_at = now + (FOLLOWERS_SECONDS_MAX if followers else 0.0)

    def next_holder(self, now: float, me: Member, in_sync: tuple[Member, ...]) -> str | None:
        """The node that shall hold the lease instead of this process, or None while the holder
        waits. It is this node if no other is there; then its next process acquires the lease."""
        if now < self._again_at:
            return None
        others = (member.node for member in in_sync if member != me)
        ready = next(filter(self.fits, others), None)
        return me.node if ready is None and now >= self._alone_at else ready

    def handover_failed(self, now: float) -> None:
        """Note that the lease could not be handed over. The next attempt waits, since producers
        wait during an attempt."""
        self._again_at = now + AGAIN_SECONDS

    def wake_at(self, now: float) -> float:
        """The moment at which ``next_holder`` has another answer by time alone."""
        return ahead(now, self._alone_at, self._again_at)
