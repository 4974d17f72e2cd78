"""Keeps records that an operator gave up in a file beside the journal, for people to read.

A file has the frames of the given-up records exactly as they were in the journal, and this name:

    given-up.<first epoch>.<first sequence>-<last epoch>.<last sequence>.frames
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from errno import EIO
from pathlib import Path
from typing import BinaryIO

from ha_engine.system.fsync import fsync_directory
from ha_engine.types import Extent, Position

COPY_BYTES = 1 << 20
SUFFIX = ".frames"


def path_of(directory: Path, first: Position, last: Position) -> Path:
    return directory / f"given-up.{first}-{last}{SUFFIX}"


def set_aside(path: Path, extents: Iterable[Extent]) -> None:
    """Copy the bytes of ``extents`` durably into a file at ``path``. Raises OSError."""
    fresh = path.with_suffix(".tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for extent in extents:
            _copy(extent, file)
        file.flush()
        os.fsync(descriptor)
    os.replace(fresh, path)
    fsync_directory(path.parent)


def _copy(extent: Extent, to: BinaryIO) -> None:
    with open(extent.path, "rb") as segment:
        segment.seek(extent.offset)
        left = extent.length
        while left > 0:
            piece = segment.read(min(left, COPY_BYTES))
            if not piece:
                raise OSError(EIO, "the segment is shorter than its records", extent.path)
            to.write(piece)
            left -= len(piece)
