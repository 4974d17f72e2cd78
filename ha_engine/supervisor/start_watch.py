"""Decide whether the start of a query process makes progress, and how long to wait for progress.

No deadline ends a start, because a slow, throttled or busy host needs many times as long as another
host. The next attempt would repeat all work of the ended start. The supervisor ends only a start
that makes no progress at all. The caller passes the time and the readings as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ha_engine.system.process_group import Effort

CPU_SHARE_MIN = 0.01
"""The share of one core that counts as progress. A JVM that waits for ever uses less, and a JVM
that works uses more."""
READ_BYTES_MIN = 1 << 20
LOOKS_IN_PATIENCE = 20
LOOK_SECONDS_MAX = 5.0
GAP_LOOKS = 3
"""A check that comes so many pauses late shows that the supervisor itself was stopped. The
supervisor saw no progress meanwhile, so that time does not count."""
DOUBLINGS_MAX = 4


@dataclass(slots=True)
class Patience:
    """How long a start of the query process may make no progress.

    The time doubles with each start in a row that the supervisor ended without progress.
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
    """Watches one start of the query process, from ``now`` on.

    Invariant: ``_marked_at`` is the time of the last progress.
    """

    def __init__(self, patience_seconds: float, step: str, now: float) -> None:
        self.patience_seconds, self.step = patience_seconds, step
        self.pause_seconds = min(LOOK_SECONDS_MAX, patience_seconds / LOOKS_IN_PATIENCE)
        self._marked_at = self._looked_at = now
        self._mark = Effort(0.0, 0)

    def reached(self, step: str, now: float) -> None:
        """Note that the start reached a new step, which counts as progress."""
        self.step, self._marked_at = step, now

    def is_stuck(self, effort: Effort, now: float) -> bool:
        """Whether ``patience_seconds`` have passed without progress.

        Call ``is_stuck`` every ``pause_seconds``.
        """
        gap, self._looked_at = now - self._looked_at, now
        if self._has_moved(effort) or gap > GAP_LOOKS * self.pause_seconds:
            self._mark, self._marked_at = effort, now
        return now - self._marked_at >= self.patience_seconds

    def _has_moved(self, effort: Effort) -> bool:
        # The sums of all processes may fall, because the readings of an ended process are lost
        # unless its parent waited for it.
        cpu = min(self._mark.cpu_seconds, effort.cpu_seconds)
        count = min(self._mark.bytes_read, effort.bytes_read)
        self._mark = Effort(cpu, count)
        return (
            effort.cpu_seconds - cpu >= CPU_SHARE_MIN * self.patience_seconds
            or effort.bytes_read - count >= READ_BYTES_MIN
        )

    def reason(self, next_patience_seconds: float) -> str:
        """Why the supervisor ended the start of the query process."""
        return (
            f"no progress for {self.patience_seconds:g} s while {self.step}: no CPU used, nothing "
            f"read; retrying with a limit of {next_patience_seconds:g} s"
        )
