"""Read the body of one request, with limits on its size, its decompressed size and its time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import Executor
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from ha_engine.errors import BodyTooSlow, InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.formats.varint import read_varint
from ha_engine.receive.byte_budget import ByteBudget

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_SNAPPY_SIZE_BYTES_MAX = 5
"""A snappy body begins with its decompressed size, a varint of 32 bits."""
SMALL_PACKED_BYTES = 512
"""Up to this size of a gzip body, a switch to a thread and back may cost more time than the
decompression, which yields at most a thousand times as many bytes."""


class Packing(Enum):
    """The compressions of a body, by the name in Content-Encoding."""

    GZIP = "gzip"
    SNAPPY = "snappy"
    """Snappy's block format, which has no frames."""


_PACKINGS = {
    b"": None,
    b"identity": None,
    b"gzip": Packing.GZIP,
    b"x-gzip": Packing.GZIP,
    b"snappy": Packing.SNAPPY,
}
_NOT_SNAPPY = "the body is not in snappy's block format, but Content-Encoding says so"


class ClientGone(Exception):
    """The client closed the connection before it had sent the whole body, so it waits for no
    answer."""


class BodyLimit(NamedTuple):
    """The maximum size of a body, and the name of the setting that has it."""

    bytes_max: int
    setting: str


class Body:
    """Reads the body of one request, and reserves its bytes of ``budget`` until the ``with`` block
    ends."""

    def __init__(self, budget: ByteBudget, limit: BodyLimit) -> None:
        self._budget, self._limit, self._held = budget, limit, 0

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.give(self._held)
        self._held = 0

    def require_fits(self, content_length: bytes | None) -> None:
        """Check the Content-Length header before any byte of the body is read. Raises
        PayloadTooLarge."""
        if content_length is not None and content_length.isdigit():
            self._require(int(content_length))

    async def read(self, receive: Receive, within: float) -> bytes:
        """Read the whole body. Raises PayloadTooLarge, Backpressure, BodyTooSlow, ClientGone."""
        try:
            async with asyncio.timeout(within):
                return await self._read(receive)
        except TimeoutError:
            raise BodyTooSlow(f"the body did not arrive within {within:g} s") from None

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            self.reserve(len(part))
            parts.append(part)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def unpacked(self, packed: bytes, packing: Packing, threads: Executor) -> bytes:
        """Decompress a body, up to the limit. Raises InvalidEvents, PayloadTooLarge,
        Backpressure."""
        match packing:
            case Packing.GZIP:
                return await self._unzipped(packed, threads)
            case Packing.SNAPPY:
                return await self._unsnapped(packed, threads)

    async def _unzipped(self, packed: bytes, threads: Executor) -> bytes:
        """Decompress a gzip body, and stop if it exceeds the limit.

        A few kilobytes may decompress for 40 ms, in which the event loop must not wait.
        """
        enough = self._limit.bytes_max + 1
        if len(packed) <= SMALL_PACKED_BYTES:
            body = _unzipped(packed, enough)
        else:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(threads, _unzipped, packed, enough)
        self._require(len(body))
        self.reserve(len(body))
        return body

    async def _unsnapped(self, packed: bytes, threads: Executor) -> bytes:
        """Decompress a snappy body, whose size is known and reserved before any memory is
        allocated for it."""
        size = _snappy_size(packed)
        self.reserve(size)
        if len(packed) <= SMALL_PACKED_BYTES:
            return _unsnapped(packed, size)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, _unsnapped, packed, size)

    def reserve(self, length: int) -> None:
        """Reserve ``length`` more bytes of the budget. Raises PayloadTooLarge, Backpressure."""
        self._require(self._held + length)
        self._budget.take(length)
        self._held += length

    def _require(self, length: int) -> None:
        if length > self._limit.bytes_max:
            raise PayloadTooLarge(
                f"the body is larger than {self._limit.bytes_max} bytes; "
                f"send several smaller requests, or raise {self._limit.setting}"
            )


def _unzipped(packed: bytes, bytes_max: int) -> bytes:
    """The first ``bytes_max`` bytes of a gzip body. Raises InvalidEvents unless ``packed`` is one
    whole gzip body, or has more bytes."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        body = unpacker.decompress(packed, bytes_max)
    except zlib.error:
        raise InvalidEvents("the body is not gzip, but Content-Encoding says so") from None
    if len(body) < bytes_max and (not unpacker.eof or unpacker.unused_data):
        raise InvalidEvents("the gzip body is incomplete, or has bytes after its end")
    return body


def _snappy_size(packed: bytes) -> int:
    """The size that a snappy body states for its decompressed bytes. Raises InvalidEvents."""
    try:
        return read_varint(packed[:_SNAPPY_SIZE_BYTES_MAX], 0)[0]
    except ValueError:
        raise InvalidEvents(_NOT_SNAPPY) from None


def _unsnapped(packed: bytes, size: int) -> bytes:
    """The ``size`` bytes of a snappy body. Raises InvalidEvents."""
    try:
        body: bytes = pa.Codec("snappy").decompress(packed, decompressed_size=size, asbytes=True)
    except (pa.ArrowInvalid, OSError):
        raise InvalidEvents(_NOT_SNAPPY) from None
    return body


def packing_of(
    content_encoding: bytes | None, accepted: Sequence[Packing | None]
) -> Packing | None:
    """The compression that the Content-Encoding header names, or None for none. Raises
    UnsupportedFormat unless it is one of ``accepted``."""
    name = (content_encoding or b"").strip().lower()
    if name in _PACKINGS and (found := _PACKINGS[name]) in accepted:
        return found
    known = " or ".join("none" if one is None else one.value for one in accepted)
    raise UnsupportedFormat(f"this Content-Encoding is not supported; send {known}")
