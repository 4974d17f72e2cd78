"""The sink kind ``rabbitmq`` publishes each row as a persistent message to an exchange.

A delivery ends when the broker has confirmed every message of the batch. RabbitMQ confirms a
persistent message after each durable queue has it on disk. After a failure or an unknown outcome
this node or the next active publishes the batch again. The label of a row is the ``message_id``,
which is the same in a repetition. An instance does not repeat the messages that were confirmed to
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field

from ha_engine.connectors.library import library
from ha_engine.connectors.rabbitmq.connection import Connection, RabbitOptions
from ha_engine.connectors.row_label import RowLabel, labels_of
from ha_engine.connectors.streams import remaining_of, windows
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace

WINDOW_BYTES = 4 << 20
SHORT_BYTES_MAX = 255
"""AMQP's limit of a routing key, and of a text among the properties of a message."""
HEADERS_BYTES_MAX = 100_000
"""Limit of the headers of a message. All properties must fit into one frame, of 128 KiB."""
_NAME_BYTES_MAX = 180
"""Leaves space for the rest of a label."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER = "header."
_SHORT = ("correlation_id", "content_type", "reply_to", "type")


class RabbitSinkOptions(RabbitOptions):
    """The options of the sink kind ``rabbitmq``, besides those of ``RabbitOptions``.

    - ``exchange``: the name of an exchange that exists. The empty name is the default exchange,
      whose routing keys are the names of queues and streams.
    - ``routing_key``: that of each message, unless a column is mapped to the attribute ``key``.
    - ``in_flight``: how many messages wait for their confirms together.
    """

    exchange: Annotated[str, Field(max_length=SHORT_BYTES_MAX)] = ""
    routing_key: Annotated[str, Field(max_length=SHORT_BYTES_MAX)] | None = None
    in_flight: Annotated[int, Field(ge=1, le=100_000)] = 1_000


@dataclass(frozen=True, slots=True)
class _Message:
    """``key`` is the routing key. ``properties`` are those of AMQP, without the headers."""

    key: str
    value: bytes
    properties: Mapping[str, Any]
    headers: Mapping[str, str]


class RabbitSink:
    """Implements ``plugins.SinkPlugin``."""

    Options: ClassVar[type[RabbitSinkOptions]] = RabbitSinkOptions
    guarantee: ClassVar[str] = (
        "at least once: a repeated message has the message_id of the first one"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "key": pa.string(),
        **{name: pa.string() for name in _SHORT},
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.string(),
    }

    def __init__(self, options: RabbitSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        self._name = f"{place.group}/{place.query}/{place.sink}"
        self._connection: Connection | None = None
        self._exchange: Any = None
        # How many messages the connection publishes together. It begins with one and doubles: the
        # broker may confirm none of the messages that it got together with one that it refuses.
        self._window = 1
        # The labels of one batch whose messages were confirmed to this instance.
        self._confirmed: set[RowLabel] = set()

    def prepare(self, schema: pa.Schema) -> None:
        if self._options.routing_key is None and "key" not in self._place.attributes:
            raise SinkRefused(
                f"sink {self._place.sink} has no routing key; write the key routing_key, or map a "
                "column to the attribute key"
            )
        if len(self._name.encode()) > _NAME_BYTES_MAX:
            raise SinkRefused(
                f"the names {self._name} are longer than {_NAME_BYTES_MAX} bytes together, and do "
                "not fit into the id of a message; choose shorter names"
            )

    def check(self) -> None:
        """Connect, and require that the exchange exists."""
        try:
            self._open(self._options.timeout)
        finally:
            self.close()

    def deliver(self, batch: OutputBatch) -> None:
        messages = self._messages(batch)
        labels = labels_of(batch, [(one.value, _texts(one)) for one in messages])
        self._confirmed &= set(labels)
        if self._confirmed:
            unsent = [row for row, label in enumerate(labels) if label not in self._confirmed]
            messages, labels = [messages[row] for row in unsent], [labels[row] for row in unsent]
        if not messages:
            return
        try:
            self._connect(batch)
            sizes, done = [len(one.value) for one in messages], 0
            while done < len(messages):
                _, last = next(windows(sizes, done, self._window, WINDOW_BYTES))
                self._publish(batch, messages[done:last], labels[done:last])
                done, self._window = last, min(self._options.in_flight, 2 * self._window)
        except BaseException:
            # What this connection has sent and not confirmed may still arrive at the broker.
            if self._connection is None or not self._connection.is_blocked:
                self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- messages ----------------------------------------------------------------------------------

    def _messages(self, batch: OutputBatch) -> list[_Message]:
        """Return the messages of ``batch``, and put aside the rows that no message can have.

        The choice depends on the rows alone, so every node labels the messages alike.
        """
        rows, found = batch.messages(), list[_Message]()
        for row, value in enumerate(rows.values):
            own = {name: values[row] for name, values in rows.attributes.items()}
            own = {name: one for name, one in own.items() if one is not None}
            headers = {
                name.removeprefix(_HEADER): own.pop(name)
                for name in list(own)
                if name.startswith(_HEADER)
            }
            key = own.pop("key", self._options.routing_key)
            if reason := _reason(key, own, headers):
                self._place.put_aside(batch, reason, batch.read().slice(row, 1))
            else:
                found.append(_Message(key or "", value or b"", own, headers))
        return found

    # -- delivery ----------------------------------------------------------------------------------

    def _remaining(self, batch: OutputBatch) -> float:
        return remaining_of(batch, self._where)

    @property
    def _where(self) -> str:
        return f"exchange {self._options.exchange!r} of RabbitMQ at {self._options.host}"

    def _connect(self, batch: OutputBatch) -> None:
        """Open a connection if there is none that works.

        The broker reads what a blocked connection has sent once its alarm ends, also if the client
        has ended the connection by then. So a blocked connection stays, as each new one would add
        another copy of the rows.
        """
        seconds = min(self._options.timeout, self._remaining(batch))
        if self._connection is None or self._connection.is_lost:
            self.close()
            self._open(seconds)
        elif self._connection.is_blocked:
            self._connection.await_unblocked(seconds)

    def _open(self, seconds: float) -> None:
        connection = Connection(self._options, self._name, SinkRefused, SinkUnavailable)
        connection.open(seconds)
        self._connection, self._window = connection, 1
        name = self._options.exchange
        self._exchange = connection.call(
            connection.channel.get_exchange(name, ensure=bool(name)),
            f"find exchange {name}",
            seconds,
        )

    def _publish(
        self, batch: OutputBatch, messages: Sequence[_Message], labels: Sequence[RowLabel]
    ) -> None:
        assert self._connection is not None
        seconds = min(self._options.timeout, self._remaining(batch))
        try:
            self._connection.call(
                self._publish_all(messages, labels), f"confirm {len(messages)} messages", seconds
            )
        except SinkRefused as error:
            if len(labels) > 1:
                raise
            raise SinkRefused(f"row {labels[0].row} of batch {batch.number}: {error}") from error

    async def _publish_all(self, messages: Sequence[_Message], labels: Sequence[RowLabel]) -> None:
        pairs = list(zip(messages, labels, strict=True))
        outcomes = await asyncio.gather(
            *(self._publish_one(one, label) for one, label in pairs), return_exceptions=True
        )
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        if failures:
            raise self._failure(failures)

    async def _publish_one(self, one: _Message, label: RowLabel) -> None:
        pika = library("aio_pika", "rabbitmq", SinkRefused)
        message = pika.Message(
            one.value,
            headers=dict(one.headers),
            delivery_mode=pika.DeliveryMode.PERSISTENT,
            message_id=label.text,
            **one.properties,
        )
        await self._exchange.publish(message, one.key, mandatory=True)
        self._confirmed.add(label)

    def _failure(self, failures: Sequence[BaseException]) -> BaseException:
        errors = library("aiormq.exceptions", "rabbitmq", SinkRefused)
        for failure in failures:
            if isinstance(failure, errors.PublishError):
                return SinkRefused(
                    f"{self._where} has no queue for a message with the routing key "
                    f"{failure.message.delivery.routing_key!r}; bind a queue to the exchange"
                )
        if isinstance(failures[0], errors.DeliveryError):
            return SinkUnavailable(
                f"a queue of {self._where} did not take a message: the queue is full, or its "
                "leader is down"
            )
        return failures[0]


def _texts(message: _Message) -> dict[str, str]:
    """Return the texts that the digest of a label has of ``message``, besides its value."""
    properties = {name: str(value) for name, value in message.properties.items()}
    headers = {_HEADER + name: value for name, value in message.headers.items()}
    return {"key": message.key, **properties, **headers}


def _reason(key: str | None, properties: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return the reason why no message can have ``key``, ``properties`` and ``headers``, or ''."""
    if key is None:
        return "the row has no routing key"
    for name, value in {"key": key, **properties}.items():
        if isinstance(value, str) and len(value.encode()) > SHORT_BYTES_MAX:
            return f"the {name} of the row is longer than {SHORT_BYTES_MAX} bytes"
        if isinstance(value, datetime) and value < _EPOCH:
            return f"the {name} of the row is before 1970"
    if sum(len(name) + len(value.encode()) for name, value in headers.items()) > HEADERS_BYTES_MAX:
        return f"the headers of the row are longer than {HEADERS_BYTES_MAX} bytes together"
    return ""
