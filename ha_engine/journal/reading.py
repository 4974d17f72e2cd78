"""Reads records from segment files, and verifies every byte that it returns.

Spark's workers import this module, so it imports only the standard library, google_crc32c and small
modules of the engine.
"""

from __future__ import annotations

import io
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import UUID

from google_crc32c import value as crc32c

from ha_engine.errors import DiskFailed, JournalDamaged, UnknownJournalVersion
from ha_engine.journal.record import (
    HEADER_BYTES,
    BadFrame,
    Frame,
    Header,
    NewerVersion,
    decode_header,
    to_record,
    verified,
)
from ha_engine.system.files import OS_FILES, Files
from ha_engine.types import ORIGIN, Body, Events, Extent, Position, Record

FILE_MAGIC = b"\xf5HAJSEG\n"
FILE_VERSION = 1
FILE_HEADER_BYTES = 40
INDEX_EVERY_BYTES = 16 << 10
BUFFER_BYTES_MAX = 256 << 10
SKIPPED_FOR_EACH_READ = 16
"""A read of one stream's frames ends after this many times the bytes that it may return, so that a
caller with many other records soon learns how far the read has come."""

_FILE_START = struct.Struct("<8sI")
_FILE_REST = struct.Struct("<H2x16sQ")


class FileHeader(NamedTuple):
    """The header of a segment file. Its fields, with their lengths in bytes, are: magic 8, CRC32C
    4, version 2, zero 2, journal_id 16, first 8."""

    journal_id: str
    first: int


class SparseIndex:
    """The offsets of some records of a segment, with about one entry for every 16 KiB."""

    def __init__(self, first: int) -> None:
        self._sequences = array("Q", [first])
        self._offsets = array("Q", [FILE_HEADER_BYTES])

    def note(self, sequence: int, offset: int) -> None:
        if offset - self._offsets[-1] >= INDEX_EVERY_BYTES:
            # The offset is appended first, because a reader in another thread finds a sequence and
            # then reads its offset.
            self._offsets.append(offset)
            self._sequences.append(sequence)

    def at_or_before(self, sequence: int) -> tuple[int, int]:
        """The last entry at or before ``sequence``, as a sequence and its offset."""
        place = bisect_right(self._sequences, sequence) - 1
        return self._sequences[place], self._offsets[place]

    def truncate_after(self, sequence: int) -> None:
        keep = max(1, bisect_right(self._sequences, sequence))
        del self._sequences[keep:], self._offsets[keep:]


@dataclass(slots=True)
class Outline:
    """The result of a scan. The segment has whole records up to byte ``end``, where the file ends
    or ``bad`` says what is wrong."""

    index: SparseIndex
    last: Position
    end: int = FILE_HEADER_BYTES
    records: int = 0
    epochs: list[Position] = field(default_factory=list)
    bad: BadFrame | None = None


class StreamFrames(NamedTuple):
    """Every frame of one stream among the records up to sequence ``through``.

    ``rest`` has the later records of the extent, or is None if there are none.
    """

    frames: list[Frame]
    through: int
    rest: Extent | None


def read_extent(
    extent: Extent, *, stream: str | None = None, files: Files = OS_FILES
) -> Iterator[Record]:
    """Every record of ``extent``; with ``stream``, only the records with events of that stream.

    Raises JournalDamaged with file and offset, UnknownJournalVersion, DiskFailed.
    """
    return read_records(Path(extent.path), extent.offset, extent.length, stream=stream, files=files)


def read_records(
    path: Path,
    offset: int,
    length: int,
    *,
    stream: str | None = None,
    payloads: bool = True,
    files: Files = OS_FILES,
) -> Iterator[Record]:
    """Like read_extent; without ``payloads``, payloads are skipped, and each record has an empty
    payload."""
    end = offset + length
    with open_segment(path, length, files) as file:
        file.seek(offset)
        while offset < end:
            try:
                header, body = _read_head(file, end - offset)
                record = _read_rest(file, header, body, stream, payloads)
            except BadFrame as error:
                raise damage(path, offset, error) from error
            except OSError as error:
                raise _unreadable(path, error) from error
            if record is not None:
                yield record
            offset += header.frame_length


