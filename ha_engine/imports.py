"""Imports of a process that starts, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is imported stays: whoever collects meanwhile looks at all of it again, for nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
