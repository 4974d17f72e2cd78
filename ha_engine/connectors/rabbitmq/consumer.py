"""A consumer of one queue or stream: the deliveries that have arrived, in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, model_validator

from ha_engine.connectors.rabbitmq.connection import Connection, RabbitOptions
from ha_engine.connectors.streams import BATCH_BYTES_MAX
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages

BUFFER_BYTES_MAX = 64 << 20
"""Limit of the messages that have arrived and are not read, unless it is a single message."""
OFFSET = "x-stream-offset"
HEADER = "header."

ATTRIBUTES: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "exchange": pa.string(),
    "message_id": pa.string(),
    "correlation_id": pa.string(),
    "content_type": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "redelivered": pa.bool_(),
    "offset": pa.int64(),
    "headers": pa.string(),
}

_Name = Annotated[str, Field(min_length=1, max_length=255)]


class RabbitSourceOptions(RabbitOptions):
    """The options of the source kind ``rabbitmq``, besides those of ``RabbitOptions``.

    - ``queue``: the name of a classic queue or a quorum queue.
    - ``stream``: the name of a stream, instead of ``queue``.
    - ``prefetch``: how many messages the broker sends before they are committed. It is also the
      limit of a batch.
    - ``single_active_consumer``: whether the queue has the argument ``x-single-active-consumer``.
    - ``skip_lost``: continue after messages that the stream has removed before they were read. A
      dead letter names their offsets.
    """

    queue: _Name | None = None
    stream: _Name | None = None
    prefetch: Annotated[int, Field(ge=1, le=65_535)] = 1_000
    single_active_consumer: bool = False
    skip_lost: bool = False

    @model_validator(mode="after")
    def _one_place(self) -> RabbitSourceOptions:
        if (self.queue is None) == (self.stream is None):
            raise ValueError("write either queue or stream")
        if self.stream is not None and self.single_active_consumer:
            raise ValueError("single_active_consumer belongs to a queue")
        if self.queue is not None and self.skip_lost:
            raise ValueError("skip_lost belongs to a stream")
        return self


class Consumer:
    """A connection that consumes ``name``, with at most ``prefetch`` messages that are not
    acknowledged.

    One acknowledgement names the last message of several, and so acknowledges all before it.
    Therefore deliveries must arrive in the order of their tags, without a gap.

    When more has arrived than memory may hold, the connection ends. The messages of a queue are
    then read again with a lower ``prefetch``. Those of a stream are still there, since they need no
    acknowledgement: ``is_full`` says that no more than these follow. The broker sends a whole chunk
    of a stream, whatever ``prefetch`` is.

    ``fault`` is the reason why the consumer must not be used any longer.
    """

    def __init__(
        self,
        options: RabbitSourceOptions,
        whose: str,
        name: str,
        prefetch: int,
        is_stream: bool = False,
    ) -> None:
        self._options, self._name = options, name
        self.prefetch, self._is_stream = prefetch, is_stream
        self.is_full = False
        self._changed = threading.Condition()
        self._arrived: deque[Any] = deque()
        self._size, self._tag = 0, 0
        self._taken: list[Any] = []
        self.fault: Exception | None = None
        self.connection = Connection(options, whose, SourceRefused, SourceUnavailable, self._notify)
        self.where = f"{name} of {self.connection.where}"

    def open(self, arguments: Mapping[str, Any], exclusive: bool = False) -> None:
        """Consume on the connection, which is open. Closes the connection after a failure."""
        try:
            self.connection.call(self._consume(arguments, exclusive), f"deliver {self._name}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.connection.close()
        with self._changed:
            self._arrived.clear()
            self._taken = []

    @property
    def works(self) -> bool:
        """Whether the broker still delivers messages, as far as is known."""
        return self.fault is None and not self.connection.is_lost

    @property
    def waiting(self) -> int:
        """The number of messages that have arrived and are not taken."""
        return len(self._arrived)

    def arrives(self, seconds: float) -> bool:
        """Whether a message is there, or arrives within ``seconds``.

        Raises SourceUnavailable or SourceRefused if the consumer has ended.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._arrived or self.fault or self.connection.is_lost, seconds
            )
            if self._is_stream and self._arrived:
                return True
            if self.fault is not None:
                raise self.fault
            self.connection.require_alive()
            return bool(self._arrived)

    def take(self, rows_max: int, seconds: float) -> list[Any]:
        """Return the next messages, or none after ``seconds``. Raises what ``arrives`` raises."""
        if not self.arrives(seconds):
            return []
        size = 0
        with self._changed:
            while self._arrived and len(self._taken) < rows_max:
                size += len(self._arrived[0].body)
                if self._taken and size > BATCH_BYTES_MAX:
                    break
                self._taken.append(self._arrived.popleft())
                self._size -= len(self._taken[-1].body)
            return list(self._taken)

    def acknowledge(self) -> None:
        """Acknowledge the messages that were taken.

        A stream needs no acknowledgement, which only lets the broker send more messages.
        """
        tag, self._taken = self._taken[-1].delivery_tag if self._taken else 0, []
        if not tag or (self._is_stream and not self.works):
            return
        try:
            self.connection.call(self._acknowledge(tag), "take an acknowledgement")
        except SourceUnavailable:
            if not self._is_stream:
                raise

    def untake(self) -> None:
        """Let the messages that were taken, and are not acknowledged, be taken again."""
        with self._changed:
            self._size += sum(len(one.body) for one in self._taken)
            self._arrived.extendleft(reversed(self._taken))
            self._taken = []

    # -- in the loop -------------------------------------------------------------------------------

    async def _consume(self, arguments: Mapping[str, Any], exclusive: bool) -> None:
        channel, errors = self.connection.channel, self.connection.errors
        await channel.set_qos(prefetch_count=self.prefetch)
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._cancel)
        try:
            await underlay.basic_consume(
                self._name, self._add, exclusive=exclusive, arguments=dict(arguments)
            )
        except errors.ChannelPreconditionFailed as error:
            if "invalid arg" not in str(error):
                raise
            is_stream = OFFSET in arguments
            kind, key = ("no stream", "queue") if is_stream else ("a stream", "stream")
            raise SourceRefused(
                f"{self.where} is {kind}; write {key}: {self._name} instead"
            ) from error

    async def _acknowledge(self, tag: int) -> None:
        channel = await self.connection.channel.get_underlay_channel()
        await channel.basic_ack(tag, multiple=True)

    async def _add(self, message: Any) -> None:
        with self._changed:
            if self.fault is not None or self.is_full:
                return
            if message.delivery_tag != self._tag + 1:
                self.fault = SourceUnavailable(
                    f"{self.where} delivered number {message.delivery_tag} after number "
                    f"{self._tag}; it is read again"
                )
            self._tag = message.delivery_tag
            self._arrived.append(message)
            self._size += len(message.body)
            if self._size > BUFFER_BYTES_MAX and len(self._arrived) > 1:
                self._overflow()
            self._changed.notify_all()

    def _overflow(self) -> None:
        """End the connection, since AMQP has no limit of bytes for what the broker sends."""
        self.connection.abandon()
        if self._is_stream:
            self.is_full = True
            return
        self.prefetch = max(1, len(self._arrived) // 2)
        self.fault = SourceUnavailable(
            f"{self.where} has large messages; it is read again with prefetch {self.prefetch}"
        )
        self._arrived.clear()

    async def _cancel(self, _: Any) -> None:
        with self._changed:
            self.fault = SourceUnavailable(
                f"{self.where} ended the consumer: it was deleted, or its leader is down"
            )
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def messages_of(
    deliveries: list[Any], attributes: frozenset[str], is_stream: bool = False
) -> Messages:
    found = {name: list(map(_reader(name), deliveries)) for name in attributes}
    if "offset" in found and not is_stream:  # a producer may have copied the header of a stream
        found["offset"] = [None] * len(deliveries)
    return Messages([bytes(one.body) for one in deliveries], found)


def _text(value: Any) -> str | None:
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def headers_of(delivery: Any) -> Mapping[str, Any]:
    return delivery.header.properties.headers or {}


def _reader(attribute: str) -> Callable[[Any], Any]:
    """The function that returns ``attribute`` of a delivery, or None."""
    if attribute.startswith(HEADER):
        name = attribute.removeprefix(HEADER)
        return lambda delivery: _text(headers_of(delivery).get(name))
    match attribute:
        case "key":
            return lambda delivery: delivery.routing_key
        case "exchange" | "redelivered":
            return lambda delivery: getattr(delivery, attribute)
        case "offset":
            return lambda delivery: headers_of(delivery).get(OFFSET)
    return lambda delivery: getattr(delivery.header.properties, attribute)
