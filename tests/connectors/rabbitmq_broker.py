"""A RabbitMQ in a temporary directory, and calls of a client of its own for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import psutil

from tests.connectors.mqtt_broker import free_port
from tests.waiting import wait_ended, wait_until

T = TypeVar("T")

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The script of Debian's package; the one in the PATH changes the user."""


class Rabbit:
    """A broker on ``port`` with its data in ``home``. It keeps its data over restarts.

    Its Erlang port mapper has a port of its own, and ends with the broker.
    """

    def __init__(self, home: Path) -> None:
        self.port, self._epmd_port, self._home = free_port(), free_port(), home
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "vm_memory_high_watermark.absolute = 400MB\ndisk_free_limit.absolute = 50MB\n"
            "log.console = true\nlog.file = false\n"
        )
        (home / "enabled_plugins").write_text("[].\n")

    @property
    def options(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTEST_ANCESTOR": os.environ.get("PYTEST_ANCESTOR", ""),
            "HOME": str(self._home),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._home / "data"),
            "RABBITMQ_LOG_BASE": str(self._home / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self._home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._home / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self._home / "no-environment"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +A 8",
        }
        with (self._home / "log").open("ab") as log:
            if self._epmd is None:
                self._epmd = subprocess.Popen(["epmd"], env=environment, stdout=log, stderr=log)
            self._process = subprocess.Popen(
                [str(SCRIPT)], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, within=300.0, every=0.5)

    def stop(self) -> None:
        """End the broker in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the broker at once, and the port mapper."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            wait_ended(self._epmd)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            # While it boots, it has children with sessions of their own.
            children = psutil.Process(self._process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            wait_ended(self._process)
            for child in psutil.wait_procs(children, timeout=5)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "log").read_text()[-2_000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            self.run(lambda _: asyncio.sleep(0))
            return True
        except (OSError, TimeoutError, aio_pika.exceptions.AMQPError):
            return False

    @contextlib.contextmanager
    def running(self) -> Iterator[Rabbit]:
        try:
            self.start()
            yield self
        finally:
            self.close()

    # -- a client ----------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call ``work`` with a channel of a new connection."""

        async def call() -> T:
            url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
            async with await aio_pika.connect(url, timeout=30) as connection:
                return await work(await connection.channel())

        return asyncio.run(call())

    def declare(self, queue: str, kind: str = "classic", **arguments: Any) -> None:
        arguments["x-queue-type"] = kind
        self.run(lambda channel: channel.declare_queue(queue, durable=True, arguments=arguments))

    def delete(self, queue: str) -> None:
        self.run(lambda channel: channel.queue_delete(queue))

    def put(self, queue: str, *values: bytes, **properties: Any) -> None:
        """Publish persistent messages and wait for the confirms."""

        async def publish(channel: Any) -> None:
            for first in range(0, len(values), 500):
                await asyncio.gather(
                    *(
                        channel.default_exchange.publish(
                            aio_pika.Message(value, delivery_mode=2, **properties), queue
                        )
                        for value in values[first : first + 500]
                    )
                )

        self.run(publish)

    def take(self, queue: str) -> list[Any]:
        """Return all messages of ``queue``, and leave them there."""

        async def get(channel: Any) -> list[Any]:
            found, open_queue = [], await channel.get_queue(queue)
            while (message := await open_queue.get(fail=False)) is not None:
                found.append(message)
            return found

        return self.run(get)
