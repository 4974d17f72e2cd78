"""Turn the disk's errors into the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ha_engine.errors import DiskFailed


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """Raise DiskFailed for an OSError inside; ``place`` is named in the message."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(
            f"writing below {place} failed: {error.strerror}; "
            "free or replace the disk, then restart the node"
        ) from error
