"""Set the share of CPU time that Spark gets on a busy host.

While Spark starts, it has a higher priority, because a node is of no use until Spark runs. Once a
batch has ended, Spark gets the lower priority ``query.nice``, so that acks and the lease come
first. Any process may lower its priority, but only a privileged process may raise it again. The
next start of Spark is a new process, which has the higher priority again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from ha_engine.system.procfs import pids, read_stat

START_NICE = 5
"""This niceness gives a third of the CPU time of a process that is not niced, see
docs/adr/0018-spark-lowers-its-cpu-priority.md."""
_AUTOGROUP = Path("/proc/self/autogroup")


class Weight:
    """The priority of this process and its descendants, which must be a session of their own."""

    def __init__(self, at_work: int) -> None:
        self._at_work = at_work
        self._now = min(START_NICE, at_work)
        self._stepping_back = threading.Lock()

    def starting(self) -> None:
        """Set the priority for Spark's start.

        Call ``starting`` before a process is started, which inherits the priority.
        """
        os.nice(self._now)
        _weigh_session(self._now)

    def batch_ended(self) -> None:
        """Lower the priority at the first call; later calls do nothing."""
        if self._now < self._at_work and self._stepping_back.acquire(blocking=False):
            _weigh_session(self._at_work)
            back = os.getpriority(os.PRIO_PROCESS, 0) + self._at_work - self._now
            weighed: set[int] = set()
            # A thread that starts meanwhile may inherit the old niceness, so the loop looks for new
            # threads.
            while threads := _threads_of_session() - weighed:
                for thread in threads:
                    with contextlib.suppress(OSError):  # it has ended
                        os.setpriority(os.PRIO_PROCESS, thread, back)
                weighed |= threads


def _weigh_session(nice: int) -> None:
    """Set the niceness of the whole session.

    If the kernel groups processes by session, the niceness of a process counts only within its
    session.
    """
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(nice), encoding="ascii")


def _threads_of_session() -> set[int]:
    """All threads of the session.

    On Linux each thread has its own niceness, inherited at its start.
    """
    session, found = os.getsid(0), set[int]()
    for pid in pids():
        with contextlib.suppress(OSError):
            if read_stat(pid).session == session:
                found |= {int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()}
    return found
