"""Ends this process when the processes that it works for are gone.

A Python source worker outlives a killed driver, and a driver outlives a killed supervisor. Neither
learns of that end from a socket that it does not read.
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
    """A pid with its start time, so that no process that reuses the pid is mistaken for this one.

    ``started`` counts the kernel's ticks since boot. A time of day would change with the clock, so
    two processes would read different starts of a third.
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
    """Exit when the process ``parent`` (text of a ProcessId) ends, at once if it is gone already.

    Without ``parent``, watch the parent that the kernel names now. If the real parent died before
    that, the kernel names init, which never ends.
    """
    known = () if parent is None else (ProcessId.parse(parent),)
    if not all(one.is_alive() for one in known):
        _exit_now()
    end_with_parent(*known)


def end_with_parent(*others: ProcessId, end: Callable[[], None] | None = None) -> threading.Thread:
    """Watch the parent and ``others``; call ``end`` (default: exit now) when one of them goes.

    The kernel wakes the thread, so an idle process pays nothing for it.
    """
    parent = os.getppid()
    ends = _ends_of(parent, *(other.pid for other in others))
    # A process may have ended before its pid was opened, and another one may have its pid.
    gone = os.getppid() != parent or not all(other.is_alive() for other in others)

    def watch() -> None:
        if ends is not None and not gone:
            ends.poll()
        (end or _exit_now)()

    thread = threading.Thread(target=watch, name="parent watchdog", daemon=True)
    thread.start()
    return thread


def _ends_of(*pids: int) -> select.poll | None:
    """A poll for the first of ``pids`` that ends; None if one has ended.

    The descriptors stay open as long as this process lives. A parent outside of this pid namespace
    has pid 0, which is not polled.
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
