"""The sink kind ``mqtt`` publishes each row as a message with QoS 1.

A delivery ends when the broker has acknowledged every message of the batch. After a failure or an
unknown outcome this node or the next active publishes the whole batch again, so that the messages
keep their order. Each message has the user property ``ha-engine-key``, the batch's
key and the number of the row, which is the same in a repetition.

All nodes use one client id, so the connection of the next active ends that of the former one.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field, field_validator

from ha_engine.connectors.library import library
from ha_engine.connectors.mqtt.connection import FAILED, SINK, BrokerOptions, Connection, Terms
from ha_engine.connectors.streams import remaining_of
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import Messages, OutputBatch, SinkPlace

KEY = "ha-engine-key"
HEADER = "header."
PACKET_BYTES_MAX = 268_435_455
IN_FLIGHT_BYTES = 8 << 20
_PROPERTIES = {
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "message_expiry": "MessageExpiryInterval",
}


def _topic_problem(topic: Any) -> str | None:
    """Return why ``topic`` cannot be the topic of a message, or None."""
    if not isinstance(topic, str) or not topic:
        return "it has no topic"
    if any(sign in topic for sign in "+#\0"):
        return f"{topic!r} is no topic, because it has +, # or NUL"
    if len(topic.encode()) > 65_535:
        return "its topic has more than 65,535 bytes"
    return None


class MqttSinkOptions(BrokerOptions):
    """The options of the sink kind ``mqtt``, besides those of the connection.

    ``topic`` is the topic of each message, unless a column that is mapped to the attribute
    ``topic`` has another one.
    With ``retain`` the broker keeps the last message of each topic. At most ``in_flight`` messages,
    or fewer if the broker says so, wait for their acknowledgement.
    """

    topic: str | None = None
    retain: bool = False
    in_flight: Annotated[int, Field(ge=1, le=65_535)] = 1_000

    @field_validator("topic")
    @classmethod
    def _fit(cls, topic: str | None) -> str | None:
        if topic is not None and (problem := _topic_problem(topic)):
            raise ValueError(problem)
        return topic


class MqttSink:
    """Implements ``plugins.SinkPlugin``."""

    Options = MqttSinkOptions
    guarantee: ClassVar[str] = (
        f"at least once: a repeated message has the user property {KEY} of the first one"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "topic": pa.string(),
        "headers": pa.string(),
        "content_type": pa.string(),
        "response_topic": pa.string(),
        "correlation_data": pa.binary(),
        "message_expiry": pa.int64(),
    }

    def __init__(self, options: MqttSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        own = f"{place.group}/queries/{place.query}/{place.sink}"
        self._client_id = options.client_id or own
        self._flight: _Flight | None = None
        # A batch, and the rows of it that were put aside, which a repetition leaves out.
        self._aside: tuple[str, set[int]] = ("", set())

    def prepare(self, schema: pa.Schema) -> None:
        if self._options.topic is None and "topic" not in self._place.attributes:
            raise SinkRefused(
                "the messages have no topic; set topic, or map a column to the attribute topic"
            )

    def deliver(self, batch: OutputBatch) -> None:
        if self._aside[0] != batch.key:
            self._aside = batch.key, set()
        aside, messages, flight = self._aside[1], batch.messages(), self._connected(batch)
        try:
            for row in range(len(messages)):
                if row not in aside:
                    self._send(flight, batch, messages, row)
            flight.wait(0, batch)
        except BaseException:
            self.close()  # no acknowledgement of this connection may count for another delivery
            raise

    def close(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.connection.close()

    def check(self) -> None:
        """Connect under another client id, because the broker would close the connection of an
        active with the same one."""
        connection = Connection(
            self._options, Terms(f"{self._client_id}/check-{secrets.token_hex(4)}"), SINK
        )
        connection.connect()
        self._require_abilities(connection)
        connection.close()

    # -- messages ----------------------------------------------------------------------------------

    def _connected(self, batch: OutputBatch) -> _Flight:
        if self._flight is None or self._flight.connection.is_lost:
            seconds = min(self._options.timeout, max(0.001, batch.remaining_seconds()))
            options = self._options.model_copy(update={"timeout": seconds})
            flight = _Flight(options, Terms(self._client_id), self._options.timeout)
            flight.connection.connect()
            self._require_abilities(flight.connection)
            self._flight = flight
        return self._flight

    def _require_abilities(self, connection: Connection) -> None:
        limits = connection.limits
        problem = None
        if getattr(limits, "MaximumQoS", 2) < 1:
            problem = "takes messages of QoS 0 only, and would lose some; allow QoS 1 there"
        elif self._options.retain and not getattr(limits, "RetainAvailable", 1):
            problem = "keeps no retained messages; allow them there, or set retain: false"
        if problem is not None:
            connection.close()
            raise SinkRefused(f"{connection.where} {problem}")

    def _send(self, flight: _Flight, batch: OutputBatch, messages: Messages, row: int) -> None:
        attributes = {name: values[row] for name, values in messages.attributes.items()}
        value = messages.values[row] or b""
        own = attributes.get("topic")
        topic = self._options.topic if own is None else own
        properties = _Properties(attributes, f"{batch.key}/{row}")
        problem = _topic_problem(topic) or properties.problem
        problem = problem or self._too_large(flight, str(topic), value, properties)
        if problem is not None:
            self._place.put_aside(batch, problem, batch.read().slice(row, 1))
            self._aside[1].add(row)
            return
        flight.wait(self._in_flight_max(flight) - 1, batch)
        flight.send(str(topic), value, self._options.retain, properties.packed)

    def _in_flight_max(self, flight: _Flight) -> int:
        allowed: int = getattr(flight.connection.limits, "ReceiveMaximum", 65_535)
        return min(self._options.in_flight, allowed)

    @staticmethod
    def _too_large(
        flight: _Flight, topic: str, value: bytes, properties: _Properties
    ) -> str | None:
        """Compare the packet with the limit of the broker, which closes the connection of a client
        that sends more."""
        most = getattr(flight.connection.limits, "MaximumPacketSize", PACKET_BYTES_MAX)
        # The topic has its length before it. The packet identifier has 2 bytes.
        size = 2 + len(topic.encode()) + 2 + properties.size + len(value)
        size += 1 + (size.bit_length() + 6) // 7  # the type of the packet, and its length
        return f"its message has {size} bytes, the broker takes {most}" if size > most else None


class _Properties:
    """The properties of a message, ``packed`` in ``size`` bytes unless there is a ``problem`` with
    an attribute."""

    def __init__(self, attributes: Mapping[str, Any], key: str) -> None:
        types = library("paho.mqtt.packettypes", "mqtt", SinkRefused).PacketTypes
        paho = library("paho.mqtt.properties", "mqtt", SinkRefused)
        self.packed = paho.Properties(types.PUBLISH)
        self.packed.UserProperty = (KEY, key)
        self.problem: str | None = None
        self.size = 0
        for name, value in attributes.items():
            try:
                self._add(name, value)
            except (paho.MQTTException, ValueError, TypeError) as error:
                self.problem = f"its {name} does not fit a message of MQTT: {error}"
        try:
            self.size = len(self.packed.pack())
        except (paho.MQTTException, ValueError, TypeError, struct.error) as error:
            self.problem = f"an attribute does not fit a message of MQTT: {error}"

    def _add(self, name: str, value: Any) -> None:
        if value is None:
            return
        if name.startswith(HEADER):
            self.packed.UserProperty = (name.removeprefix(HEADER), value)
        elif name in _PROPERTIES:
            setattr(self.packed, _PROPERTIES[name], value)


class _Flight:
    """A connection and the messages that the broker has not acknowledged yet: the topic and the
    size of each by packet identifier."""

    def __init__(self, options: BrokerOptions, terms: Terms, seconds: float) -> None:
        self._answers: list[tuple[int, Any]] = []
        self._waiting: dict[int, tuple[str, int]] = {}
        self._bytes = 0
        self._seconds = seconds
        self.connection = Connection(options, terms, SINK, on_published=self._published)

    def send(self, topic: str, value: bytes, retain: bool, properties: Any) -> None:
        try:
            packet = self.connection.publish(topic, value, retain, properties)
        except (SinkUnavailable, SinkRefused):
            # The broker may have refused a message before it closed the connection.
            self._settle(self._taken_answers())
            raise
        self._waiting[packet] = topic, len(value)
        self._bytes += len(value)

    def wait(self, most: int, batch: OutputBatch) -> None:
        """Return once at most ``most`` messages, of bounded size, wait for an acknowledgement.

        Raises the error of a refused message, and SinkUnavailable if no acknowledgement comes in
        time.
        """
        while len(self._waiting) > most or (self._waiting and self._bytes > IN_FLIGHT_BYTES):
            seconds = min(self._seconds, remaining_of(batch, self.connection.where))
            with self.connection.changed:
                self.connection.changed.wait_for(
                    lambda: self._answers or self.connection.is_lost, seconds
                )
            if answers := self._taken_answers():
                self._settle(answers)
                continue
            self.connection.require_alive()
            raise SinkUnavailable(
                f"{self.connection.where} did not acknowledge {len(self._waiting)} messages in time"
            )

    def _settle(self, answers: list[tuple[int, Any]]) -> None:
        for packet, code in answers:
            topic, size = self._waiting.pop(packet)
            if code.value >= FAILED:
                problem = f"{self.connection.where} refuses a message with the topic {topic}"
                raise SINK.by_code(code, problem)
            self._bytes -= size

    def _taken_answers(self) -> list[tuple[int, Any]]:
        with self.connection.changed:
            answers, self._answers = self._answers, []
        return answers

    def _published(self, packet: int, code: Any) -> None:
        with self.connection.changed:
            self._answers.append((packet, code))
            self.connection.changed.notify_all()
