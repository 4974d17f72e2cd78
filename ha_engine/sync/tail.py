"""Supply the records to send: the newest from memory, and older records from the journal's files.

The journal writes in a thread of its own, so a record may be appended and not yet in a file. The
tail keeps every record in memory until the journal has written it. While a stream reads, the tail
also keeps some written records. Each record is known to be in memory or in a file at every moment,
so no record is skipped or sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ha_engine.errors import JournalDamaged
from ha_engine.journal.reading import read_frames
from ha_engine.journal.record import encode
from ha_engine.types import Extent, Position, Record

KEPT_BYTES_MAX = 16 << 20
"""The most bytes of written records that stay in memory. A stream that needs older records reads
files."""
_OVERHEAD_BYTES = 500


class Trimmed(Exception):
    """The journal no longer has the records that a peer needs."""


class WrittenRecords(Protocol):
    """The part of the journal that the sync stage uses; any thread may call it."""

    @property
    def first(self) -> int:
        """The sequence of the oldest record that is not trimmed."""

    @property
    def last(self) -> Position:
        """The position of the newest record that is in a file, durable or not."""

    def locate(self, first: int, last: int) -> list[Extent]:
        """Find the bytes of the records ``first`` to ``last`` in the journal's files.

        Raises DiskFailed, or ValueError when ``first`` is trimmed.
        """


@dataclass(frozen=True, slots=True)
class Chunk:
    """Encoded records, one after the other, up to position ``last``."""

    frames: bytes
    last: Position


class Tail:
    """The newest records in memory, from the sequence ``first`` on; for one event loop."""

    def __init__(self, journal: WrittenRecords, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._journal, self._kept_bytes_max = journal, kept_bytes_max
        self._records: dict[int, Record] = {}
        self._bytes = 0
        # Every record before ``first`` is in the journal's files.
        self.first = journal.last.sequence + 1

    @property
    def next(self) -> int:
        """Sequence of the record that will be appended next."""
        return self.first + len(self._records)

    def append(self, records: Sequence[Record], *, streaming: bool) -> None:
        """Keep ``records``, which the journal's writer has just queued, and which continue the
        tail.

        With ``streaming``, which means that a stream reads, written records stay in memory up to
        the limit.
        """
        for record in records:
            sequence = record.position.sequence
            assert sequence == self.next, (
                f"record {record.position} does not have the next sequence {self.next}"
            )
            self._records[sequence] = record
            self._bytes += _size(record)
        self._forget(self._kept_bytes_max if streaming else 0)

    def chunk(self, first: int, bytes_max: int) -> Chunk | None:
        """The records from ``first`` on, at least one, or None when the tail does not have
        ``first``."""
        frames: list[bytes] = []
        size, last = 0, None
        while (record := self._records.get(first)) is not None:
            size += _size(record)
            if frames and size > bytes_max:
                break
            frames.append(encode(record))
            first, last = first + 1, record.position
        return None if last is None else Chunk(b"".join(frames), last)

    def _forget(self, kept_bytes_max: int) -> None:
        written = self._journal.last.sequence
        while self._bytes > kept_bytes_max and self.first <= written:
            self._bytes -= _size(self._records.pop(self.first))
            self.first += 1


class Files:
    """Reads records in order from the journal's files, for one stream. Its calls block."""

    def __init__(self, journal: WrittenRecords) -> None:
        self._journal = journal
        self._extents: list[Extent] = []
        self._next = 0

    def chunk(self, first: int, last: int, bytes_max: int) -> Chunk:
        """The records from ``first`` to ``last`` at most; all records up to ``last`` must be
        written.

        Raises Trimmed, JournalDamaged, DiskFailed.
        """
        try:
            return self._chunk(first, last, bytes_max)
        except (ValueError, JournalDamaged) as error:
            if first >= self._journal.first:
                raise
            raise Trimmed(f"record {first} is trimmed; the peer must restore a snapshot") from error

    def _chunk(self, first: int, last: int, bytes_max: int) -> Chunk:
        if not self._extents or self._next != first:
            self._extents = self._journal.locate(first, last)
        extent, *rest = self._extents
        frames = read_frames(extent, bytes_max)
        length = sum(frame.length for frame in frames)
        if length < extent.length:
            rest.insert(0, Extent(extent.path, extent.offset + length, extent.length - length))
        position = frames[-1].position
        self._extents, self._next = rest, position.sequence + 1
        return Chunk(b"".join(part for one in frames for part in (one.head, one.payload)), position)


def _size(record: Record) -> int:
    return len(record.payload) + _OVERHEAD_BYTES
