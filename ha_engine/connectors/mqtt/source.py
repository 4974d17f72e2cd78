"""The source kind ``mqtt`` reads the messages of topic filters, with QoS 1, through a session that
the broker keeps between connections.

The broker keeps each message for the session until the source acknowledges it. The source
acknowledges a batch at the next ``read``, which means that the batch is in the journal on both
nodes. So the broker still has every message that is not in the journal, and sends it again on the
next connection. A message is repeated if a connection ends after the commit of its batch and before
the broker has the acknowledgement.

All nodes use one client id, and so one session. A broker has at most one connection for a client
id. When the next active connects, the broker closes the connection of the former one, whose
acknowledgements can no longer reach the session.

The offset cannot name a place in the session. It has a number, which changes with each batch, and
the filters of the session. By the filters the next active knows that a session must exist, and
which filters an operator has removed since.

A broker may lose the session, and create an empty one when a node connects. CONNACK says so. But if
CONNACK does not arrive, the next connection finds the empty session, which looks like the lost one.
So the source marks its session by a subscription to a topic of its own, which an empty session does
not have. The answer to UNSUBSCRIBE says whether the mark was there, and SUBSCRIBE then makes it
again. If the connection ends in between, the source reports a loss that did not happen.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
from pydantic import Field, field_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.mqtt.connection import (
    SESSION_SECONDS_MAX,
    SOURCE,
    BrokerOptions,
    Connection,
    Terms,
)
from ha_engine.connectors.streams import BATCH_BYTES_MAX
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import DeadLetter, Messages, SourceBatch, SourcePlace

BUFFER_BYTES = 64 << 20
"""While more than this is buffered, the connection reads nothing."""
MESSAGE_BYTES = 1 << 10
"""The bytes that a buffered message takes besides its value and its user properties."""
FILTERS_BYTES_MAX = 16 << 10
HEADER = "header."
MARKERS = "ha-engine/session/"
"""The beginning of the topic that marks a session."""
SHARED = "$share/"


class MqttSourceOptions(BrokerOptions):
    """The options of the source kind ``mqtt``, besides those of the connection.

    ``topics`` are topic filters, which may have the wildcards ``+`` and ``#``. The broker keeps the
    session for ``session_expiry`` while no node is connected. It sends at most ``receive_maximum``
    messages that are not committed yet, which is also the limit of a batch. With ``retained`` a new
    subscription begins with the retained messages of its topics.
    """

    topics: Annotated[tuple[str, ...], Field(min_length=1)]
    session_expiry: Annotated[Duration, Field(ge=1, le=SESSION_SECONDS_MAX)] = 7 * 86_400.0
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] = 1_000
    retained: bool = True

    @field_validator("topics")
    @classmethod
    def _filters(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for one in topics:
            levels = one.split("/")
            hash_inside = any("#" in level for level in levels[:-1])
            mixed = any(len(level) > 1 and ("+" in level or "#" in level) for level in levels)
            if not one or "\0" in one or hash_inside or mixed:
                raise ValueError(f"{one!r} is no topic filter; write a level, + or a last #")
        if len(set(topics)) < len(topics):
            raise ValueError("a topic filter is named twice")
        if len("".join(topics).encode()) > FILTERS_BYTES_MAX:
            raise ValueError(f"the topic filters have more than {FILTERS_BYTES_MAX} bytes")
        return topics


@dataclass(frozen=True, slots=True)
class Reached:
    """The offset of the source: ``batch`` batches are read, the last one at ``at`` in ISO 8601.

    ``filters`` are the subscriptions of the session, or None if no session is known to exist.
    ``marked`` says whether the session has the subscription that marks it.
    """

    batch: int = 0
    filters: tuple[str, ...] | None = None
    at: str = ""
    marked: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Reached:
        """Parse any text: that of another kind of source is like no offset."""
        try:
            read = json.loads(text or "{}")
            filters = read.get("filters")
            known = None if filters is None else tuple(map(str, filters))
            number, at = int(read.get("batch", 0)), str(read.get("at", ""))
            return cls(number, known, at, read.get("marked") is True)
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
            return cls()

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class MqttSource:
    """Implements ``plugins.SourcePlugin``."""

    Options = MqttSourceOptions
    guarantee: ClassVar[str] = (
        "at least once: a failover or a lost connection repeats messages at most and loses none; "
        "messages that are published with QoS 0 may be lost"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "topic": pa.string(),
        "retain": pa.bool_(),
        "qos": pa.int64(),
        "dup": pa.bool_(),
        "headers": pa.string(),
        "content_type": pa.string(),
        "response_topic": pa.string(),
        "correlation_data": pa.binary(),
        "message_expiry": pa.int64(),
    }

    def __init__(self, options: MqttSourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        own = f"{place.group}/streams/{place.stream}/{place.source}"
        self._client_id = options.client_id or own
        self._marker = MARKERS + quote(self._client_id)
        self._session: _Session | None = None
        self._reached, self._is_marked = Reached(), False
        # The messages of the last batch, acknowledged when the next read says that it is committed.
        self._unacknowledged: list[int] = []
        # ``_gap``: the session of the offset is gone, and the dead letter that says so is not read
        # yet. ``_gap_reported``: it is read.
        self._gap = self._gap_reported = False

    def open(self, offset: str | None) -> None:
        self.close()
        self._reached = Reached.parse(offset)
        self._unacknowledged, self._gap, self._gap_reported = [], False, False
        session = self._connected()
        if self._reached.filters is None or self._is_known(session):
            self._subscribe(session)
            return
        # Until the dead letter is in the journal, the session must not look like the lost one.
        session.connection.close(end_session=not session.connection.resumed)
        self._gap = True

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if self._gap:
            return self._gap_letter()
        if self._gap_reported:  # and the dead letter is committed
            self._gap_reported = False
            self._subscribe(self._connected())
        session = self._session
        if session is None:
            raise SourceUnavailable("the source is not open")
        session.connection.require_alive()
        session.connection.acknowledge(self._unacknowledged)
        self._unacknowledged = []
        session_has = self._options.topics, self._is_marked
        if (self._reached.filters, self._reached.marked) != session_has:
            # An offset with the filters is committed before any row, so that a session that is lost
            # before its first message is missed too.
            filters, marked = session_has
            return SourceBatch(self._next(filters=filters, marked=marked))
        messages = session.take(rows_max, seconds)
        if not messages:
            return None
        self._unacknowledged = [one.mid for one in messages if one.qos]
        topics = [one.topic for one in messages]
        offset, number = self._next(), self._reached.batch
        return SourceBatch(
            offset,
            self._messages(messages),
            place=lambda row: f"topic {topics[row]}, message {row + 1} of batch {number}",
        )

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def check(self) -> None:
        """Connect and subscribe under another client id, because the broker would close the
        connection of an active with the same one. A shared subscription would take messages, so the
        check subscribes to its topics instead."""
        topics = [_unshared(one) for one in self._options.topics]
        terms = Terms(f"{self._client_id}/check-{secrets.token_hex(4)}", in_flight=1)
        session = _Session(self._options, terms)
        session.connection.connect()
        try:
            session.connection.subscribe(topics, send_retained=False)
        finally:
            session.connection.close()

    # -- the session -------------------------------------------------------------------------------

    def _connected(self) -> _Session:
        seconds = int(self._options.session_expiry)
        terms = Terms(self._client_id, True, seconds, self._options.receive_maximum)
        session = _Session(self._options, terms)
        session.connection.connect()
        granted = getattr(session.connection.limits, "SessionExpiryInterval", seconds)
        if granted < seconds:
            session.connection.close(end_session=not session.connection.resumed)
            raise SourceRefused(
                f"{session.connection.where} keeps a session for {granted} s only, and then loses "
                f"its messages; allow {seconds} s there, or set session_expiry to {granted}s"
            )
        return session

    def _is_known(self, session: _Session) -> bool:
        """Whether the session is the one of the offset. Removes its mark."""
        if not session.connection.resumed or not self._reached.marked:
            return session.connection.resumed
        try:
            return session.connection.unsubscribe([self._marker])
        except (SourceUnavailable, SourceRefused):
            session.connection.close()
            raise

    def _subscribe(self, session: _Session) -> None:
        """Make the mark and the subscriptions of the session."""
        connection, topics = session.connection, self._options.topics
        try:
            self._is_marked = connection.mark(self._marker)
            connection.subscribe(topics, self._options.retained)
            if removed := [one for one in self._reached.filters or () if one not in topics]:
                connection.unsubscribe(removed)
        except (SourceUnavailable, SourceRefused):
            connection.close()
            raise
        self._session = session

    def _next(self, **changed: Any) -> str:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._reached = replace(self._reached, batch=self._reached.batch + 1, at=now, **changed)
        return self._reached.text

    def _gap_letter(self) -> SourceBatch:
        since = self._reached.at
        letter = DeadLetter(
            f"session {self._client_id} of {self._options.host}, after batch {self._reached.batch}",
            "the broker has lost the session, or it was ended elsewhere, and with it the messages "
            f"that were not read; messages since {since} may be missing; send them again, and see "
            "that the broker stores sessions on disk and for at least session_expiry",
        )
        self._gap, self._gap_reported = False, True
        return SourceBatch(self._next(filters=None, marked=False), dead_letters=[letter])

    # -- messages ----------------------------------------------------------------------------------

    def _messages(self, messages: list[Any]) -> Messages:
        attributes = {name: list(map(_reader(name), messages)) for name in self._place.attributes}
        return Messages([bytes(one.payload) for one in messages], attributes)


class _Session:
    """A connection to the session and the messages that have arrived on it, in their order."""

    def __init__(self, options: MqttSourceOptions, terms: Terms) -> None:
        self._arrived: deque[Any] = deque()
        self._bytes = 0
        self.connection = Connection(
            options, terms, SOURCE, on_message=self._add, is_full=self._is_full
        )

    def take(self, rows_max: int, seconds: float) -> list[Any]:
        """Remove and return the next messages, or none after ``seconds``.

        Raises SourceUnavailable if the connection is lost. The messages that have arrived by then
        come again on the next connection.
        """
        taken, size = list[Any](), 0
        with self.connection.changed:
            self.connection.changed.wait_for(
                lambda: self._arrived or self.connection.is_lost, seconds
            )
            self.connection.require_alive()
            while self._arrived and len(taken) < rows_max:
                size += _size(self._arrived[0])
                if taken and size > BATCH_BYTES_MAX:
                    break
                taken.append(self._arrived.popleft())
                self._bytes -= _size(taken[-1])
        self.connection.wake()
        return taken

    def _add(self, message: Any) -> None:
        with self.connection.changed:
            self._arrived.append(message)
            self._bytes += _size(message)
            self.connection.changed.notify_all()

    def _is_full(self) -> bool:
        return self._bytes > BUFFER_BYTES


def _size(message: Any) -> int:
    named = getattr(message.properties, "UserProperty", ())
    size = len(message.payload) + sum(len(name) + len(value) for name, value in named)
    return size + MESSAGE_BYTES


def _unshared(topic: str) -> str:
    """The topic filter of a shared subscription ``$share/NAME/filter``, or ``topic`` itself."""
    return topic.split("/", 2)[-1] if topic.startswith(SHARED) else topic


_PROPERTIES = {
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "message_expiry": "MessageExpiryInterval",
}


def _reader(attribute: str) -> Callable[[Any], Any]:
    """The function that returns ``attribute`` of a message, or None."""
    if attribute.startswith(HEADER):
        name = attribute.removeprefix(HEADER)
        return lambda message: dict(getattr(message.properties, "UserProperty", ())).get(name)
    if attribute in _PROPERTIES:
        return lambda message: getattr(message.properties, _PROPERTIES[attribute], None)
    return lambda message: getattr(message, attribute)
