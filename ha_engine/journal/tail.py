"""Tell a torn tail from damage (RULES.md#r31); changes nothing.

A torn tail is what a crash leaves of a write that nobody was told is durable: nothing but zeros, or
a cut record. Anything else is damage, at which the node ends instead of guessing; reinit helps. The
test for sectors that never reached the disk is that of etcd's write-ahead log (isTornEntry).
"""

from __future__ import annotations

from pathlib import Path

from google_crc32c import value as crc32c

from ha_engine.journal.reading import FILE_HEADER_BYTES, damage
from ha_engine.journal.record import HEADER_BYTES, MAGIC, BadFrame, Header, decode_header

SECTOR_BYTES = 512


def describe_torn(path: Path, offset: int, expected: int, bad: BadFrame) -> str:
    """What was torn at ``offset``, where record ``expected`` should start. Changes nothing.

    Raises JournalDamaged when it is no torn tail. A damaged last record that holds a whole sector
    of zeros looks torn: no file can tell these two apart.
    """
    with path.open("rb") as file:
        file.seek(offset)
        rest = file.read()
    if not rest.rstrip(b"\0"):
        return f"{path} ended with {len(rest)} zero bytes after record {expected - 1}"
    if _record_follows(rest, expected) or not _is_cut(rest, offset):
        raise damage(path, offset, bad) from bad
    return f"{path} ended with {len(rest)} bytes of the torn record {expected} ({bad})"


def is_torn_file_header(path: Path) -> bool:
    """Whether nothing but zeros follows what there is of the file header."""
    return len(path.read_bytes().rstrip(b"\0")) <= FILE_HEADER_BYTES


def _is_cut(rest: bytes, offset: int) -> bool:
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
    """Whether a disk sector that holds some of ``rest[start:stop]`` holds only zeros of ``rest``.

    ``offset`` is the place of ``rest`` in the file.
    """
    first = (offset + start) // SECTOR_BYTES * SECTOR_BYTES - offset
    return any(
        not any(rest[max(0, sector) : sector + SECTOR_BYTES])
        for sector in range(first, stop, SECTOR_BYTES)
    )


def _record_follows(rest: bytes, expected: int) -> bool:
    """Whether the header of a later record stands in ``rest`` behind the bad one."""
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
