"""A real nats-server with JetStream for tests, and a client that writes to its streams."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ha_engine.connectors.loop_thread import LoopThread
from tests.connectors.server import Server, running

MAX_PAYLOAD = 16 << 20


class NatsBroker(Server):
    """A server whose configuration has the lines ``settings`` too."""

    program = "nats-server"

    def __init__(self, directory: Path, settings: str = "") -> None:
        super().__init__(directory)
        self._settings = settings

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def arguments(self) -> list[str]:
        config = self.directory / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: {MAX_PAYLOAD}\n"
            f'jetstream {{ store_dir: "{self.directory / "data"}" }}\n{self._settings}\n'
        )
        return ["-c", str(config)]

    def answers(self, connection: socket.socket) -> bool:
        """Whether the server greets, which it does after JetStream has started."""
        return connection.recv(4) == b"INFO"


class NatsClient:
    """A client of the server, which connects again after a restart."""

    def __init__(self, url: str, **arguments: Any) -> None:
        self._loop = LoopThread("nats test client")
        self._url, self._arguments = url, arguments
        self._client: Any = None

    def call(self, work: Callable[[Any, Any], Any]) -> Any:
        """Return the result of ``work(client, jetstream)``."""
        import nats

        async def run() -> Any:
            if self._client is None or not self._client.is_connected:
                self._client = await nats.connect(
                    self._url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=_ignore,
                    **self._arguments,
                )
            return await work(self._client, self._client.jetstream())

        return self._loop.call(run(), 60)

    def create(self, name: str, subject: str, **config: Any) -> None:
        self.call(lambda _, js: js.add_stream(name=name, subjects=[subject], **config))

    def put(self, subject: str, *values: bytes, **headers: str) -> None:
        async def publish(client: Any, _: Any) -> None:
            acks = [
                asyncio.ensure_future(client.request(subject, value, 20, headers=headers or None))
                for value in values
            ]
            for ack in acks:
                assert "error" not in json.loads((await ack).data)

        self.call(publish)

    def stored(self, name: str) -> list[Any]:
        """Every message of the stream, in its order."""

        async def read(_: Any, js: Any) -> list[Any]:
            state = (await js.stream_info(name)).state
            if not state.messages:
                return []
            consumer = await js.pull_subscribe("", stream=name, config=_all())
            found = list[Any]()
            while len(found) < state.messages:
                found += await consumer.fetch(min(1000, state.messages - len(found)), timeout=10)
            await consumer.unsubscribe()
            return found

        return self.call(read)  # type: ignore[no-any-return]

    def state(self, name: str) -> Any:
        async def read(_: Any, js: Any) -> Any:
            return (await js.stream_info(name)).state

        return self.call(read)

    def close(self) -> None:
        if self._client is not None:
            self._loop.call(self._client.close(), 10)
        self._loop.stop()


def _all() -> Any:
    from nats.js.api import AckPolicy, ConsumerConfig

    return ConsumerConfig(ack_policy=AckPolicy.NONE)


async def _ignore(error: Exception) -> None:
    pass


def running_broker(settings: str = "") -> AbstractContextManager[NatsBroker]:
    return running(lambda directory: NatsBroker(directory, settings))
