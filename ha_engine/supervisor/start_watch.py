"""Decide whether the start of a query process makes progress, and how long it may make none.

No deadline ends a start. A slow, throttled or busy host needs many times as long as another one,
and the next attempt would repeat everything. The supervisor ends only a start that does nothing at
all. Time and readings arrive as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.system.process_group import Effort

CPU_SHARE_MIN = 0.01
"""A share of one core, over the patience. A JVM that waits for ever uses less, one that works uses
more."""
READ_BYTES_MIN = 1 << 20
LOOKS_IN_PATIENCE = 20
LOOK_SECONDS_MAX = 5.0
GAP_LOOKS = 3
"""A look that comes so many pauses late shows that the supervisor itself was stopped. It saw
nothing meanwhile, so that time does not count."""
DOUBLINGS_MAX = 4


@dataclass(slots=True)
class Patience:
    """How long a start may make no progress.

    It doubles with each start in a row that ended without progress.
    """

    base_seconds: float
    ended: int = 0

    @property
    def seconds(self) -> float:
        return self.base_seconds * float(1 << min(self.ended, DOUBLINGS_MAX))

    def start_ended(self) -> None:
        """Note that the supervisor ended a start without progress."""
        self.ended += 1

    def start_succeeded(self) -> None:
        self.ended = 0


class StartWatch:
    """Watches one start, from ``now`` on. Invariant: ``_marked_at`` is the last progress."""

    def __init__(self, patience_seconds: float, step: str, now: float) -> None:
        self.patience_seconds, self.step = patience_seconds, step
        self.pause_seconds = min(LOOK_SECONDS_MAX, patience_seconds / LOOKS_IN_PATIENCE)
        self._marked_at = self._looked_at = now
        self._mark = Effort(0.0, 0)

    def reached(self, step: str, now: float) -> None:
        """Note a new step of the start, which is progress."""
        self.step, self._marked_at = step, now

    def is_stuck(self, effort: Effort, now: float) -> bool:
        """Whether the whole patience has passed without progress. Call it each
        ``pause_seconds``."""
        gap, self._looked_at = now - self._looked_at, now
        if self._has_moved(effort) or gap > GAP_LOOKS * self.pause_seconds:
            self._mark, self._marked_at = effort, now
        return now - self._marked_at >= self.patience_seconds

    def _has_moved(self, effort: Effort) -> bool:
        # The readings of a process are lost with its end, unless its parent waited for it. So the
        # sums may fall.
        cpu = min(self._mark.cpu_seconds, effort.cpu_seconds)
        count = min(self._mark.bytes_read, effort.bytes_read)
        self._mark = Effort(cpu, count)
        return (
            effort.cpu_seconds - cpu >= CPU_SHARE_MIN * self.patience_seconds
            or effort.bytes_read - count >= READ_BYTES_MIN
        )

    def reason(self, next_patience_seconds: float) -> str:
        """Why the supervisor ended the start."""
        return (
            f"no progress for {self.patience_seconds:g} s while {self.step}: no CPU used, nothing "
            f"read; retrying with a limit of {next_patience_seconds:g} s"
        )
