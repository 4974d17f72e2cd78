"""Log each refusal between this node and another node once, and keep the refusal for status."""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

CURRENT_SECONDS = 10.0
"""Status drops a refusal after this time, because a refused node that still runs retries much
sooner."""
KEPT_MAX = 64


class Refusals:
    """The refusals of one node, for one event loop. ``clock`` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # For each node and reason, the time of the refusal; the latest refusal is the last entry.
        self._noted: dict[tuple[str, str], float] = {}

    def note(self, node: str, reason: str) -> None:
        now = self._clock()
        before = self._noted.pop((node, reason), None)
        if before is None or now - before > CURRENT_SECONDS:
            log.error("peer refused", peer=node, reason=reason)
        self._noted[node, reason] = now
        if len(self._noted) > KEPT_MAX:
            del self._noted[next(iter(self._noted))]

    def forget(self, node: str) -> None:
        self._noted = {key: when for key, when in self._noted.items() if key[0] != node}

    def current(self) -> dict[str, str]:
        """The latest reason for each node that was refused in the last CURRENT_SECONDS."""
        oldest = self._clock() - CURRENT_SECONDS
        return {node: reason for (node, reason), when in self._noted.items() if when >= oldest}
