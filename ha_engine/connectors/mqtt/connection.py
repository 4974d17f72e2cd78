"""One connection to an MQTT broker, and the thread that reads and writes its packets.

paho-mqtt has a network loop of its own. This module replaces that loop for three reasons. It polls
instead of ``select``, which fails in a process with more than 1,024 open files. It stops reading
while ``is_full()`` is true, so that the broker waits and the memory of this process is bounded. It
reads what the broker sent before it closed the connection, which may be the reason. paho-mqtt would
drop that as soon as it cannot write.

A connection is never made again. Packet identifiers of one connection must not be acknowledged on
the next one, where they may belong to other messages, which the broker would then drop.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.connectors.streams import Refused, Unavailable
from ha_engine.connectors.tls import tls_context
from ha_engine.errors import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable

POLL_SECONDS = 0.5
CLOSE_SECONDS = 5.0
"""A connection ends at the latest this time after ``close``, or after it could not write."""
SESSION_SECONDS_MAX = 0xFFFFFFFE
FAILED = 0x80
"""Reason codes from this one are failures."""
NO_SUBSCRIPTION = 0x11
_PERSON = frozenset(
    {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8F, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9D, 0x9E, 0xA2}
)
"""Reason codes that only a person can correct, such as 0x87, not authorized."""
_TAKEN_OVER, _BAD_ID, _BAD_VERSION, _NOT_AUTHORIZED = 0x8E, 0x85, 0x84, frozenset({0x86, 0x87})
_PROTOCOL_ERROR, _TOO_LARGE = 0x82, 0x95


class BrokerOptions(BaseModel):
    """The options of a connection to a broker.

    ``tls`` encrypts the connection; the port is then 8883 instead of 1883. ``ca_file`` has the
    certificates that sign the broker's one; without it, those of the system do. The client
    certificate in ``certificate_file`` needs the key in ``key_file``. ``client_id`` replaces the id
    that is made of the names of the group, the stream or query, and the source or sink.
    ``timeout`` bounds each wait for an answer of the broker. The broker regards a client as lost
    that is silent for one and a half times ``keepalive``.
    """

    # An error of several keys would show all of them, and with them the password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: str | None = None
    password: SecretStr | None = None
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    client_id: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 10.0
    keepalive: Annotated[Duration, Field(ge=1, le=65_535)] = 30.0

    @model_validator(mode="after")
    def _related(self) -> BrokerOptions:
        if self.password is not None and self.user is None:
            raise ValueError("password needs user")
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file need tls: true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file need each other")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return self.host, self.port or (8883 if self.tls else 1883)


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors of a source, or those of a sink."""

    unavailable: Unavailable
    refused: Refused

    def by_code(self, code: Any, problem: str) -> Exception:
        """The error for a reason code of the broker, which is an instance of paho's ReasonCode."""
        kind = self.refused if code.value in _PERSON else self.unavailable
        return kind(f"{problem}: {code}{_advice(code.value)}")


SOURCE = Failures(SourceUnavailable, SourceRefused)
SINK = Failures(SinkUnavailable, SinkRefused)


