"""A real nats-server with JetStream for tests, and a client that writes to its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ha_engine.connectors.loop_thread import LoopThread
from tests.programs import found
from tests.waiting import wait_until

MAX_PAYLOAD = 16 << 20


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class NatsBroker:
    """A server with its data in ``directory``. ``settings`` are lines of its configuration."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        self.port, self._settings = free_port(), settings
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = self._directory / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: {MAX_PAYLOAD}\n"
            f'jetstream {{ store_dir: "{self._directory / "data"}" }}\n{self._settings}\n'
        )
        program = found("nats-server")
        assert program is not None
        with (self._directory / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        """Whether the server greets a connection, which it does after JetStream has started."""
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "nats.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


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


@contextlib.contextmanager
def running_broker(settings: str = "") -> Iterator[NatsBroker]:
    directory = Path(tempfile.mkdtemp(prefix="nats-"))
    broker = NatsBroker(directory, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


class Proxy:
    """Forwards connections to a port, until it is frozen: then it keeps what it receives, like the
    network of a host that hangs."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._limit: int | None = None
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze_after(self, size: int) -> None:
        """Freeze the way to the server after ``size`` more bytes."""
        self._limit = size

    @property
    def is_frozen(self) -> bool:
        return not self._flows.is_set()

    def thaw(self) -> None:
        self._limit = None
        self._flows.set()

    def close(self) -> None:
        self.thaw()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, target, counts in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pump, args=(source, target, counts), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._forward(data, target, counts)
            if counts:
                self._flows.wait()
            target.shutdown(socket.SHUT_WR)

    def _forward(self, data: bytes, target: socket.socket, counts: bool) -> None:
        if counts and self._limit is not None:
            now = data[: self._limit]
            target.sendall(now)
            self._limit -= len(now)
            data = data[len(now) :]
            if not data:
                return
            self._flows.clear()
        if counts:
            self._flows.wait()
        target.sendall(data)
