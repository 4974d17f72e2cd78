"""A producer that costs little: bodies made beforehand, a few keep-alive connections, threads.

It tells when each request was acknowledged.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ha_engine.client.payload import Form

CONNECTIONS = 4


@dataclass
class Fed:
    """``acked`` holds the time of each ack, by the request's number; seconds since 1970."""

    acked: dict[int, float] = field(default_factory=dict)
    refused: int = 0


class Feeder:
    """Posts bodies to one stream of the node at ``address`` (host:port).

    Each of the ``connections`` has one request under way.
    """

    def __init__(
        self,
        address: str,
        stream: str,
        form: Form = Form.NDJSON,
        connections: int = CONNECTIONS,
    ) -> None:
        self._address, self._path = address, f"/v1/streams/{stream}/events"
        self._headers, self._connections = {"Content-Type": form.value}, connections

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        connection.connect()
        return connection

    def post(self, connection: http.client.HTTPConnection, body: bytes) -> int | None:
        """Rows accepted, or None when the node asked to come again later."""
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 429:
            return None
        if answer.status != 200:
            raise RuntimeError(f"the node answered {answer.status}: {text[:300]!r}")
        return int(json.loads(text)["accepted"])

    def feed(self, bodies: Iterable[bytes]) -> Fed:
        """Everything, as fast as it is taken; what is refused is sent again."""

        def send(
            connection: http.client.HTTPConnection, fed: Fed, number: int, body: bytes
        ) -> None:
            while self.post(connection, body) is None:
                fed.refused += 1
                time.sleep(0.05)
            fed.acked[number] = time.time()

        return self._work(bodies, send)

    def offer(self, bodies: Iterable[bytes]) -> Fed:
        """Each once; ``bodies`` sets the pace by waiting, and what is refused is dropped."""

        def send(
            connection: http.client.HTTPConnection, fed: Fed, number: int, body: bytes
        ) -> None:
            if self.post(connection, body) is None:
                fed.refused += 1
            else:
                fed.acked[number] = time.time()

        return self._work(bodies, send)

    def _work(self, bodies: Iterable[bytes], send: Callable[..., None]) -> Fed:
        fed, work, lock = Fed(), enumerate(bodies), threading.Lock()
        errors: list[BaseException] = []

        def run() -> None:
            connection = self.connect()
            try:
                while not errors:
                    with lock:
                        number, body = next(work, (-1, b""))
                    if number < 0:
                        break
                    send(connection, fed, number, body)
            except BaseException as error:
                errors.append(error)
            connection.close()

        threads = [threading.Thread(target=run, daemon=True) for _ in range(self._connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return fed