def read_frames(extent: Extent, bytes_max: int, files: Files = OS_FILES) -> list[Frame]:
    """The first frames of ``extent``, verified but not decoded, so that they can be sent unchanged.

    The result has at least one frame, but otherwise at most ``bytes_max`` bytes. This function
    raises the exceptions of read_extent.
    """
    frames: list[Frame] = []
    path, offset, rest = Path(extent.path), extent.offset, min(extent.length, bytes_max)
    with open_segment(path, rest, files) as file:
        file.seek(offset)
        while rest > 0:
            try:
                raw = file.read(HEADER_BYTES)
                header = _whole(raw, extent.offset + extent.length - offset)
                if frames and header.frame_length > rest:
                    break
                frames.append(_read_frame(file, raw, header))
            except BadFrame as error:
                raise damage(path, offset, error) from error
            except OSError as error:
                raise _unreadable(path, error) from error
            offset, rest = offset + header.frame_length, rest - header.frame_length
    return frames


def read_stream_frames(
    extent: Extent, first: int, stream: str, bytes_max: int, files: Files = OS_FILES
) -> StreamFrames:
    """The first frames with events of ``stream`` in ``extent``, whose first record is ``first``.

    The frames have at most ``bytes_max`` bytes, but one frame may be larger. The read ends after
    some ``bytes_max`` of other records, whose payloads it skips. This function raises the
    exceptions of read_extent, and JournalDamaged when a record is missing.
    """
    path, offset, end = Path(extent.path), extent.offset, extent.offset + extent.length
    read_end = min(end, offset + SKIPPED_FOR_EACH_READ * bytes_max)
    frames, size, sequence = list[Frame](), 0, first
    with open_segment(path, extent.length, files) as file:
        file.seek(offset)
        try:
            while offset < read_end:
                raw = file.read(HEADER_BYTES)
                header = _whole(raw, end - offset)
                _require_sequence(header, sequence, path, offset)
                meta = _read_meta(file, header)
                if not _is_of(to_record(header, meta, b"").body, stream):
                    file.seek(header.payload_length, 1)
                elif frames and size + header.frame_length > bytes_max:
                    break
                else:
                    frames.append(Frame(header.position, raw + meta, _read_payload(file, header)))
                    size += header.frame_length
                offset, sequence = offset + header.frame_length, sequence + 1
        except BadFrame as error:
            raise damage(path, offset, error) from error
        except OSError as error:
            raise _unreadable(path, error) from error
    rest = Extent(extent.path, offset, end - offset) if offset < end else None
    return StreamFrames(frames, sequence - 1, rest)


def read_header(file: BinaryIO, bytes_max: int) -> Header:
    """The header of the frame, of at most ``bytes_max`` bytes, that starts at the read position of
    ``file``. Raises BadFrame."""
    return _whole(file.read(min(HEADER_BYTES, bytes_max)), bytes_max)


def scan(
    path: Path, first: int, epoch: int, *, payloads: bool = True, files: Files = OS_FILES
) -> Outline:
    """Verify a segment whose first record is ``first`` and follows a record of ``epoch``.

    Without ``payloads``, the checksums of payloads are not verified. The scan stops at the first
    frame that is not whole. Raises JournalDamaged when an intact record is in the wrong place,
    UnknownJournalVersion, DiskFailed.
    """
    outline = Outline(SparseIndex(first), Position(epoch, first - 1))
    size = path.stat().st_size
    with open_segment(path, size, files) as file:
        file.seek(FILE_HEADER_BYTES)
        while outline.end < size:
            try:
                header = read_header(file, size - outline.end)
                _check_parts(file, header, payloads)
            except NewerVersion as error:
                raise damage(path, outline.end, error) from error
            except BadFrame as error:
                outline.bad = error
                break
            _extend(outline, header, path)
    return outline


def offset_of(path: Path, sequence: int, start: tuple[int, int], files: Files = OS_FILES) -> int:
    """The offset of record ``sequence``. The search reads the headers of all records from
    ``start``, which is an earlier sequence and its offset."""
    at, offset = start
    with open_segment(path, INDEX_EVERY_BYTES, files) as file:
        while at < sequence:
            file.seek(offset)
            try:
                offset += decode_header(file.read(HEADER_BYTES)).frame_length
            except BadFrame as error:
                raise damage(path, offset, error) from error
            except OSError as error:
                raise _unreadable(path, error) from error
            at += 1
    return offset


def open_segment(path: Path, length: int, files: Files) -> BinaryIO:
    """A buffered reader for about ``length`` bytes. Raises JournalDamaged, DiskFailed."""
    try:
        buffer_bytes = max(4096, min(length, BUFFER_BYTES_MAX))
        return io.BufferedReader(files.reader(path), buffer_bytes)
    except FileNotFoundError as error:
        raise JournalDamaged(str(path), 0, "the segment file is missing") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DiskFailed:
    return DiskFailed(f"{path} cannot be read ({error.strerror}); check the disk")


