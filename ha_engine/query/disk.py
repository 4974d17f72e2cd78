"""The disk's errors in the engine's words, for the directories that the query process keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ha_engine.errors import DiskFailed


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """Raises DiskFailed for whatever the system refuses inside."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(
            f"writing below {place} failed: {error.strerror}; "
            "free or replace the disk, then restart the node"
        ) from error
