"""The frames of journals as bytes, which are the same on both nodes of a pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ha_engine.journal.reading import FILE_HEADER_BYTES, read_records
from ha_engine.journal.record import encode
from ha_engine.types import Record


def shared_frames(journals: Mapping[str, Sequence[Path]]) -> dict[str, bytes]:
    """Return the frames of each journal, given by its segments, from the first record on that none
    has trimmed."""
    start = max(first_of(segments) for segments in journals.values())
    return {
        name: _frames_of(segments)[_length_before(segments, start) :]
        for name, segments in journals.items()
    }


def first_of(segments: Sequence[Path]) -> int:
    """Return the sequence of the first record."""
    return int(segments[0].stem)


def read_segment(path: Path) -> Iterator[Record]:
    return read_records(path, FILE_HEADER_BYTES, path.stat().st_size - FILE_HEADER_BYTES)


def _frames_of(segments: Sequence[Path]) -> bytes:
    """Return all frames, without the segments' headers, which name the journal."""
    return b"".join(path.read_bytes()[FILE_HEADER_BYTES:] for path in segments)


def _length_before(segments: Sequence[Path], start: int) -> int:
    if first_of(segments) == start:
        return 0
    records = (record for path in segments for record in read_segment(path))
    return sum(len(encode(record)) for record in records if record.position.sequence < start)