def damage(path: Path, offset: int, error: BadFrame) -> JournalDamaged | UnknownJournalVersion:
    """The error that a user gets for the bad frame at ``offset``."""
    if isinstance(error, NewerVersion):
        return UnknownJournalVersion(
            f"{path} at byte {offset}: {error}; run the engine version that wrote it"
        )
    return JournalDamaged(str(path), offset, str(error))


# -- file headers ----------------------------------------------------------------------------------


def encode_file_header(journal_id: str, first: int) -> bytes:
    rest = _FILE_REST.pack(FILE_VERSION, UUID(journal_id).bytes, first)
    return _FILE_START.pack(FILE_MAGIC, crc32c(rest)) + rest


def read_file_header(path: Path, files: Files = OS_FILES) -> FileHeader:
    """Read and verify the file header of a segment.

    Raises BadFrame when the header is truncated or damaged, NewerVersion, JournalDamaged,
    DiskFailed.
    """
    with open_segment(path, FILE_HEADER_BYTES, files) as file:
        raw = file.read(FILE_HEADER_BYTES)
    if len(raw) < FILE_HEADER_BYTES:
        raise BadFrame("the file header is truncated")
    magic, crc = _FILE_START.unpack_from(raw)
    if magic != FILE_MAGIC:
        raise BadFrame("the file is not a journal segment")
    if crc32c(raw[_FILE_START.size :]) != crc:
        raise BadFrame("the file header's checksum is wrong")
    version, journal_id, first = _FILE_REST.unpack_from(raw, _FILE_START.size)
    if version != FILE_VERSION:
        raise NewerVersion(f"segment format version {version} is not {FILE_VERSION}")
    return FileHeader(str(UUID(bytes=journal_id)), first)


# -- one frame -------------------------------------------------------------------------------------


def _read_head(file: BinaryIO, bytes_max: int) -> tuple[Header, Body]:
    header = read_header(file, bytes_max)
    return header, to_record(header, _read_meta(file, header), b"").body


def _read_rest(
    file: BinaryIO, header: Header, body: Body, stream: str | None, payloads: bool
) -> Record | None:
    wanted = stream is None or _is_of(body, stream)
    if not (wanted and payloads):
        file.seek(header.payload_length, 1)
        return Record(header.position, header.committed, body) if wanted else None
    return Record(header.position, header.committed, body, _read_payload(file, header))


def _whole(raw: bytes, bytes_max: int) -> Header:
    header = decode_header(raw)
    if header.frame_length > bytes_max:
        raise BadFrame(f"the record is truncated after {bytes_max} of {header.frame_length} bytes")
    return header


def _read_frame(file: BinaryIO, raw: bytes, header: Header) -> Frame:
    meta = _read_meta(file, header)
    return Frame(header.position, raw + meta, _read_payload(file, header))


def _check_parts(file: BinaryIO, header: Header, payloads: bool) -> None:
    _read_meta(file, header)
    if payloads:
        _read_payload(file, header)
    else:
        file.seek(header.payload_length, 1)


def _read_meta(file: BinaryIO, header: Header) -> bytes:
    length = header.meta_length
    return verified(file.read(length), length, header.meta_crc, "meta")


def _read_payload(file: BinaryIO, header: Header) -> bytes:
    length = header.payload_length
    return verified(file.read(length), length, header.payload_crc, "payload")


def _is_of(body: Body, stream: str) -> bool:
    return isinstance(body, Events) and body.stream == stream


def _require_sequence(header: Header, expected: int, path: Path, offset: int) -> None:
    if header.sequence != expected:
        reason = f"the segment has record {header.sequence} instead of {expected}"
        raise JournalDamaged(str(path), offset, reason)


def _extend(outline: Outline, header: Header, path: Path) -> None:
    expected, epoch = outline.last.sequence + 1, outline.last.epoch
    _require_sequence(header, expected, path, outline.end)
    if header.epoch < epoch:
        reason = f"epoch {header.epoch} follows epoch {epoch}"
        raise JournalDamaged(str(path), outline.end, reason)
    if header.epoch > epoch or outline.last == ORIGIN:
        outline.epochs.append(header.position)
    outline.index.note(header.sequence, outline.end)
    outline.last = header.position
    outline.end += header.frame_length
    outline.records += 1
