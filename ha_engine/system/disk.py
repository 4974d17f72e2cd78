"""Turn errors of the disk into the engine's own error DiskFailed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ha_engine.errors import DiskFailed


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """Turn an OSError within the context into DiskFailed, whose message names ``place``."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(
            f"writing below {place} failed: {error.strerror}; "
            "free or replace the disk, then restart the node"
        ) from error
