"""A real mosquitto for tests, and clients of its own."""

from __future__ import annotations

import contextlib
import getpass
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.connectors.server import Server, running
from tests.waiting import wait_until

SECONDS = 60


class MqttBroker(Server):
    """A broker whose configuration has the lines ``settings`` too.

    It keeps its data over ``stop`` and ``start``, and over ``kill`` what ``store`` has stored.
    """

    program = "mosquitto"

    def __init__(
        self, directory: Path, settings: str = "", *, anonymous: bool = True, stores: bool = True
    ) -> None:
        super().__init__(directory)
        self._settings = (
            f"allow_anonymous {str(anonymous).lower()}\npersistence {str(stores).lower()}\n"
            f"{settings}"
        )

    @property
    def options(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def arguments(self) -> list[str]:
        config = self.directory / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nuser {getpass.getuser()}\n"
            f"persistence_location {self.directory}/\nmax_queued_messages 0\n"
            f"max_inflight_messages 0\n{self._settings}\n"
        )
        return ["-c", str(config)]

    def answers(self, connection: socket.socket) -> bool:
        """Whether the broker accepts a connection, which it does after it has loaded its data."""
        return True

    def store(self, value: bytes) -> None:
        """Let mosquitto store its messages, and wait until ``value`` is on disk."""
        file = self.directory / "mosquitto.db"
        self.send(signal.SIGUSR1)
        wait_until(lambda: file.exists() and value in file.read_bytes())

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the broker hang."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    # -- a client ----------------------------------------------------------------------------------

    def publish(self, *messages: tuple[str, bytes], qos: int = 1, retain: bool = False) -> None:
        """Publish messages, each a topic and a value, and wait until the broker has them."""
        with self.client() as client:
            sent = [client.publish(topic, value, qos, retain) for topic, value in messages]
            for one in sent:
                one.wait_for_publish(SECONDS)

    @contextlib.contextmanager
    def client(
        self,
        name: str = "",
        clean: bool = True,
        on_message: Callable[[paho.MQTTMessage], None] = lambda _: None,
        tls: ssl.SSLContext | None = None,
    ) -> Iterator[paho.Client]:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.on_message = lambda _, __, message: on_message(message)
        client.max_inflight_messages_set(0)
        if tls is not None:
            client.tls_set_context(tls)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0 if clean else 3600
        client.connect("127.0.0.1", self.port, clean_start=clean, properties=properties)
        client.loop_start()
        try:
            assert connected.wait(SECONDS)
            yield client
        finally:
            client.disconnect()
            client.loop_stop()


class Listener:
    """Collects the messages of a topic filter, from its construction until ``close``.

    It kills the broker after ``kill_after`` messages.
    """

    def __init__(
        self, broker: MqttBroker, topics: str = "#", kill_after: int | None = None
    ) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._killed = False
        self._broker, self._kill_after = broker, kill_after
        self._stack = contextlib.ExitStack()
        client = self._stack.enter_context(broker.client(on_message=self._add))
        subscribe(client, topics)

    def _add(self, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
        if self._kill_after == len(self.messages):
            self._broker.kill()
            self._killed = True

    def wait_killed(self) -> None:
        wait_until(lambda: self._killed)

    def close(self) -> None:
        self._stack.close()


def subscribe(client: paho.Client, topics: str) -> None:
    """Subscribe with QoS 1, and wait for the answer."""
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe(topics, 1)
    assert subscribed.wait(SECONDS)


def running_broker(
    settings: str = "", **options: bool
) -> contextlib.AbstractContextManager[MqttBroker]:
    return running(lambda directory: MqttBroker(directory, settings, **options))
