"""The sink kind ``rabbitmq`` publishes each row as a persistent message to an exchange.

A delivery ends when the broker has confirmed every message of the batch. RabbitMQ confirms a
persistent message after each durable queue has it on disk. After a failure or an unknown outcome
this node or the next active publishes the whole batch again. Each message has the batch's key and
the number of the row as its ``message_id``, which is the same in a repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from ha_engine.connectors.library import library
from ha_engine.connectors.rabbitmq.connection import SINK, BrokerOptions, Connection
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import Messages, OutputBatch, SinkPlace

HEADER = "header."
IN_FLIGHT_BYTES = 8 << 20
KEY_BYTES_MAX = 255
_TEXTS = ("correlation_id", "content_type", "reply_to", "type")


class RabbitSinkOptions(BrokerOptions):
    """The options of the sink kind ``rabbitmq``, besides those of the connection.

    ``exchange`` is the name of an exchange that exists; the empty name is the default exchange,
    whose routing keys are names of queues. ``routing_key`` is that of every message, unless a
    column is mapped to the attribute ``key``. At most ``in_flight`` messages wait for their
    confirm.
    """

    exchange: str = Field("", max_length=255)
    routing_key: str | None = Field(None, max_length=KEY_BYTES_MAX)
    in_flight: int = Field(1_000, ge=1, le=100_000)


class RabbitSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[RabbitSinkOptions]] = RabbitSinkOptions
    guarantee: ClassVar[str] = (
        "at least once: a repeated message has the message_id of the first one"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "key": pa.string(),
        "correlation_id": pa.string(),
        "content_type": pa.string(),
        "reply_to": pa.string(),
        "type": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.string(),
    }

    def __init__(self, options: RabbitSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        self._name = f"{place.group}/{place.query}/{place.sink}"
        self._connection: Connection | None = None
        self._exchange: Any = None
        # A batch, and the rows of it that were put aside, which a repetition leaves out.
        self._aside: tuple[str, set[int]] = ("", set())

    def prepare(self, schema: pa.Schema) -> None:
        if self._options.routing_key is None and "key" not in self._place.attributes:
            raise SinkRefused(
                "the messages have no routing key; set routing_key, or map a column to the "
                "attribute key"
            )

    def deliver(self, batch: OutputBatch) -> None:
        if self._aside[0] != batch.key:
            self._aside = batch.key, set()
        messages = batch.messages()
        rows = self._rows_to_send(batch, messages)
        connection = self._connected(batch)
        first = 0
        try:
            while first < len(rows):
                last = self._end_of_window(messages, rows, first)
                self._publish(connection, batch, messages, rows[first:last])
                first = last
        except BaseException:
            self.close()  # no confirm of this channel may count for another delivery
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def check(self) -> None:
        """Connect, and require that the exchange exists."""
        connection = Connection(self._options, f"{self._name}/check", SINK)
        try:
            connection.connect()
            connection.call(self._opened_exchange(connection), "name the exchange")
        finally:
            connection.close()

    # -- messages ----------------------------------------------------------------------------------

    def _connected(self, batch: OutputBatch) -> Connection:
        if self._connection is None or self._connection.is_lost:
            self.close()
            connection = Connection(self._options, self._name, SINK)
            connection.connect()
            try:
                self._exchange = connection.call(
                    self._opened_exchange(connection), "name the exchange", self._left(batch)
                )
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _opened_exchange(self, connection: Connection) -> Any:
        name = self._options.exchange
        return await connection.channel.get_exchange(name, ensure=bool(name))

    def _left(self, batch: OutputBatch) -> float:
        return min(self._options.timeout, max(0.001, batch.remaining_seconds()))

    def _rows_to_send(self, batch: OutputBatch, messages: Messages) -> list[int]:
        """Put rows aside that cannot be published; return the others."""
        aside, keys, rows = self._aside[1], messages.attributes.get("key"), list[int]()
        for row in range(len(messages)):
            key = self._options.routing_key if keys is None else keys[row]
            if row in aside:
                continue
            if key is None or len(str(key).encode()) > KEY_BYTES_MAX:
                problem = f"its routing key is missing, or longer than {KEY_BYTES_MAX} bytes"
                self._place.put_aside(batch, problem, batch.read().slice(row, 1))
                aside.add(row)
            else:
                rows.append(row)
        return rows

    def _end_of_window(self, messages: Messages, rows: list[int], first: int) -> int:
        """The end of the rows that wait for their confirms together."""
        size, last = 0, first
        while last < len(rows) and last < first + self._options.in_flight:
            size += len(messages.values[rows[last]] or b"")
            if last > first and size > IN_FLIGHT_BYTES:
                break
            last += 1
        return last

    def _publish(
        self, connection: Connection, batch: OutputBatch, messages: Messages, rows: list[int]
    ) -> None:
        seconds = self._left(batch)
        connection.call(
            self._publish_all(batch.key, messages, rows),
            f"confirm {len(rows)} messages",
            seconds,
        )

    # -- in the loop -------------------------------------------------------------------------------

    async def _publish_all(self, key: str, messages: Messages, rows: list[int]) -> None:
        errors = library("aiormq.exceptions", "rabbitmq", SinkRefused)
        sends = [self._publish_one(f"{key}/{row}", messages, row) for row in rows]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            match outcome:
                case errors.PublishError():
                    where = f"exchange {self._options.exchange!r}"
                    raise SinkRefused(
                        f"{where} has no queue for a message with the routing key "
                        f"{outcome.message.delivery.routing_key!r}; bind a queue to the exchange"
                    )
                case errors.DeliveryError():
                    raise SinkUnavailable(
                        "a queue did not take a message; it is full, or its node is down"
                    )
                case BaseException():
                    raise outcome

    async def _publish_one(self, message_id: str, messages: Messages, row: int) -> None:
        pika = library("aio_pika", "rabbitmq", SinkRefused)
        attributes = {name: values[row] for name, values in messages.attributes.items()}
        headers = {
            name.removeprefix(HEADER): value
            for name, value in attributes.items()
            if name.startswith(HEADER) and value is not None
        }
        texts = {name: attributes[name] for name in _TEXTS if attributes.get(name) is not None}
        at = attributes.get("timestamp")
        message = pika.Message(
            messages.values[row] or b"",
            headers=headers,
            delivery_mode=pika.DeliveryMode.PERSISTENT,
            message_id=message_id,
            timestamp=at if isinstance(at, datetime) else None,
            **texts,
        )
        key = attributes.get("key", self._options.routing_key)
        await self._exchange.publish(message, str(key), mandatory=True)
