"""End this process when a process that it works for has ended.

A Python source worker outlives a killed driver, and a driver outlives a killed supervisor. A worker
or driver that does not read its socket does not learn of the other's end.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ha_engine.system.procfs import read_stat

ORPHANED_EXIT_CODE = 3


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid with the start time of its process, since a later process may have the same pid.

    ``started`` counts the kernel's ticks since boot. A time of day would not do: after a change of
    the clock, two processes would read different start times of a third.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises ProcessLookupError."""
        return cls(pid, read_stat(pid).started)

    @classmethod
    def of_this(cls) -> ProcessId:
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, text: str) -> ProcessId:
        pid, _, started = text.partition("@")
        return cls(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"

    def is_alive(self) -> bool:
        try:
            found = read_stat(self.pid)
        except ProcessLookupError:
            return False
        return found.is_alive and found.started == self.started


def end_without(parent: str | None) -> None:
    """Exit when the process ``parent`` (text of a ProcessId) ends, or at once if it has ended.

    Without ``parent``, watch the parent that the kernel names now. If the real parent has died
    already, the kernel names init, which never ends.
    """
    known = () if parent is None else (ProcessId.parse(parent),)
    if not all(one.is_alive() for one in known):
        _exit_now()
    end_with_parent(*known)


def end_with_parent(*others: ProcessId, end: Callable[[], None] | None = None) -> threading.Thread:
    """Watch the parent and ``others``; call ``end`` (by default, exit) when one of them ends.

    The kernel wakes the watching thread, so the watch costs an idle process no CPU time.
    """
    parent = os.getppid()
    ends = _ends_of(parent, *(other.pid for other in others))
    # A process may have ended before its pid was opened, and another process may now have the pid.
    gone = os.getppid() != parent or not all(other.is_alive() for other in others)

    def watch() -> None:
        if ends is not None and not gone:
            ends.poll()
        (end or _exit_now)()

    thread = threading.Thread(target=watch, name="parent watchdog", daemon=True)
    thread.start()
    return thread


def _ends_of(*pids: int) -> select.poll | None:
    """A poll for the first of ``pids`` that ends, or None if one of them has ended already.

    The descriptors of the pids stay open as long as this process lives. A parent outside of this
    pid namespace has pid 0, which is not polled.
    """
    ends = select.poll()
    try:
        for pid in filter(None, pids):
            ends.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return None
    return ends


def _exit_now() -> None:
    os._exit(ORPHANED_EXIT_CODE)