def _advice(code: int) -> str:
    if code in _NOT_AUTHORIZED:
        return "; correct user and password, or the permissions of the user at the broker"
    if code == _BAD_ID:
        return "; set client_id to an id that the broker accepts"
    if code == _BAD_VERSION:
        return "; the broker must speak MQTT 5"
    if code == _TOO_LARGE:
        return "; raise the limit of the broker"
    return ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The values that the client asks for in CONNECT.

    ``session_seconds`` is how long the broker keeps the session after the connection, and
    ``resume`` whether an existing session continues. The broker sends at most ``in_flight``
    messages that the client has not acknowledged.
    """

    client_id: str
    resume: bool = False
    session_seconds: int = 0
    in_flight: int = 65_535


class Connection:
    """A connection that ``connect`` makes, and that ends once: by ``close`` or by a failure.

    ``changed`` is notified when anything of the connection changes. The callbacks run in the
    connection's thread. A thread that holds ``changed`` must not call paho-mqtt, whose thread may
    hold a lock of the library while it waits for ``changed``.
    """

    def __init__(
        self,
        options: BrokerOptions,
        terms: Terms,
        failures: Failures,
        on_message: Callable[[Any], None] | None = None,
        on_published: Callable[[int, Any], None] | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options, self._terms, self._failures = options, terms, failures
        self._on_message, self._on_published, self._is_full = on_message, on_published, is_full
        self.changed = threading.Condition()
        self.where = "MQTT broker {}:{}".format(*options.address)
        self.resumed = False
        self.limits: Any = None
        self._answers: dict[int | str, Any] = {}
        self._lost: Exception | None = None
        self._is_accepted = False
        self._cause: OSError | None = None
        self._closed_at: float | None = None
        self._broken_at: float | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._client = self._new_client()

    # -- for the source and the sink ---------------------------------------------------------------

    def connect(self) -> None:
        """Return once the broker has accepted the connection.

        ``resumed`` then says whether the broker had a session of this client. ``limits`` are the
        properties of CONNACK.
        """
        host, port = self._options.address
        try:
            self._client.connect(
                host,
                port,
                int(self._options.keepalive),
                clean_start=not self._terms.resume,
                properties=self._connect_properties(),
            )
        except (OSError, ValueError) as error:
            self._discard()
            if _is_tls(error):
                raise self._not_encrypted(error) from error
            raise self._failures.unavailable(
                f"{self.where} is not available: {error or type(error).__name__}"
            ) from error
        name = f"mqtt-{self._terms.client_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        flags, code, self.limits = self._answer("connect", "accept the connection")
        if code.value >= FAILED:
            self.close()
            raise self._failures.by_code(code, f"{self.where} refuses the connection")
        self._is_accepted, self.resumed = True, bool(flags.session_present)

    def subscribe(self, filters: Sequence[str], send_retained: bool) -> None:
        """Subscribe to ``filters`` with QoS 1. A subscription that exists is replaced.

        ``send_retained`` asks for the retained messages if the subscription did not exist.
        """
        for one, code in zip(filters, self._subscribe(filters, 1, send_retained), strict=True):
            if code.value >= FAILED:
                raise self._failures.by_code(code, f"{self.where} refuses the topic filter {one}")
            if code.value == 0:
                raise self._failures.refused(
                    f"{self.where} grants only QoS 0 for the topic filter {one}, and would lose "
                    "messages; allow QoS 1 at the broker"
                )

    def mark(self, topic: str) -> bool:
        """Subscribe to ``topic``, to which nobody publishes. Return whether the broker allows
        it."""
        (code,) = self._subscribe([topic], 0, False)
        return bool(code.value < FAILED)

    def unsubscribe(self, filters: Sequence[str]) -> bool:
        """End the subscriptions to ``filters``. Return whether each of them existed."""
        result, mid = self._client.unsubscribe(list(filters))
        self._require_sent(result)
        codes = self._answer(mid, "answer UNSUBSCRIBE")
        for one, code in zip(filters, codes, strict=True):
            if code.value >= FAILED:
                raise self._failures.by_code(code, f"{self.where} does not unsubscribe {one}")
        return all(code.value != NO_SUBSCRIPTION for code in codes)

    def acknowledge(self, packets: Sequence[int]) -> None:
        """Acknowledge the messages with these packet identifiers, in this order."""
        for one in packets:
            self._client.ack(one, 1)
        self.wake()

    def publish(self, topic: str, value: bytes, retain: bool, properties: Any) -> int:
        """Publish with QoS 1 and return the packet identifier. ``on_published`` gets the answer,
        perhaps before this method returns."""
        info = self._client.publish(topic, value, 1, retain, properties)
        self._require_sent(info.rc)
        self.wake()
        return int(info.mid)

    def require_alive(self) -> None:
        """Raise the error with which the connection ended, if it has ended."""
        with self.changed:
            if self._lost is not None:
                raise self._lost

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    def wake(self) -> None:
        """Let the thread look for packets to write, and whether it may read again."""
        try:
            self._wake_write.send(b"\0")
        except OSError:
            pass  # it is awake already, or has ended

    def close(self, end_session: bool = False) -> None:
        """End the connection without waiting. ``end_session`` makes the broker drop the session."""
        with self.changed:
            if self._closed_at is not None:
                return
            self._closed_at = time.monotonic()
            self._lost = self._lost or self._failures.unavailable(f"{self.where} is disconnected")
            self.changed.notify_all()
        properties = self._properties("DISCONNECT")
        if end_session:
            properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)
        self.wake()

    # -- waits -------------------------------------------------------------------------------------

    def _answer(self, key: int | str, what: str) -> Any:
        seconds = self._options.timeout
        with self.changed:
            self.changed.wait_for(lambda: key in self._answers or self._lost is not None, seconds)
            if key in self._answers:
                return self._answers.pop(key)
            lost = self._lost
        self.close()
        raise lost or self._failures.unavailable(
            f"{self.where} does not {what} within {seconds:g} s"
        )

    def _require_sent(self, result: int) -> None:
        self.wake()
        if result:
            with self.changed:  # paho-mqtt closes its socket shortly before it says why
                self.changed.wait_for(lambda: self._lost is not None, POLL_SECONDS)
            self.require_alive()
            raise self._failures.unavailable(f"{self.where} takes no packet: {result}")

    def _subscribe(self, filters: Sequence[str], qos: int, send_retained: bool) -> Sequence[Any]:
        options = self._paho("subscribeoptions").SubscribeOptions(
            qos=qos, retainHandling=1 if send_retained else 2
        )
        result, mid = self._client.subscribe([(one, options) for one in filters])
        self._require_sent(result)
        codes: Sequence[Any] = self._answer(mid, "answer SUBSCRIBE")
        return codes

    # -- paho-mqtt ---------------------------------------------------------------------------------

    def _paho(self, module: str) -> Any:
        return library(f"paho.mqtt.{module}", "mqtt", self._failures.refused)

    def _properties(self, packet: str) -> Any:
        types = self._paho("packettypes").PacketTypes
        return self._paho("properties").Properties(getattr(types, packet))

    def _connect_properties(self) -> Any:
        properties = self._properties("CONNECT")
        properties.SessionExpiryInterval = self._terms.session_seconds
        properties.ReceiveMaximum = self._terms.in_flight
        return properties

    def _new_client(self) -> Any:
        paho, options = self._paho("client"), self._options
        client = _class_of(paho)(
            self._broken,
            paho.CallbackAPIVersion.VERSION2,
            client_id=self._terms.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = options.timeout
        client.max_inflight_messages_set(0)  # the callers bound what they publish
        if options.user is not None:
            secret = options.password
            client.username_pw_set(options.user, secret.get_secret_value() if secret else None)
        if options.tls:
            files = options.ca_file, options.certificate_file, options.key_file
            client.tls_set_context(tls_context(*files, self._failures.refused))
        client.on_connect = lambda _, __, *answer: self._answered("connect", answer)
        client.on_subscribe = lambda _, __, mid, codes, ___: self._answered(mid, codes)
        client.on_unsubscribe = lambda _, __, mid, codes, ___: self._answered(mid, codes)
        client.on_disconnect = self._disconnected
        # With this callback paho-mqtt leaves all writing to the thread of this connection.
        client.on_socket_register_write = lambda *_: self.wake()
        if self._on_message is not None:
            deliver = self._on_message
            client.on_message = lambda _, __, message: deliver(message)
        if self._on_published is not None:
            published = self._on_published
            client.on_publish = lambda _, __, mid, code, ___: published(mid, code)
        return client

    def _answered(self, key: int | str, answer: Any) -> None:
        with self.changed:
            self._answers[key] = answer
            self.changed.notify_all()

    def _broken(self, error: OSError) -> None:
        """A read or a write has failed."""
        if self._cause is None:
            self._cause, self._broken_at = error, time.monotonic()

    def _disconnected(self, client: Any, _: Any, flags: Any, code: Any, __: Any) -> None:
        by_broker = flags.is_disconnect_packet_from_server
        error: Exception
        if not by_broker and code.value == _PROTOCOL_ERROR:
            error = self._failures.refused(
                f"{self.where} sent what MQTT 5 does not allow; mosquitto does so if a message is "
                "larger than its message_size_limit: set max_packet_size there instead"
            )
        elif not by_broker:
            error = self._broken_error(self._cause or str(code))
        elif code.value == _TAKEN_OVER:
            error = self._failures.unavailable(
                f"{self.where} gave the session to another client with the id "
                f"{self._terms.client_id}: to the next active, or to a program that must use "
                "another id"
            )
        else:
            error = self._failures.by_code(code, f"{self.where} closed the connection")
        self._end(error)

    def _broken_error(self, cause: OSError | str) -> Exception:
        """The error for a connection that ended without DISCONNECT."""
        if isinstance(cause, OSError) and _is_tls(cause) and not self._is_accepted:
            return self._not_encrypted(cause)
        return self._failures.unavailable(
            f"{self.where} closed the connection: {cause}; some brokers do so without a reason "
            f"when another client with the id {self._terms.client_id} connects"
        )

    def _not_encrypted(self, error: Exception) -> Exception:
        said = getattr(error, "verify_message", "") or error
        return self._failures.refused(
            f"{self.where} cannot be reached by TLS: {said}; correct host, port, ca_file, "
            "certificate_file and key_file"
        )

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while (sock := self._client.socket()) is not None and not self._is_overdue():
                self._turn(sock)
        except Exception as raised:  # whatever the library raises, the connection is over
            error = raised
        reason = f": {error or type(error).__name__}" if error else ""
        self._end(self._failures.unavailable(f"{self.where} closed the connection{reason}"))
        self._discard()

    def _turn(self, sock: Any) -> None:
        """Wait until there is something to do, then read and write what is possible."""
        if self._broken_at is not None:
            self._read_rest()
            return
        full = self._is_full() and self._closed_at is None
        pending = 0 if full else getattr(sock, "pending", lambda: 0)()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        writes = select.POLLOUT if self._client.want_write() else 0
        poll.register(sock, writes if full else writes | select.POLLIN)
        ready = dict(poll.poll(0 if pending else POLL_SECONDS * 1_000))
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(4_096)
        found = ready.get(sock.fileno(), 0)
        if pending or found & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._client.loop_read()
        if self._client.want_write():
            self._client.loop_write()
        if not full:  # an unread PINGRESP is no sign of a lost broker
            self._client.loop_misc()

    def _read_rest(self) -> None:
        """Read what the broker sent before the connection ended, up to its end."""
        poll = select.poll()
        poll.register(self._client.socket(), select.POLLIN)
        poll.poll(POLL_SECONDS * 1_000)
        self._client.loop_read()

    def _is_overdue(self) -> bool:
        times = [at for at in (self._closed_at, self._broken_at) if at is not None]
        return bool(times) and time.monotonic() > min(times) + CLOSE_SECONDS

    def _end(self, error: Exception) -> None:
        with self.changed:
            self._lost = self._lost or error
            self.changed.notify_all()

    def _discard(self) -> None:
        if (sock := self._client.socket()) is not None:
            sock.close()
        self._wake_read.close()
        self._wake_write.close()


def _is_tls(error: Exception) -> bool:
    """Whether ``error`` is about certificates or versions, and not the end of a connection."""
    return isinstance(error, ssl.SSLError) and not isinstance(
        error, ssl.SSLEOFError | ssl.SSLZeroReturnError
    )


def _class_of(paho: Any) -> Any:
    """A client of paho-mqtt that reports each error of its socket to ``broken``.

    After an error of a write, the socket stays open until a read finds its end.
    """

    class Client(paho.Client):  # type: ignore[misc]
        def __init__(self, broken: Callable[[OSError], None], *args: Any, **options: Any) -> None:
            self._broken = broken
            super().__init__(*args, **options)

        def _sock_send(self, data: Any) -> int:
            try:
                return int(super()._sock_send(data))
            except BlockingIOError:
                raise
            except OSError as error:
                self._broken(error)
                raise BlockingIOError from error

        def _sock_recv(self, size: int) -> Any:
            try:
                return super()._sock_recv(size)
            except BlockingIOError:
                raise
            except OSError as error:
                self._broken(error)
                raise

    return Client
