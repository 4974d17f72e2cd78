"""Import modules without the garbage collector, while a process starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan all imported modules again and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
