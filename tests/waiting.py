"""Waiting for a condition of the real world, with a limit: the tests' only way to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_POLL_SECONDS = 0.01


def wait_until(
    condition: Callable[[], object], *, within: float = 10.0, every: float = _POLL_SECONDS
) -> None:
    """Return once ``condition()`` is true; fail after ``within`` seconds.

    ``every`` so many seconds it is asked: seldom where asking costs what is waited for its time.
    """
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within:g}s: {condition!r}"
        time.sleep(every)


async def async_wait_until(condition: Callable[[], object], *, within: float = 10.0) -> None:
    """The same on an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within:g}s: {condition!r}"
        await asyncio.sleep(_POLL_SECONDS)
