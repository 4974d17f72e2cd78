"""A broker with an input that a source of a pair reads, and an output that a sink writes.

Each kind of connector has an exchange here. Messages are JSON objects ``{"n": number}``. The nodes
reach the broker through a proxy, so that a test can cut their link; the test itself does not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tests.connectors import nats_broker, redis_broker
from tests.connectors.proxy import Proxy
from tests.connectors.server import Server


class Exchange:
    """What the tests need of a broker; each kind fills in the rest.

    ``exactly_once``: whether each message must be in the output once; else at least once.
    """

    exactly_once = True

    def __init__(self, server: Server) -> None:
        self.server = server
        self.link = Proxy(server.port)

    @property
    def source(self) -> dict[str, Any]:
        """Return the keys of the source in the application file, without its name."""
        raise NotImplementedError

    @property
    def sink(self) -> dict[str, Any]:
        """Return the keys of the sink in the application file, without its name."""
        raise NotImplementedError

    def put(self, numbers: Sequence[int]) -> None:
        """Write messages to the input. After an error it is unknown which are there."""
        raise NotImplementedError

    def inputs(self) -> list[int] | None:
        """Return the numbers that the input has, each once, or None if reading removes them."""
        raise NotImplementedError

    def outputs(self) -> list[int]:
        """Return the numbers that the output has."""
        raise NotImplementedError

    def restart(self) -> None:
        """Kill the broker, and start it again with its data."""
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        self.link.close()


class Nats(Exchange):
    def __init__(self, server: nats_broker.NatsBroker) -> None:
        super().__init__(server)
        self._client = nats_broker.NatsClient(server.url)
        for name in ("IN", "OUT"):
            self._client.create(name, f"{name}.>")

    def _place(self, stream: str) -> dict[str, Any]:
        servers = [f"nats://127.0.0.1:{self.link.port}"]
        return {"type": "nats", "servers": servers, "stream": stream, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place("IN")

    @property
    def sink(self) -> dict[str, Any]:
        return self._place("OUT") | {"subject": "OUT.n"}

    def put(self, numbers: Sequence[int]) -> None:
        self._client.put("IN.n", *map(message, numbers))

    def inputs(self) -> list[int]:
        return self._numbers("IN")

    def outputs(self) -> list[int]:
        return self._numbers("OUT")

    def _numbers(self, stream: str) -> list[int]:
        return numbers_in(found.data for found in self._client.stored(stream))

    def close(self) -> None:
        self._client.close()
        super().close()


class Redis(Exchange):
    def __init__(self, server: redis_broker.RedisBroker) -> None:
        super().__init__(server)
        self._client = server.client()

    def _place(self, stream: str) -> dict[str, Any]:
        address = {"host": "127.0.0.1", "port": self.link.port}
        return {"type": "redis", **address, "stream": stream, "format": "json"}

    @property
    def source(self) -> dict[str, Any]:
        return self._place("in")

    @property
    def sink(self) -> dict[str, Any]:
        return self._place("out")

    def put(self, numbers: Sequence[int]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd("in", {"value": message(number)})
        pipeline.execute()

    def inputs(self) -> list[int]:
        return self._numbers("in")

    def outputs(self) -> list[int]:
        return self._numbers("out")

    def _numbers(self, stream: str) -> list[int]:
        return numbers_in(fields[b"value"] for _, fields in self._client.xrange(stream))

    def close(self) -> None:
        self._client.close()
        super().close()


def message(number: int) -> bytes:
    return b'{"n": %d}' % number


def numbers_in(messages: Iterable[bytes]) -> list[int]:
    return [json.loads(found)["n"] for found in messages]


_Opened = Callable[[ExitStack], Exchange]
KINDS: dict[str, _Opened] = {
    "nats": lambda stack: Nats(stack.enter_context(nats_broker.running_broker())),
    "redis": lambda stack: Redis(stack.enter_context(redis_broker.running_broker())),
}


@contextlib.contextmanager
def running_exchange(kind: str) -> Iterator[Exchange]:
    with ExitStack() as stack:
        exchange = KINDS[kind](stack)
        stack.callback(exchange.close)
        yield exchange
