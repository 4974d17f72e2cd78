"""Parts that the connectors share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias, TypeVar

from ha_engine.errors import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable
from ha_engine.plugins import OutputBatch, SourceBatch

Refused: TypeAlias = type[SourceRefused] | type[SinkRefused]
Unavailable: TypeAlias = type[SourceUnavailable] | type[SinkUnavailable]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BATCH_BYTES_MAX = 8 << 20
"""Limit of the values of a source's batch, unless its only message is larger."""


class Reading(Protocol):
    """The calls of a source that ``peeked`` needs."""

    def open(self, offset: str | None) -> None: ...
    def read(self, rows_max: int, seconds: float) -> SourceBatch | None: ...
    def close(self) -> None: ...


class StreamPosition(Protocol):
    """An offset that names its stream."""

    @property
    def stream(self) -> str: ...


P = TypeVar("P", bound=StreamPosition)


def parsed_position(parse: Callable[[str], P], offset: str, stream: str, source: str) -> P:
    """Return the position that ``parse`` reads from ``offset``, for the source ``source`` of
    ``stream``. Raises SourceRefused if the offset belongs to something else."""
    try:
        position = parse(offset)
    except ValueError as error:
        raise _other_offset("is of another kind of source", stream, source) from error
    if position.stream != stream:
        raise _other_offset(f"belongs to stream {position.stream}", stream, source)
    return position


def _other_offset(reason: str, stream: str, source: str) -> SourceRefused:
    return SourceRefused(
        f"the offset of source {source} {reason}, not to stream {stream}; give the source another "
        "name to read the stream from its start"
    )


def peeked(
    source: Reading, offset: str | None, rows_max: int, seconds: float
) -> SourceBatch | None:
    """Return the next rows after ``offset`` from a source whose reads take nothing."""
    try:
        source.open(offset)
        return source.read(rows_max, seconds)
    finally:
        source.close()


def time_of(milliseconds: int) -> datetime | None:
    """Return the time ``milliseconds`` after the epoch of Unix, or None if a producer has chosen a
    number that is no time."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def remaining_of(batch: OutputBatch, where: str) -> float:
    """Return the seconds that are left to deliver ``batch``. Raises SinkUnavailable if none is."""
    remaining = batch.remaining_seconds()
    if remaining <= 0:
        raise SinkUnavailable(f"the deadline passed before {where} had all rows")
    return remaining


def windows(
    sizes: Sequence[int], first: int, count_max: int, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Yield the bounds of windows that have the messages from ``first`` on, whose sizes in bytes
    are ``sizes``. A window ends with the message that reaches ``bytes_max``."""
    while first < len(sizes):
        last, total = first, 0
        while last < len(sizes) and last - first < count_max and total < bytes_max:
            total += sizes[last]
            last += 1
        yield first, last
        first = last
