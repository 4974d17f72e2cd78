"""The one query process of a node: which incarnation is wanted, and when the next may start."""

from __future__ import annotations

import math

from ha_engine.core.queries import RestartPolicy


class QueryProcess:
    """At most one incarnation at a time; a new one only after the old is certainly gone
    (RULES.md#r20)."""

    def __init__(self, owner: str, restarts: RestartPolicy) -> None:
        self._owner, self._restarts = owner, restarts
        self.starts = 0
        self._deaths = 0
        self._start_at = -math.inf
        self.incarnation: str | None = None
        self.attended = False
        self.last_death: str | None = None

    def start(self, now: float) -> str | None:
        """The incarnation to start now, if one is wanted and the backoff is over."""
        if now < self.wake_at:
            return None
        self.starts += 1
        self.incarnation = f"{self._owner}.{self.starts}"
        return self.incarnation

    @property
    def wake_at(self) -> float:
        """When the next incarnation may start; not while there is one."""
        return self._start_at if self.incarnation is None else math.inf

    def adopt(self, incarnation: str) -> None:
        self.incarnation = incarnation

    def attend(self, incarnation: str) -> bool:
        """False for a caller that is not the process this node knows (RULES.md#r19)."""
        self.attended = self.attended or incarnation == self.incarnation
        return incarnation == self.incarnation

    def gone(self, now: float, incarnation: str, reason: str) -> bool:
        if incarnation != self.incarnation:
            return False
        self.incarnation, self.attended, self.last_death = None, False, reason
        self._deaths += 1
        self._start_at = now + self._restarts.backoff(self._deaths)
        return True

    def proved_itself(self) -> None:
        """A batch came out: the next death starts with no backoff."""
        self._deaths = 0
