"""Keeps records that an operator gave up in a file beside the journal, for people to read.

A file has the frames of the given-up records exactly as they were in the journal, and this name:

    given-up.<first epoch>.<first sequence>-<last epoch>.<last sequence>.frames
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from errno import EIO
from pathlib import Path

from ha_engine.system.files import OS_FILES, Files, replace_file
from ha_engine.types import Extent, Position

COPY_BYTES = 1 << 20
SUFFIX = ".frames"


def path_of(directory: Path, first: Position, last: Position) -> Path:
    return directory / f"given-up.{first}-{last}{SUFFIX}"


def set_aside(path: Path, extents: Iterable[Extent], files: Files = OS_FILES) -> None:
    """Copy the bytes of ``extents`` durably into a file at ``path``. Raises OSError."""
    replace_file(path, (part for extent in extents for part in _parts(extent, files)), files)


def _parts(extent: Extent, files: Files) -> Iterator[bytes]:
    with files.reader(Path(extent.path)) as segment:
        segment.seek(extent.offset)
        left = extent.length
        while left > 0:
            piece = segment.read(min(left, COPY_BYTES))
            if not piece:
                raise OSError(EIO, "the segment is shorter than its records", extent.path)
            yield piece
            left -= len(piece)
