"""The query process of a node: its current incarnation, and when the next incarnation may start."""

from __future__ import annotations

import math

from ha_engine.core.queries import RestartPolicy


class QueryProcessState:
    """The state of the query process.

    A new incarnation starts only once the old one is certainly gone (RULES.md#r20).
    """

    def __init__(self, owner: str, restarts: RestartPolicy) -> None:
        self._owner, self._restarts = owner, restarts
        self.starts = 0
        self._deaths = 0
        self._start_at = -math.inf
        self.incarnation: str | None = None
        self.connected = False
        self.last_death: str | None = None

    def start(self, now: float) -> str | None:
        """The incarnation to start now, or None while an incarnation exists or the backoff
        lasts."""
        if now < self.wake_at:
            return None
        self.starts += 1
        self.incarnation = f"{self._owner}.{self.starts}"
        return self.incarnation

    @property
    def wake_at(self) -> float:
        """The moment at which the next incarnation may start, or infinity while an incarnation
        exists."""
        return self._start_at if self.incarnation is None else math.inf

    def adopt(self, incarnation: str) -> None:
        self.incarnation = incarnation

    def connect(self, incarnation: str) -> bool:
        """Note that a query process asks which queries to run.

        Return False if the process is not the current incarnation (RULES.md#r19).
        """
        self.connected = self.connected or incarnation == self.incarnation
        return incarnation == self.incarnation

    def ended(self, now: float, incarnation: str, reason: str) -> bool:
        if incarnation != self.incarnation:
            return False
        self.incarnation, self.connected, self.last_death = None, False, reason
        self._deaths += 1
        self._start_at = now + self._restarts.backoff(self._deaths)
        return True

    def proved_itself(self) -> None:
        """Note that a batch was admitted, so that a restart after the next death has no backoff."""
        self._deaths = 0
