"""Waiting without disturbing what is measured: looks seldom."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, within: float, every: float = 0.1) -> None:
    """Returns once ``condition()`` is true; raises TimeoutError after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {condition!r}")
        time.sleep(every)
