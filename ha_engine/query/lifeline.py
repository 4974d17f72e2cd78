"""Ends this process when the processes that it works for are gone.

A Python source worker outlives a killed driver, and a driver a killed supervisor; neither learns
it from a socket that it is not reading.
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
    """A pid with its start, so that a reused pid is not taken for the process.

    ``started`` counts the kernel's ticks since boot: a time of day would change with the clock, and
    two processes would disagree about a third.
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
    """Exit now when the process ``parent`` (text of a ProcessId) is gone, and once it goes.

    Without it, the parent is whatever the kernel says by now: one that died before this process
    looked would leave the keeping of it to init, for ever.
    """
    known = () if parent is None else (ProcessId.parse(parent),)
    if not all(one.is_alive() for one in known):
        _exit_now()
    end_with_parent(*known)


def end_with_parent(*others: ProcessId, end: Callable[[], None] | None = None) -> threading.Thread:
    """Watch the parent and ``others``; call ``end`` (default: exit now) when one of them goes.

    The kernel wakes the thread, so that a process at rest costs nothing for it.
    """
    parent = os.getppid()
    ends = _ends_of(parent, *(other.pid for other in others))
    # What was opened may be a process that has the pid of one that is gone.
    gone = os.getppid() != parent or not all(other.is_alive() for other in others)

    def watch() -> None:
        if ends is not None and not gone:
            ends.poll()
        (end or _exit_now)()

    thread = threading.Thread(target=watch, name="lifeline", daemon=True)
    thread.start()
    return thread


def _ends_of(*pids: int) -> select.poll | None:
    """Polls for the first of ``pids`` that ends; None where one has ended. Their descriptors stay
    open as long as this process lives. A parent outside of this pid namespace is 0."""
    ends = select.poll()
    try:
        for pid in filter(None, pids):
            ends.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return None
    return ends


def _exit_now() -> None:
    os._exit(ORPHANED_EXIT_CODE)
