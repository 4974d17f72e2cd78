"""A real RabbitMQ for tests, and calls of a client of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import psutil

from tests.connectors.server import Server, free_port, running
from tests.sync.authority import Authority
from tests.waiting import wait_ended, wait_until

T = TypeVar("T")

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The script of Debian's package; the one in the PATH changes the user."""
COOKIE = "test"


class RabbitBroker(Server):
    """A broker that keeps its data over restarts. It listens for TLS on ``tls_port``, with a
    certificate of ``authority`` for localhost.

    Its Erlang port mapper has a port of its own, and ends with the broker.
    """

    program = "rabbitmq-server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.tls_port = free_port()
        self.authority = Authority(directory / "authority")
        files = self.authority.files("localhost")
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        (directory / "rabbitmq.conf").write_text(
            f"""
            listeners.tcp.1 = 127.0.0.1:{self.port}
            listeners.ssl.1 = 127.0.0.1:{self.tls_port}
            ssl_options.cacertfile = {files["ca"]}
            ssl_options.certfile = {files["certificate"]}
            ssl_options.keyfile = {files["key"]}
            ssl_options.verify = verify_peer
            ssl_options.fail_if_no_peer_cert = true
            vm_memory_high_watermark.absolute = 2GB
            disk_free_limit.absolute = 1MB
            log.console = true
            log.file = false
            """
        )
        (directory / "enabled_plugins").write_text("[].\n")

    @property
    def options(self) -> dict[str, Any]:
        """The options of a source or sink that connects to the broker."""
        return {"host": "127.0.0.1", "port": self.port, "timeout": "60s"}

    def start(self) -> None:
        environment = self._environment()
        with self._log.open("ab") as log:
            self._epmd = subprocess.Popen(["epmd"], env=environment, stdout=log, stderr=log)
            # Without a port mapper that answers, the broker starts one that outlives it.
            wait_until(lambda: _accepts(self._epmd_port))
            self._process = subprocess.Popen(
                [str(SCRIPT)], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._is_ready, within=60.0, every=0.2)

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None:
        """Add a user who may configure, write and read what matches these patterns."""
        user = f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, <<"test">>)'
        patterns = ", ".join(f'<<"{one}">>' for one in (configure, write, read))
        self.evaluate(
            f'{user}, rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"/">>, '
            f'{patterns}, <<"test">>)'
        )

    @contextlib.contextmanager
    def alarm(self) -> Iterator[None]:
        """The alarm of a broker whose memory is used up."""
        alarm = "{resource_limit, memory, node()}"
        self.evaluate(f"rabbit_alarm:set_alarm({{{alarm}, []}})")
        try:
            yield
        finally:
            self.evaluate(f"rabbit_alarm:clear_alarm({alarm})")

    def evaluate(self, expression: str) -> str:
        """Return the value of an Erlang expression in the broker."""
        command = ["erl_call", "-c", COOKIE, "-n", self._node, "-e"]
        done = subprocess.run(
            command,
            input=f"{expression}.\n".encode(),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
        )
        return done.stdout.decode()

    def sync(self) -> None:
        """Write the names of quorum queues and streams to disk.

        The broker buffers them until half a second passes without a change. A kill before that
        loses the queue or stream: its messages are gone, and nothing can consume it.
        """
        self.evaluate("[ok = dets:sync(Table) || Table <- dets:all()]")

    def freeze(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    @property
    def _node(self) -> str:
        return f"test{self.port}@localhost"

    def _environment(self) -> dict[str, str]:
        home = self.directory
        return {
            "PATH": os.environ["PATH"],
            "PYTEST_ANCESTOR": os.environ.get("PYTEST_ANCESTOR", ""),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-environment"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +A 8 "
            f"-setcookie {COOKIE} -rabbit channel_tick_interval 1000",
        }

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2_000:]
        with contextlib.suppress(OSError, TimeoutError, aio_pika.exceptions.AMQPError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            self.run(lambda _: asyncio.sleep(0))
            return True
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._epmd is None:
            return
        # While it boots, it has children with sessions of their own.
        children = list[psutil.Process]()
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            children = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, number)
        wait_ended(self._process)
        for child in psutil.wait_procs(children, timeout=5)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._epmd.kill()
        self._epmd.wait()
        self._process = self._epmd = None

    # -- a client ----------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call ``work`` with a channel of a new connection."""

        async def call() -> T:
            url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
            async with await aio_pika.connect(url, timeout=60) as connection:
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

    def taken(self, queue: str) -> list[bytes]:
        """Take all messages out of ``queue``, and return their values."""

        async def get(channel: Any) -> list[bytes]:
            found, open_queue = [], await channel.get_queue(queue)
            while (message := await open_queue.get(fail=False, no_ack=True)) is not None:
                found.append(message.body)
            return found

        return self.run(get)

    def bind(self, exchange: str, routing_key: str, queue: str) -> None:
        """Create the exchange and the queue, and route messages with the key to the queue."""

        async def create(channel: Any) -> None:
            made = await channel.declare_exchange(exchange, "topic", durable=True)
            await (await channel.declare_queue(queue, durable=True)).bind(made, routing_key)

        self.run(create)

    def stored(self, queue: str) -> list[Any]:
        """Return all messages of ``queue``, which is no stream, and leave them there."""

        async def get(channel: Any) -> list[Any]:
            found, open_queue = [], await channel.get_queue(queue)
            while (message := await open_queue.get(fail=False)) is not None:
                found.append(message)
            return found

        return self.run(get)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def running_broker() -> AbstractContextManager[RabbitBroker]:
    return running(RabbitBroker)
