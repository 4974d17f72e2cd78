"""When the gate must refuse events because of what lies behind it: slow queries, or a full disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ha_engine.config.quantities import format_size
from ha_engine.errors import Backpressure

LOOK_EVERY_SECONDS = 0.2
DISK_RETRY_SECONDS = 5.0


@dataclass
class NodeBacklog:
    """``waiting`` counts the events that no batch has taken in yet; sizes in bytes.

    The last ``min_free`` bytes of the disk are for marks, batches and what follows from events
    that are accepted already (R30).
    """

    waiting: Callable[[], int]
    waiting_max: int
    directory: Path
    min_free: int
    _looked_at: float = field(default=float("-inf"), init=False)
    _free: int = field(default=0, init=False)

    def refusal(self) -> Backpressure | None:
        """What to answer now, None when events may come."""
        waiting = self.waiting()
        if waiting >= self.waiting_max:
            return Backpressure(f"{waiting} events wait for their batch, {self.waiting_max} may")
        if self._free_bytes() < self.min_free:
            return Backpressure(
                f"the disk of {self.directory} has less than {format_size(self.min_free)} left",
                DISK_RETRY_SECONDS,
            )
        return None

    def _free_bytes(self) -> int:
        now = time.monotonic()
        if now >= self._looked_at + LOOK_EVERY_SECONDS:
            found = os.statvfs(self.directory)
            self._free, self._looked_at = found.f_bavail * found.f_frsize, now
        return self._free
