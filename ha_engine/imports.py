"""Imports of a process that starts, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: it would scan all imported modules again and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
