"""Waiting for a condition of the real world, with a limit: the tests' only way to wait.

The limit is the time without progress. A slow host, or a busy one, needs longer for the same work;
whatever still uses the processor is waited for, up to SLOW_HOST times the limit.
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
"""Two workers with a third of one core, beside load: work takes at most so many times as long."""
_BUSY = 0.02
"""Share of a core: less than that is no progress of anything, only an idle process's wake-ups."""
_MARK = "PYTEST_ANCESTOR"
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.01, 0.1


class Patience:
    """Says how long a wait may still go on, and when to look again."""

    def __init__(self, condition: Callable[[], object], within: float) -> None:
        self._condition, self._within = condition, within
        self._began = self._moved = time.monotonic()
        self._measured, self._cpu = self._began, Usage()

    def pause(self, every: float) -> float:
        """Seconds until the next look, longer the longer it takes. Fails when the time is over."""
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
    """What this process, all below it and orphans of those have used, but for the thread that
    waits."""
    this = psutil.Process()
    found: Usage = {}
    for process in (this, *this.children(recursive=True), *_marked()):
        with contextlib.suppress(psutil.Error):
            found[process] = sum(process.cpu_times()[:4])
    found[this] -= time.thread_time()
    return found


def mark_descendants() -> None:
    """From now on a process that this one starts can be told from others, whatever its parent."""
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

    ``every`` so many seconds it is asked: seldom where asking costs what is waited for its time.
    """
    patience = Patience(condition, within)
    while not condition():
        time.sleep(patience.pause(every))


def wait_ended(process: subprocess.Popen[bytes], *, within: float = 40.0) -> int:
    """The exit code of ``process``, once it has one."""
    wait_until(lambda: process.poll() is not None, within=within)
    code: int = process.returncode
    return code


def watch(look: Callable[[], object], *, seconds: float, every: float = 0.1) -> None:
    """Call ``look`` again and again for so long: it fails if what must not happen does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        time.sleep(every)


async def async_watch(look: Callable[[], object], *, seconds: float) -> None:
    """As ``watch``, on an event loop, which goes on meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        await asyncio.sleep(_POLL_SECONDS)


async def async_wait_until(condition: Callable[[], object], *, within: float = 10.0) -> None:
    """The same on an event loop, whose own work counts as progress."""
    patience = Patience(condition, within)
    while True:
        if condition():
            return
        await asyncio.sleep(patience.pause(_POLL_SECONDS))
