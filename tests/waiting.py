"""Waiting for a condition of the real world, with a limit: the tests' only way to wait.

The limit is the time without progress. A slow host, or a busy one, needs longer for the same work;
a wait continues while a process uses the processor, up to SLOW_HOST times the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil

SLOW_HOST = 30
"""The slowdown on a host of two workers with a third of one core, beside other load."""
_BUSY = 0.02
"""The share of a core below which CPU is no progress, only the wake-ups of an idle process."""
_MARK = "PYTEST_ANCESTOR"
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.01, 0.1


class Patience:
    """The time that a wait may still last, and the time of the next check."""

    def __init__(self, condition: Callable[[], object], within: float) -> None:
        self._condition, self._within = condition, within
        self._began = self._moved = time.monotonic()
        self._measured, self._cpu = self._began, Usage()

    def pause(self, every: float) -> float:
        """Return the seconds until the next check, which grow with the wait. Fail when time is
        over."""
        now = time.monotonic()
        if not self._cpu and now - self._began > self._within / 4:
            self._measured, self._cpu = now, usage()
        if now - self._moved >= self._within:
            self._require_progress(now)
        return max(every, min(_POLL_SECONDS_MAX, (now - self._began) / 20))

    def _require_progress(self, now: float) -> None:
        used, waited = usage(), now - self._began
        grown = sum(max(0.0, used[one] - self._cpu.get(one, 0.0)) for one in used)
        moved = grown > _BUSY * (now - self._measured)
        reason = f"not true after {waited:.1f}s, the last {self._within:g}s"
        assert moved, f"{reason} without progress: {self._condition!r}"
        assert waited < SLOW_HOST * self._within, f"{reason} with progress: {self._condition!r}"
        self._moved = self._measured = now
        self._cpu = used


Usage = dict[psutil.Process, float]
"""Seconds of CPU by process."""


def usage() -> Usage:
    """Return the usage of this process, its descendants and their orphans, without the waiting
    thread."""
    this = psutil.Process()
    found: Usage = {}
    for process in (this, *this.children(recursive=True), *_marked()):
        with contextlib.suppress(psutil.Error):
            found[process] = sum(process.cpu_times()[:4])
    found[this] -= time.thread_time()
    return found


def mark_descendants() -> None:
    """Mark the processes that this one starts from now on, so that orphans are recognizable."""
    os.environ[_MARK] = str(os.getpid())


def _marked() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == str(os.getpid()):
                yield process


def wait_until(
    condition: Callable[[], object], *, within: float = 10.0, every: float = _POLL_SECONDS
) -> None:
    """Return once ``condition()`` is true; fail after ``within`` seconds without progress.

    ``every`` is the interval of the checks: long where a check costs the awaited process its time.
    """
    patience = Patience(condition, within)
    while not condition():
        time.sleep(patience.pause(every))


def wait_ended(process: subprocess.Popen[bytes], *, within: float = 40.0) -> int:
    """Wait for the end of ``process`` and return its exit code."""
    wait_until(lambda: process.poll() is not None, within=within)
    code: int = process.returncode
    return code


def watch(look: Callable[[], object], *, seconds: float, every: float = 0.1) -> None:
    """Call ``look`` repeatedly for that time; it fails if a forbidden event happens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        time.sleep(every)


async def async_watch(look: Callable[[], object], *, seconds: float) -> None:
    """Watch as ``watch`` does, on an event loop, which continues meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        await asyncio.sleep(_POLL_SECONDS)


async def async_wait_until(condition: Callable[[], object], *, within: float = 10.0) -> None:
    """Wait as ``wait_until`` does, on an event loop, whose own work counts as progress."""
    patience = Patience(condition, within)
    while True:
        if condition():
            return
        await asyncio.sleep(patience.pause(_POLL_SECONDS))
