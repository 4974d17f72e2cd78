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
    """The same on an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within:g}s: {condition!r}"
        await asyncio.sleep(_POLL_SECONDS)
