"""One segment file of the journal: append, sync, truncate, and find records in the file. A segment
does not know the other segments of its journal.

One thread changes a segment, while other threads may read records that were appended before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ha_engine.journal.reading import (
    Outline,
    SparseIndex,
    encode_file_header,
    offset_of,
)
from ha_engine.journal.record import Frame
from ha_engine.system.files import APPEND, CREATE, OS_FILES, File, Files, write_all
from ha_engine.types import Extent, Position

SUFFIX = ".journal"
_BUFFERS_MAX = 1000


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{SUFFIX}"


def segment_paths(directory: Path) -> list[Path]:
    """The paths of all segments, oldest first. File names are padded with zeros, so their order is
    that of the records."""
    return sorted(path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())


class Segment:
    """One segment file. ``size`` is the offset of the next record to append; ``last`` is ``first -
    1`` while the segment is empty."""

    # ``last`` and ``size`` are in one tuple, so that a reader in another thread never sees one
    # without the other.
    _end: tuple[int, int]

    def __init__(
        self,
        path: Path,
        journal_id: str,
        first: int,
        outline: Outline,
        files: Files = OS_FILES,
    ) -> None:
        self.path, self.journal_id, self.first = path, journal_id, first
        self._end = outline.last.sequence, outline.end
        self._index: SparseIndex = outline.index
        self._files = files
        self._file: File | None = None

    @classmethod
    def empty(cls, path: Path, journal_id: str, first: int, files: Files) -> Segment:
        outline = Outline(SparseIndex(first), Position(0, first - 1))
        return cls(path, journal_id, first, outline, files)

    # -- changes, by the journal's one writer; each may raise OSError

    def open_for_append(self) -> None:
        self._file = self._files.open(self.path, APPEND)

    def append(self, frames: Sequence[Frame]) -> None:
        _write_frames(self._writable(), frames)
        size = self.size
        for frame in frames:
            self._index.note(frame.position.sequence, size)
            size += frame.length
        self._end = frames[-1].position.sequence, size

    def sync(self) -> None:
        self._writable().fdatasync()

    def truncate_after(self, sequence: int) -> None:
        """Remove the records after ``sequence``, durably."""
        end = self.offset_of(sequence + 1)
        self._index.truncate_after(sequence)
        self._end = sequence, end
        self._writable().truncate(end)
        self._writable().fsync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- questions

    @property
    def last(self) -> int:
        return self._end[0]

    @property
    def size(self) -> int:
        return self._end[1]

    def fitting(self, frames: Sequence[Frame], segment_size: int) -> int:
        """The number of ``frames`` that fit into the segment; an empty segment takes the first
        frame, however large it is."""
        size = self.size
        for count, frame in enumerate(frames):
            size += frame.length
            if size > segment_size and (count or self.last >= self.first):
                return count
        return len(frames)

    def extent(self, first: int, last: int) -> Extent:
        """The bytes of the records ``first`` to ``last``, which must be in this segment."""
        start = self.offset_of(first)
        return Extent(str(self.path), start, self.offset_of(last + 1) - start)

    def offset_of(self, sequence: int) -> int:
        last, size = self._end
        if sequence > last:
            return size
        return offset_of(self.path, sequence, self._index.at_or_before(sequence), self._files)

    def _writable(self) -> File:
        assert self._file is not None, f"{self.path} is not open for appending"
        return self._file


def create(directory: Path, journal_id: str, first: int, files: Files = OS_FILES) -> Path:
    """Write a new segment file with its header; the caller makes the file and its directory entry
    durable."""
    path = segment_path(directory, first)
    with files.open(path, CREATE) as file:
        write_all(file, encode_file_header(journal_id, first))
    return path


def settle(path: Path, files: Files = OS_FILES) -> None:
    """Sync a file and drop it from the page cache, so that the next read returns only durable
    bytes.

    A killed process leaves records that are only in the page cache. A failed fsync leaves records
    in the page cache that the disk may lack.
    """
    with files.open(path, os.O_WRONLY) as file:
        file.fsync()
        file.evict()


def truncate_file(path: Path, size: int, files: Files = OS_FILES) -> None:
    """Shorten a file durably to ``size`` bytes."""
    with files.open(path, os.O_WRONLY) as file:
        file.truncate(size)
        file.fsync()


def _write_frames(file: File, frames: Sequence[Frame]) -> None:
    buffers = [part for frame in frames for part in (frame.head, frame.payload) if part]
    for start in range(0, len(buffers), _BUFFERS_MAX):
        some = buffers[start : start + _BUFFERS_MAX]
        written = file.writev(some)
        if written < sum(map(len, some)):
            write_all(file, b"".join(some)[written:])
