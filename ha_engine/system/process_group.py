"""Find the processes that belong to a query process, and kill all of them (RULES.md#r20).

PySpark's daemon creates process groups of its own, and PySpark's source runner outlives the driver.
Neither a process group nor a parent's pid therefore identifies all processes of a query process. A
process belongs to a query process if it is in the same session, or has the same marker in its
environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass

from ha_engine.errors import QueryProcessFailed
from ha_engine.system.procfs import (
    TICKS_A_SECOND,
    pids,
    read_bytes_read,
    read_environment,
    read_stat,
)

MARKER = "HA_ENGINE_QUERY_OF"
"""Environment variable of every process below a query process; its value is the data directory."""

KILL_SECONDS_MAX = 30.0
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.005, 0.2
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Effort:
    """The work that a set of processes has done: CPU time and bytes read."""

    cpu_seconds: float
    bytes_read: int


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, or now if ``parent`` has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def members(home: str, session: int | None) -> list[int]:
    """Pids of the living processes that are in ``session`` or have the marker ``home``."""
    marked = f"{MARKER}={home}".encode()
    return [pid for pid in pids() if _belongs(pid, marked, session)]


def _belongs(pid: int, marked: bytes, session: int | None) -> bool:
    try:
        stat = read_stat(pid)
        if not stat.is_alive:
            return False
        return stat.session == session or marked in read_environment(pid).split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False


def effort(home: str, session: int) -> Effort:
    """The work of the living processes that are in ``session`` or have the marker ``home``."""
    ticks, count = 0, 0
    for pid in members(home, session):
        try:
            ticks += read_stat(pid).cpu_ticks
            count += read_bytes_read(pid)
        except OSError:  # it has ended since
            continue
    return Effort(ticks / TICKS_A_SECOND, count)


def kill_session(home: str, session: int | None) -> None:
    """Kill the processes in ``session`` and those with the marker ``home``, until none is left.

    Raises QueryProcessFailed if a process does not die in time.
    """
    pause, give_up_at = _PAUSE_SECONDS, time.monotonic() + KILL_SECONDS_MAX
    while found := members(home, session):
        if time.monotonic() > give_up_at:
            raise QueryProcessFailed(
                f"processes {found} of an earlier query process cannot be killed"
            )
        kill_all(found)
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def kill_all(found: list[int]) -> None:
    """Kill the process of each pid. A process that has ended meanwhile is no error."""
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
