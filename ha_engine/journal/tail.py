"""Distinguishes a torn tail of a journal from damage (RULES.md#r31), without changing a file.

A torn tail is what a crash leaves of a write that was not reported as durable. A torn tail is
either all zeros or a truncated record. Any other bad bytes are damage: the node ends, and an
operator must run ``ha-engine reinit``. The test for sectors that never reached the disk is that of
etcd's write-ahead log (isTornEntry).
"""

from __future__ import annotations

from pathlib import Path

from google_crc32c import value as crc32c

from ha_engine.journal.reading import FILE_HEADER_BYTES, damage
from ha_engine.journal.record import HEADER_BYTES, MAGIC, BadFrame, Header, decode_header
from ha_engine.system.files import OS_FILES, Files, read_file

SECTOR_BYTES = 512


def describe_torn(
    path: Path, offset: int, expected: int, bad: BadFrame, files: Files = OS_FILES
) -> str:
    """Describe the torn tail at ``offset``, where record ``expected`` should start.

    Raises JournalDamaged when the bytes at ``offset`` are no torn tail. A damaged last record that
    contains a whole sector of zeros counts as torn, because the file does not show the difference.
    """
    with files.reader(path) as file:
        file.seek(offset)
        rest = file.readall()
    if not rest.rstrip(b"\0"):
        return f"{path} ended with {len(rest)} zero bytes after record {expected - 1}"
    if _record_follows(rest, expected) or not _is_truncated(rest, offset):
        raise damage(path, offset, bad) from bad
    return f"{path} ended with {len(rest)} bytes of the torn record {expected} ({bad})"


def is_torn_file_header(path: Path, files: Files = OS_FILES) -> bool:
    """Whether the segment file has only zeros after the bytes of its file header."""
    return len(read_file(path, files).rstrip(b"\0")) <= FILE_HEADER_BYTES


def _is_truncated(rest: bytes, offset: int) -> bool:
    written = len(rest.rstrip(b"\0"))
    if written < HEADER_BYTES:
        return True
    try:
        header = decode_header(rest[:HEADER_BYTES])
    except BadFrame:
        return _has_unwritten_sector(rest, 0, HEADER_BYTES, offset)
    end = header.frame_length
    if end > len(rest):
        return True
    if written > end:
        return False
    runs_into_zeros = written < end < len(rest)
    return runs_into_zeros or _has_unwritten_sector(rest, *_failing_part(rest, header), offset)


def _failing_part(rest: bytes, header: Header) -> tuple[int, int]:
    meta_end = HEADER_BYTES + header.meta_length
    if crc32c(rest[HEADER_BYTES:meta_end]) != header.meta_crc:
        return HEADER_BYTES, meta_end
    return meta_end, header.frame_length


def _has_unwritten_sector(rest: bytes, start: int, stop: int, offset: int) -> bool:
    """Whether a disk sector that overlaps ``rest[start:stop]`` has only zeros in ``rest``.

    ``offset`` is the offset of ``rest`` in the file.
    """
    first = (offset + start) // SECTOR_BYTES * SECTOR_BYTES - offset
    return any(
        not any(rest[max(0, sector) : sector + SECTOR_BYTES])
        for sector in range(first, stop, SECTOR_BYTES)
    )


def _record_follows(rest: bytes, expected: int) -> bool:
    """Whether ``rest`` has the header of a later record after the bad record."""
    furthest = expected + len(rest) // HEADER_BYTES
    place = rest.find(MAGIC, 1)
    while place >= 0:
        try:
            sequence = decode_header(rest[place : place + HEADER_BYTES]).sequence
        except BadFrame:
            sequence = 0
        if expected < sequence <= furthest:
            return True
        place = rest.find(MAGIC, place + 1)
    return False
