"""Which processes belong to a query process, and how to be sure that none is left (R20).

PySpark's daemon makes process groups of its own and its source runner outlives the driver, so
neither the process group nor the pid says enough: a process belongs if it is in the session, or if
it carries the marker that the query process was started with.
"""

from __future__ import annotations

import ctypes
import os
import signal

import psutil
from tenacity import retry, retry_if_result, stop_after_delay, wait_exponential

from ha_engine.errors import QueryProcessFailed

MARKER = "HA_ENGINE_QUERY_OF"
"""Environment variable of every process below a query process; its value is the data directory."""

KILL_SECONDS_MAX = 30.0
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when ``parent`` ends; it may have ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def members(home: str, session: int | None) -> list[int]:
    """Pids of the living processes of ``session`` and of those marked with ``home``."""
    return [p.pid for p in psutil.process_iter() if _belongs(p, home, session)]


def _belongs(process: psutil.Process, home: str, session: int | None) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return process.environ().get(MARKER) == home
    except (psutil.Error, OSError):
        return False


def kill_session(home: str, session: int | None) -> None:
    """Kills until nothing is left. Raises QueryProcessFailed when something will not die."""
    if _kill_until_empty(home, session):
        left = members(home, session)
        raise QueryProcessFailed(f"processes {left} of an earlier query process cannot be killed")


@retry(
    retry=retry_if_result(bool),
    stop=stop_after_delay(KILL_SECONDS_MAX),
    wait=wait_exponential(multiplier=0.005, max=0.2),
    retry_error_callback=lambda state: True,
)
def _kill_until_empty(home: str, session: int | None) -> bool:
    """True while something was still there."""
    found = members(home, session)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return bool(found)
