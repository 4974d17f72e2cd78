"""Read the messages of one object: its lines, or its whole content as one message.

The object is read by requests for one piece each, which ask for the version that the listing had.
So the object is the same in all pieces, no connection stays open between two reads, and the memory
is bounded whatever the size of the object.
"""

from __future__ import annotations

import io
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from ha_engine.connectors.s3.store import ObjectMeta, Store

PIECE_BYTES = 4 << 20
UNPACKED_BYTES = 4 << 10
"""The bytes to decompress at a time. A read that meets damage loses what it has decompressed."""
MESSAGE_BYTES_MAX = 32 << 20
_SHOWN_BYTES = 64 << 10
_SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}

Compression = Literal["auto", "none", "gzip", "zstd"]


class Damaged(Exception):
    """The rest of the object cannot be decompressed."""


class Part(NamedTuple):
    """A message with ``size`` bytes in the object, including its line break.

    ``value`` has only the beginning of a message that exceeds MESSAGE_BYTES_MAX.
    """

    value: bytes
    size: int
    is_whole: bool


class ObjectReader:
    """Reads the messages of the object ``meta`` from the byte ``start`` of its decompressed content
    on.

    Methods raise ObjectGone, ObjectChanged, Damaged and the errors of the store.
    """

    def __init__(
        self, store: Store, meta: ObjectMeta, start: int, compression: Compression, *, whole: bool
    ) -> None:
        self.meta, self._whole = meta, whole
        codec = compression_of(meta.key) if compression == "auto" else compression
        self._raw = _Pieces(store, meta, start if codec == "none" else 0)
        self._stream: Any = None
        if codec != "none":
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), codec)
        self._data, self._at = b"", 0
        self._next: Part | None = None
        left = start if self._stream is not None else 0
        while left:
            left -= len(self._read(min(left, PIECE_BYTES), "the part that was read"))

    def next(self) -> Part | None:
        """Return the next message without taking it, or None at the end of the object."""
        if self._next is None:
            self._next = self._all() if self._whole else self._line()
        return self._next

    def take(self) -> None:
        """Move behind the message that ``next`` returned."""
        self._next = None

    def _line(self) -> Part | None:
        end = self._data.find(b"\n", self._at) + 1
        if end:
            line = self._data[self._at : end]
            self._at = end
            return Part(line.rstrip(b"\r\n"), len(line), is_whole=True)
        found, size = bytearray(self._data[self._at :]), 0
        self._data, self._at = b"", 0
        size = len(found)
        while data := self._read(PIECE_BYTES):
            end = data.find(b"\n") + 1 or len(data)
            size += end
            found += data[:end]
            if size > MESSAGE_BYTES_MAX:
                del found[_SHOWN_BYTES:]
            if end < len(data) or data.endswith(b"\n"):
                self._data, self._at = data, end
                break
        if not size:
            return None
        is_whole = size <= MESSAGE_BYTES_MAX
        return Part(bytes(found).rstrip(b"\r\n") if is_whole else bytes(found), size, is_whole)

    def _all(self) -> Part | None:
        found, size = bytearray(), 0
        while data := self._read(PIECE_BYTES):
            size += len(data)
            found += data
            if size > MESSAGE_BYTES_MAX:
                del found[_SHOWN_BYTES:]
        return Part(bytes(found), size, size <= MESSAGE_BYTES_MAX) if size else None

    def _read(self, size: int, needed: str = "") -> bytes:
        if self._stream is None:
            return self._raw.read(size)
        try:
            data: bytes = self._stream.read(min(size, UNPACKED_BYTES))
        except Exception as error:
            if self._raw.failure is not None:
                raise self._raw.failure from error
            raise Damaged(str(error)) from error
        if needed and not data:
            raise Damaged(f"{needed} is missing")
        return data


class _Pieces(io.RawIOBase):
    """The bytes of an object from ``start`` on, as a file. ``failure`` is the exception that ended
    the last read, since pyarrow may replace it."""

    def __init__(self, store: Store, meta: ObjectMeta, start: int) -> None:
        self._store, self._meta, self._start = store, meta, start
        self._piece = memoryview(b"")
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._piece and self._start < self._meta.size:
            end = min(self._start + PIECE_BYTES, self._meta.size)
            try:
                self._piece = memoryview(self._store.piece(self._meta, self._start, end))
            except Exception as error:
                self.failure = error
                raise
            self._start = end
        size = len(self._piece) if size < 0 else size
        found, self._piece = bytes(self._piece[:size]), self._piece[size:]
        return found


def compression_of(key: str) -> str:
    """The compression that the end of a key means."""
    return next((name for end, name in _SUFFIXES.items() if key.endswith(end)), "none")
