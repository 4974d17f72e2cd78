"""A mosquitto in a temporary directory, and a client of its own for tests."""

from __future__ import annotations

import contextlib
import getpass
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.programs import found
from tests.waiting import wait_ended, wait_until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Mosquitto:
    """A broker on ``port`` with its data in ``home``. ``settings`` are lines of its configuration.

    It keeps its data over ``stop`` and ``start``, and over ``kill`` what ``store`` has stored.
    """

    def __init__(self, home: Path, settings: str = "", anonymous: bool = True) -> None:
        self.port, self._home, self._process = free_port(), home, None
        home.mkdir(parents=True, exist_ok=True)
        (home / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous {str(anonymous).lower()}\n"
            f"user {getpass.getuser()}\npersistence true\npersistence_location {home}/\n"
            f"max_queued_messages 0\nmax_inflight_messages 0\n{settings}\n"
        )

    _process: subprocess.Popen[bytes] | None

    @property
    def options(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def start(self) -> None:
        program = found("mosquitto")
        assert program is not None
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self._home / "mosquitto.conf")], stdout=log, stderr=log
            )
        wait_until(self._answers)

    def stop(self) -> None:
        """End the broker, which stores its data first."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        self._end(lambda process: process.kill())

    def _end(self, how: Any) -> None:
        if self._process is not None:
            how(self._process)
            wait_ended(self._process)
            self._process = None

    def store(self, value: bytes) -> None:
        """Let mosquitto store its messages, and wait until ``value`` is on disk."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        file = self._home / "mosquitto.db"
        wait_until(lambda: file.exists() and value in file.read_bytes())

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    @contextlib.contextmanager
    def running(self) -> Iterator[Mosquitto]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    # -- a client ----------------------------------------------------------------------------------

    def publish(self, *messages: tuple[str, bytes], qos: int = 1, retain: bool = False) -> None:
        """Publish messages, each a topic and a value, and wait until the broker has them."""
        with self.client() as client:
            sent = [client.publish(topic, value, qos, retain) for topic, value in messages]
            for one in sent:
                one.wait_for_publish(30)

    @contextlib.contextmanager
    def client(
        self,
        name: str = "",
        clean: bool = True,
        on_message: Callable[[paho.MQTTMessage], None] = lambda _: None,
    ) -> Iterator[paho.Client]:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.on_message = lambda _, __, message: on_message(message)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0 if clean else 3600
        client.connect("127.0.0.1", self.port, clean_start=clean, properties=properties)
        client.loop_start()
        try:
            assert connected.wait(30)
            yield client
        finally:
            client.disconnect()
            client.loop_stop()


class Listener:
    """Collects the messages of a topic filter, from its construction until ``close``.

    It kills the broker after ``kill_after`` messages.
    """

    def __init__(self, broker: Mosquitto, topics: str = "#", kill_after: int | None = None) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._killed = False
        self._broker, self._kill_after = broker, kill_after
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(broker.client(on_message=self._add))
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.subscribe(topics, 1)
        assert subscribed.wait(30)

    def _add(self, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
        if self._kill_after == len(self.messages):
            self._broker.kill()
            self._killed = True

    def wait_killed(self) -> None:
        wait_until(lambda: self._killed)

    def close(self) -> None:
        self._stack.close()
