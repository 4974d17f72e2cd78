"""Read a queue: the broker keeps a message until the source acknowledges it.

The source acknowledges a batch at the next ``read``, which means that the batch is in the journal
on both nodes. When the connection ends, the broker returns every other message to its place in the
queue. So no message is lost. A message is repeated if the connection ends after the commit of its
batch and before the broker has the acknowledgement.

While the connection of the former active exists, the next active must get nothing. Otherwise the
broker would give it newer messages than those that the former active has not acknowledged. A
classic queue with an exclusive consumer refuses a second one. A quorum queue ignores that flag, so
the source does not consume a queue that has a consumer. If two nodes look at the same time, only
the order of the messages suffers: the node that is not the active commits nothing, so it
acknowledges nothing. A queue with ``x-single-active-consumer`` refuses exclusive consumers, and
lets a second consumer wait. A dead host's connection ends after two heartbeats.

``open`` on a connection that works returns nothing to the broker: the messages of the last batch
are read again from memory. A quorum queue counts how often a message was returned, and drops the
message at ``x-delivery-limit``.
"""

from __future__ import annotations

import asyncio
import time

from ha_engine.connectors.rabbitmq.connection import Connection
from ha_engine.connectors.rabbitmq.consumer import Consumer, RabbitSourceOptions, messages_of
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, SourceBatch, SourcePlace

COUNT_SECONDS = 5.0
FORMER_SECONDS = 1.0
"""A queue notices the end of its consumer a little later than the connection ends."""


class QueueSource:
    """The source of a queue. An offset is the number of batches."""

    def __init__(self, options: RabbitSourceOptions, name: str, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._queue = name
        self._whose = f"{place.group}/{place.stream}/{place.source}"
        self._consumer: Consumer | None = None
        self._prefetch = options.prefetch
        self._batches = 0
        self._counted, self._counted_at = 0, 0.0

    def check(self) -> None:
        """Connect, and require that the queue exists."""
        connection = Connection(
            self._options, f"{self._whose}/check", SourceRefused, SourceUnavailable
        )
        connection.open()
        try:
            connection.call(_count(connection, self._queue), f"find queue {self._queue}")
        finally:
            connection.close()

    def open(self, offset: str | None) -> None:
        self._batches = int(offset) if offset is not None and offset.isdecimal() else 0
        if self._consumer is not None and self._consumer.works:
            self._consumer.untake()
            return
        self.close()
        consumer = Consumer(self._options, self._whose, self._queue, self._prefetch)
        consumer.connection.open()
        try:
            if not self._options.single_active_consumer:
                consumer.connection.call(
                    self._require_alone(consumer),
                    f"find queue {self._queue}",
                    self._options.timeout + FORMER_SECONDS,
                )
        except BaseException:
            consumer.close()
            raise
        # A stream refuses this argument. Without it, a stream would begin with its next message.
        consumer.open({"x-priority": 0}, exclusive=not self._options.single_active_consumer)
        self._consumer, self._counted_at = consumer, 0.0

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._prefetch = consumer.prefetch
            consumer.close()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        consumer = self._consumer
        if consumer is None:
            raise SourceUnavailable(f"queue {self._queue} is not open")
        try:
            consumer.acknowledge()
            messages = consumer.take(rows_max, seconds)
            if not messages:
                return None
            backlog = self._backlog(consumer)
        except BaseException as error:
            self.close()
            raise consumer.fault or error from error
        self._batches += 1
        number, ids = self._batches, [one.header.properties.message_id for one in messages]
        return SourceBatch(
            str(number),
            messages_of(messages, self._place.attributes),
            place=lambda row: (
                f"queue {self._queue}, message {row + 1} of batch {number}, id {ids[row]}"
            ),
            backlog=backlog,
        )

    def _backlog(self, consumer: Consumer) -> Backlog:
        """The messages that wait, counted every few seconds."""
        now = time.monotonic()
        if now >= self._counted_at + COUNT_SECONDS:
            connection = consumer.connection
            self._counted, _ = connection.call(
                _count(connection, self._queue), f"count the messages of queue {self._queue}"
            )
            self._counted_at = now
        return Backlog(events=self._counted + consumer.waiting)

    async def _require_alone(self, consumer: Consumer) -> None:
        until = time.monotonic() + FORMER_SECONDS
        while (await _count(consumer.connection, self._queue))[1]:
            if time.monotonic() > until:
                raise SourceUnavailable(
                    f"queue {consumer.where} has another consumer, such as the former active; if "
                    "that lasts longer than two heartbeats, end the other consumer, or set "
                    "single_active_consumer if the queue has x-single-active-consumer"
                )
            await asyncio.sleep(FORMER_SECONDS / 20)


async def _count(connection: Connection, queue: str) -> tuple[int, int]:
    """The number of messages in ``queue`` that wait, and that of its consumers."""
    found = (await connection.channel.declare_queue(queue, passive=True)).declaration_result
    return int(found.message_count or 0), int(found.consumer_count or 0)
