"""What share of the processor Spark gets where the host is short of it.

While it starts it yields little, since a node whose Spark does not come up serves nobody. Once a
batch has ended it steps back as far as ``query.nice`` says, behind acks and the lease. Any process
may step back, and only a privileged one may come forward: the next start is a new process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from ha_engine.system.procfs import pids, read_stat

START_NICE = 5
"""A third of what an equal competitor gets, see docs/adr/0018-spark-steps-back-once-it-runs.md."""
_AUTOGROUP = Path("/proc/self/autogroup")


class Weight:
    """Of this process and all that it starts, which must be a session of their own."""

    def __init__(self, at_work: int) -> None:
        self._at_work = at_work
        self._now = min(START_NICE, at_work)
        self._stepping_back = threading.Lock()

    def starting(self) -> None:
        """Call it before anything is started: what is, inherits it."""
        os.nice(self._now)
        _weigh_session(self._now)

    def batch_ended(self) -> None:
        """The first one counts."""
        if self._now < self._at_work and self._stepping_back.acquire(blocking=False):
            _weigh_session(self._at_work)
            back = os.getpriority(os.PRIO_PROCESS, 0) + self._at_work - self._now
            weighed: set[int] = set()
            # A thread that is made meanwhile inherits what its maker had: it is found next time.
            while threads := _threads_of_session() - weighed:
                for thread in threads:
                    with contextlib.suppress(OSError):  # it has ended
                        os.setpriority(os.PRIO_PROCESS, thread, back)
                weighed |= threads


def _weigh_session(nice: int) -> None:
    """Where the kernel groups processes by session, theirs counts within a session only."""
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(nice), encoding="ascii")


def _threads_of_session() -> set[int]:
    """Niceness is of a thread on Linux, and each one inherits that of its maker."""
    session, found = os.getsid(0), set[int]()
    for pid in pids():
        with contextlib.suppress(OSError):
            if read_stat(pid).session == session:
                found |= {int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()}
    return found
