"""Keeps records that an operator gave up in a file beside the journal, for people to read.

A file has the frames of the given-up records exactly as they were in the journal, and this name:

    given-up.<first epoch>.<first sequence>-<last epoch>.<last sequence>.frames
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ha_engine.journal.reading import read_frames
from ha_engine.system.files import OS_FILES, Files, replace_file
from ha_engine.types import Extent, Position

COPY_BYTES = 1 << 20
SUFFIX = ".frames"


def path_of(directory: Path, first: Position, last: Position) -> Path:
    return directory / f"given-up.{first}-{last}{SUFFIX}"


def set_aside(path: Path, extents: Iterable[Extent], files: Files = OS_FILES) -> None:
    """Copy the bytes of ``extents`` durably into a file at ``path``.

    Raises JournalDamaged, DiskFailed, OSError.
    """
    replace_file(path, (part for extent in extents for part in _parts(extent, files)), files)


def _parts(extent: Extent, files: Files) -> Iterator[bytes]:
    """The bytes of an extent, verified, because the caller removes the records afterwards."""
    while extent.length:
        frames = read_frames(extent, COPY_BYTES, files)
        for frame in frames:
            yield frame.head
            yield frame.payload
        done = sum(frame.length for frame in frames)
        extent = Extent(extent.path, extent.offset + done, extent.length - done)
