"""Whether the start of a query process makes progress, and how long it may make none.

No deadline ends a start: a host that is slow, throttled or busy needs many times what another one
needs, and the next attempt repeats everything from the beginning. Only a start that does nothing
at all is ended. Time and readings arrive as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.system.process_group import Effort

CPU_SHARE_MIN = 0.01
"""Of one core, over the patience: a JVM that waits for ever uses less, one that works uses more."""
READ_BYTES_MIN = 1 << 20
LOOKS_IN_PATIENCE = 20
LOOK_SECONDS_MAX = 5.0
GAP_LOOKS = 3
"""Who looks so many times later than planned was stopped itself, and saw nothing meanwhile."""
DOUBLINGS_MAX = 4


@dataclass(slots=True)
class Patience:
    """Grows with each start in a row that was ended for want of progress."""

    base_seconds: float
    ended: int = 0

    @property
    def seconds(self) -> float:
        return self.base_seconds * float(1 << min(self.ended, DOUBLINGS_MAX))

    def start_ended(self) -> None:
        """For want of progress."""
        self.ended += 1

    def start_succeeded(self) -> None:
        self.ended = 0


class StartWatch:
    """Of one start, from ``now`` on. Invariant: ``_marked_at`` is the last moment of progress."""

    def __init__(self, patience_seconds: float, step: str, now: float) -> None:
        self.patience_seconds, self.step = patience_seconds, step
        self.pause_seconds = min(LOOK_SECONDS_MAX, patience_seconds / LOOKS_IN_PATIENCE)
        self._marked_at = self._looked_at = now
        self._mark = Effort(0.0, 0)

    def reached(self, step: str, now: float) -> None:
        """A new step is progress."""
        self.step, self._marked_at = step, now

    def is_stuck(self, effort: Effort, now: float) -> bool:
        """Whether the whole patience has passed without progress. To be asked each ``pause``."""
        gap, self._looked_at = now - self._looked_at, now
        if self._has_moved(effort) or gap > GAP_LOOKS * self.pause_seconds:
            self._mark, self._marked_at = effort, now
        return now - self._marked_at >= self.patience_seconds

    def _has_moved(self, effort: Effort) -> bool:
        # What a process did is lost with it, unless its parent waited for it.
        cpu = min(self._mark.cpu_seconds, effort.cpu_seconds)
        count = min(self._mark.bytes_read, effort.bytes_read)
        self._mark = Effort(cpu, count)
        return (
            effort.cpu_seconds - cpu >= CPU_SHARE_MIN * self.patience_seconds
            or effort.bytes_read - count >= READ_BYTES_MIN
        )

    def reason(self, next_patience_seconds: float) -> str:
        """Why the start was ended."""
        return (
            f"no progress for {self.patience_seconds:g} s while {self.step}: no CPU used, nothing "
            f"read; tried again with {next_patience_seconds:g} s"
        )
