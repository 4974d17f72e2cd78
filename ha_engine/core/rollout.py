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

AGAIN_SECONDS = 5.0
"""Producers wait during an attempt to hand the lease over, so a failed one is not repeated at
once."""


class Rollout:
    """Decides which member may be in sync, and who holds the lease next.

    ``archives`` has the archive that each peer ran when it connected last, or None for a file.
    """

    def __init__(self, deployment: Deployment, journal: JournalState) -> None:
        self._deployment, self._journal = deployment, journal
        self.archives: dict[str, str | None] = {}
        # The number of the deployment that began last, and whether a follower was in sync then.
        self._began: tuple[int, bool] | None = None
        self._again_at = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether this process must end, because it runs a former application."""
        return self._deployment.is_superseded(self._journal.committed)

    @property
    def awaits_follower(self) -> bool:
        """Whether the holder waits without a limit for a follower that runs the deployment."""
        return self.is_due and self._began is not None and self._began[1]

    def fits(self, peer: str) -> bool:
        """Whether ``peer`` runs the application that the group should run.

        Another one may not be in sync: it is about to restart, and no ack shall wait for it.
        """
        wanted = self._deployment.archive_at(self._journal.committed)
        return self.archives.get(peer, wanted) == wanted

    def begin(self, me: Member, in_sync: tuple[Member, ...]) -> None:
        """Note whether a follower is in sync when the deployment is committed."""
        deployed = self._deployment.versions.deployed
        number = 0 if deployed is None else deployed.number
        if self._began is None or self._began[0] != number:
            self._began = number, any(member != me for member in in_sync)

    def next_holder(self, now: float, me: Member, ready: tuple[Member, ...]) -> str | None:
        """The node that shall hold the lease instead of this process, or None while the holder
        waits. ``ready`` are the members in sync that are connected.

        Without a follower at the beginning it is this node, whose next process acquires the lease.
        With one, the holder waits for it without a limit: a follower that does not come back may
        have failed to start the application, and then this node must not try too.
        """
        if now < self._again_at or self._began is None:
            return None
        others = (member.node for member in ready if member != me)
        follower = next(filter(self.fits, others), None)
        return me.node if follower is None and not self._began[1] else follower

    def handover_failed(self, now: float) -> None:
        """Note that the lease could not be handed over."""
        self._again_at = now + AGAIN_SECONDS

    def wake_at(self, now: float) -> float:
        """The moment at which ``next_holder`` has another answer by time alone."""
        return ahead(now, self._again_at)
