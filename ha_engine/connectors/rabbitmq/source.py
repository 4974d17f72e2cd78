"""The source kind ``rabbitmq`` reads the messages of a queue that exists.

The broker keeps a message until the source acknowledges it. The source acknowledges a batch at the
next ``read``, which means that the batch is in the journal on both nodes. When the channel ends,
the broker returns every other message to its place in the queue. So no message is lost. A message
is repeated if the channel ends after the commit of its batch and before the broker has the
acknowledgement.

While the connection of the former active exists, the next active must get nothing. Otherwise the
broker would give it newer messages than those that the former active has not acknowledged. A
classic queue with an exclusive consumer refuses a second one. A quorum queue ignores that flag, so
the source does not consume a queue that has a consumer. The engine has one active at a time, so no
two nodes look at the same time. A queue with ``x-single-active-consumer`` refuses exclusive
consumers, and lets a second consumer wait. A dead host's connection ends after two heartbeats.

One acknowledgement names the last message of a batch, and so acknowledges all before it. Therefore
the source insists that deliveries arrive in the order of their tags, without a gap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from ha_engine.connectors.rabbitmq.connection import SOURCE, BrokerOptions, Connection
from ha_engine.errors import SourceUnavailable
from ha_engine.plugins import Backlog, Messages, SourceBatch, SourcePlace

READ_BYTES = 8 << 20
COUNT_EVERY_SECONDS = 5.0
FORMER_SECONDS = 1.0
"""A queue notices the end of its consumer a little later than the connection ends."""
HEADER = "header."


class RabbitSourceOptions(BrokerOptions):
    """The options of the source kind ``rabbitmq``, besides those of the connection.

    ``queue`` is the name of a queue that exists. The broker sends at most ``prefetch`` messages
    that are not committed yet, which is also the limit of a batch. ``single_active_consumer`` says
    that the queue has the argument ``x-single-active-consumer``.
    """

    queue: str = Field(min_length=1, max_length=255)
    prefetch: int = Field(1_000, ge=1, le=65_535)
    single_active_consumer: bool = False


class RabbitSource:
    """Implements ``plugins.SourcePlugin``. An offset is the number of batches."""

    Options: ClassVar[type[RabbitSourceOptions]] = RabbitSourceOptions
    guarantee: ClassVar[str] = (
        "at least once: a failover or a lost connection may repeat messages; the queue must be "
        "durable and its messages persistent"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "key": pa.string(),
        "exchange": pa.string(),
        "message_id": pa.string(),
        "correlation_id": pa.string(),
        "content_type": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "redelivered": pa.bool_(),
        "headers": pa.string(),
    }

    def __init__(self, options: RabbitSourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._name = f"{place.group}/{place.stream}/{place.source}"
        self._consumer: _Consumer | None = None
        self._batches = 0
        # The last message of the last batch, acknowledged when the next read says that the batch is
        # committed.
        self._unacknowledged: int | None = None

    def open(self, offset: str | None) -> None:
        self.close()
        self._batches = int(offset) if offset is not None and offset.isdecimal() else 0
        self._unacknowledged = None
        self._consumer = _Consumer(self._options, self._name)
        self._consumer.begin()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        consumer = self._consumer
        if consumer is None:
            raise SourceUnavailable(f"queue {self._options.queue} is not open")
        consumer.connection.require_alive()
        if self._unacknowledged is not None:
            consumer.acknowledge(self._unacknowledged)
            self._unacknowledged = None
        messages = consumer.take(rows_max, seconds)
        if not messages:
            return None
        self._unacknowledged = messages[-1].delivery_tag
        self._batches += 1
        queue, number = self._options.queue, self._batches
        ids = [one.message_id for one in messages]
        return SourceBatch(
            str(number),
            self._messages(messages),
            place=lambda row: f"queue {queue}, message {row + 1} of batch {number}, id {ids[row]}",
            backlog=consumer.backlog(),
        )

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.connection.close()

    def check(self) -> None:
        """Connect, and require that the queue exists."""
        connection = Connection(self._options, f"{self._name}/check", SOURCE)
        connection.connect()
        try:
            connection.call(
                connection.channel.declare_queue(self._options.queue, passive=True), "answer"
            )
        finally:
            connection.close()

    def _messages(self, messages: list[Any]) -> Messages:
        attributes = {name: list(map(_reader(name), messages)) for name in self._place.attributes}
        return Messages([bytes(one.body) for one in messages], attributes)


class _Consumer:
    """A connection that consumes the queue, and the messages that have arrived, in their order."""

    def __init__(self, options: RabbitSourceOptions, name: str) -> None:
        self._options = options
        self._changed = threading.Condition()
        self._arrived: deque[Any] = deque()
        self._tag = 0
        self._queue: Any = None
        self._waiting, self._counted_at = 0, 0.0
        self._fault: str | None = None
        self.connection = Connection(options, name, SOURCE)
        self.connection.on_lost = self._notify  # type: ignore[method-assign]

    def begin(self) -> None:
        self.connection.connect()
        try:
            self.connection.call(self._consume(), f"deliver queue {self._options.queue}")
        except BaseException:
            self.connection.close()
            raise

    def acknowledge(self, tag: int) -> None:
        self.connection.call(self._acknowledge(tag), "take an acknowledgement")

    def take(self, rows_max: int, seconds: float) -> list[Any]:
        """Remove and return the next messages, or none after ``seconds``.

        Raises SourceUnavailable if the connection is lost. The messages that have arrived by then
        come again on the next connection.
        """
        taken, size = list[Any](), 0
        with self._changed:
            self._changed.wait_for(
                lambda: self._arrived or self._fault or self.connection.is_lost, seconds
            )
            self.connection.require_alive()
            if self._fault is not None:
                raise SourceUnavailable(self._fault)
            while self._arrived and len(taken) < rows_max:
                size += len(self._arrived[0].body)
                if taken and size > READ_BYTES:
                    break
                taken.append(self._arrived.popleft())
        return taken

    def backlog(self) -> Backlog:
        """The messages that wait, counted every few seconds."""
        now = time.monotonic()
        if now >= self._counted_at + COUNT_EVERY_SECONDS:
            self._counted_at = now
            declared = self.connection.call(self._queue.declare(), "count the messages")
            self._waiting = int(declared.message_count or 0)
        return Backlog(events=self._waiting + len(self._arrived))

    # -- in the loop -------------------------------------------------------------------------------

    async def _consume(self) -> None:
        channel, options = self.connection.channel, self._options
        await channel.set_qos(prefetch_count=options.prefetch, timeout=options.timeout)
        self._queue = await channel.declare_queue(
            options.queue, passive=True, timeout=options.timeout
        )
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._cancelled)
        exclusive = not options.single_active_consumer
        until = time.monotonic() + FORMER_SECONDS
        while exclusive and self._queue.declaration_result.consumer_count:
            if time.monotonic() < until:
                await asyncio.sleep(FORMER_SECONDS / 20)
                await self._queue.declare(timeout=options.timeout)
                continue
            raise SourceUnavailable(
                f"queue {options.queue} has another consumer, such as the former active; if that "
                "lasts longer than two heartbeats, end the other consumer, or set "
                "single_active_consumer if the queue has x-single-active-consumer"
            )
        await self._queue.consume(self._add, exclusive=exclusive, timeout=options.timeout)

    async def _acknowledge(self, tag: int) -> None:
        channel = await self.connection.channel.get_underlay_channel()
        await channel.basic_ack(tag, multiple=True)

    async def _add(self, message: Any) -> None:
        with self._changed:
            if message.delivery_tag != self._tag + 1:
                self._fault = (
                    f"delivery {message.delivery_tag} of queue {self._options.queue} follows "
                    f"delivery {self._tag}; the queue is read again"
                )
            self._tag = message.delivery_tag
            self._arrived.append(message)
            self._changed.notify_all()

    async def _cancelled(self, _: Any) -> None:
        with self._changed:
            self._fault = f"the broker ended the consumer: queue {self._options.queue} is gone"
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def _reader(attribute: str) -> Callable[[Any], Any]:
    """The function that returns ``attribute`` of a message, or None."""
    if attribute.startswith(HEADER):
        name = attribute.removeprefix(HEADER)
        return lambda message: _text((message.headers or {}).get(name))
    if attribute == "key":
        return lambda message: message.routing_key
    return lambda message: getattr(message, attribute)
