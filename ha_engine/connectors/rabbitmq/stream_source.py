"""Read a stream: messages have ascending offsets, and any node can read them again.

The source begins with the last message that was read, which it reads again and compares. The stream
is the same if it still has this message, and nothing after it was removed, because a stream removes
messages only at its start. Offsets may have gaps, since a stream has entries that are no messages.
At a gap the source asks for the first message of the stream: if that is not behind the gap, nothing
was removed.

An acknowledgement only lets the broker send more messages, so the source acknowledges what it
takes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ha_engine.connectors.rabbitmq.consumer import (
    OFFSET,
    Consumer,
    RabbitSourceOptions,
    headers_of,
    messages_of,
)
from ha_engine.connectors.streams import parsed_position, peeked
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import DeadLetter, SourceBatch, SourcePlace

LOOK_SECONDS = 2.0
"""The time that ``open`` waits for a message that the stream should have."""


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the source: all messages up to ``offset`` are read, and the message there has
    the digest ``digest``."""

    stream: str
    offset: int
    digest: str

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError if ``text`` is no offset of this kind of source."""
        try:
            found = json.loads(text)
            return cls(str(found["stream"]), int(found["offset"]), str(found["digest"]))
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from error

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class StreamSource:
    """The source of a stream."""

    def __init__(self, options: RabbitSourceOptions, name: str, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._stream = name
        self._whose = f"{place.group}/{place.stream}/{place.source}"
        self._consumer: Consumer | None = None
        self._position: Position | None = None
        # The stream had no message when it was opened, though messages of it were read.
        self._was_empty = False
        self._letters: list[DeadLetter] = []

    def check(self) -> None:
        """Connect, and consume without keeping anything."""
        self.open(None)
        self.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows after ``offset``."""
        return peeked(self, offset, rows_max, seconds)

    def open(self, offset: str | None) -> None:
        self.close()
        self._letters, self._was_empty = [], False
        if offset is None:
            self._position = None
            self._consumer = self._consuming("first")
            return
        position = parsed_position(Position.parse, offset, self._stream, self._place.source)
        self._position = position
        consumer = self._consuming(position.offset)
        try:
            is_there = consumer.arrives(self._look_seconds)
        except BaseException:
            consumer.close()
            raise
        if not is_there:
            consumer.close()
            consumer = self._without(position)
        self._consumer = consumer

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        until = time.monotonic() + seconds
        consumer = self._consumer
        if consumer is None:
            raise SourceUnavailable(f"stream {self._stream} is not open")
        try:
            while True:
                if consumer.is_full and not consumer.waiting:
                    consumer = self._continued()
                found = consumer.take(rows_max, max(0.0, until - time.monotonic()))
                consumer.acknowledge()
                unread = self._unread(found)
                if unread:
                    return self._batch(unread)
                if not found:
                    return None
        except BaseException:
            self.close()
            raise

    def _continued(self) -> Consumer:
        """Consume again after the messages that were read."""
        self.close()
        position = self._position
        self._consumer = self._consuming("first" if position is None else position.offset)
        return self._consumer

    # -- opening -----------------------------------------------------------------------------------

    @property
    def _look_seconds(self) -> float:
        return min(LOOK_SECONDS, self._options.timeout)

    def _consuming(self, start: int | str, prefetch: int | None = None) -> Consumer:
        prefetch = prefetch or self._options.prefetch
        consumer = Consumer(self._options, self._whose, self._stream, prefetch, is_stream=True)
        consumer.connection.open()
        consumer.open({OFFSET: start})
        return consumer

    def _without(self, position: Position) -> Consumer:
        """Return a consumer of a stream that does not deliver the message at ``position``, or any
        later one."""
        last = self._last_offset()
        if last is None:
            # All messages were removed, or the stream was created again. The next message shows
            # which is true. A consumer that begins at an offset gets no message before it.
            self._was_empty = True
            return self._consuming("first")
        if last >= position.offset:
            raise SourceUnavailable(
                f"stream {self._stream} does not deliver offset {position.offset} within "
                f"{self._look_seconds:g} s"
            )
        raise self._replaced(f"ends at offset {last}")

    def _last_offset(self) -> int | None:
        """The highest offset of the stream, or None if it has no message."""
        consumer = self._consuming("last")
        try:
            last: int | None = None
            while found := consumer.take(1_000, self._look_seconds):
                consumer.acknowledge()
                last = _offset(found[-1])
            return last
        finally:
            consumer.close()

    def _first_offset(self) -> int:
        consumer = self._consuming("first", prefetch=1)
        try:
            found = consumer.take(1, self._options.timeout)
            if not found:
                raise SourceUnavailable(f"stream {consumer.where} does not deliver its start")
            return _offset(found[0])
        finally:
            consumer.close()

    # -- reading -----------------------------------------------------------------------------------

    def _unread(self, found: Sequence[Any]) -> list[Any]:
        """Return the messages after the position. Raises SourceRefused if some are missing."""
        unread, position = list[Any](), self._position
        at = None if position is None else position.offset
        for one in found:
            offset = _offset(one)
            if position is not None and at == position.offset:
                if offset < at and self._was_empty:
                    raise SourceUnavailable(f"stream {self._stream} is not empty any longer")
                if offset == at and _digest(one) != position.digest:
                    raise self._replaced(f"has another message at offset {at} than was read")
            if at is not None and offset <= at:
                continue
            if at is not None and offset > at + 1:
                self._require_kept(at + 1, offset - 1)
            unread.append(one)
            at = offset
        return unread

    def _require_kept(self, first: int, last: int) -> None:
        """Refuse, or skip, messages that the stream has removed from ``first`` to ``last``."""
        kept = self._first_offset()
        if kept <= first:
            return
        gone = f"offsets {first} to {min(kept - 1, last)}"
        if not self._options.skip_lost:
            raise SourceRefused(
                f"stream {self._stream} no longer has the {gone}, which the source has not read: "
                "x-max-length-bytes or x-max-age removed them; raise the limit, and set "
                "skip_lost: true to continue without these messages"
            )
        self._letters.append(
            DeadLetter(
                f"stream {self._stream}, {gone}", "the stream removed them before they were read"
            )
        )

    def _replaced(self, reason: str) -> SourceRefused:
        assert self._position is not None
        return SourceRefused(
            f"stream {self._stream} {reason}, but the source has read up to offset "
            f"{self._position.offset}: it was created again, or lost its last messages; restore "
            "it, or give the source another name to read it from its start"
        )

    def _batch(self, unread: list[Any]) -> SourceBatch:
        letters, self._letters = self._letters, []
        offsets = [_offset(one) for one in unread]
        self._position = Position(self._stream, offsets[-1], _digest(unread[-1]))
        return SourceBatch(
            self._position.text,
            messages_of(unread, self._place.attributes, is_stream=True),
            letters,
            lambda row: f"stream {self._stream}, offset {offsets[row]}",
        )


def _offset(delivery: Any) -> int:
    return int(headers_of(delivery)[OFFSET])


def _digest(delivery: Any) -> str:
    digest, properties = hashlib.blake2b(digest_size=8), delivery.header.properties
    for part in (delivery.routing_key, properties.message_id, str(properties.timestamp)):
        digest.update(json.dumps(part).encode())
    digest.update(delivery.body)
    return digest.hexdigest()
