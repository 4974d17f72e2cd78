"""A connection to the HTTP interface, with limits that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ha_engine.web.closed import Closed

HEADERS_BYTES_MAX = 64 << 10
PIPELINED_MAX = 8
"""The number of requests that a connection may send before the answer to an earlier one."""


class ConnectionPool:
    """The limit of a server's connections, and the connections that wait for a request.

    At the limit, a new connection takes the place of the connection that has waited longest. Idle
    connections alone can therefore not keep producers or health checks out.
    """

    def __init__(self, connections_max: int, closed: Counter[str]) -> None:
        self._connections_max, self.closed = connections_max, closed
        self.waiting: dict[BoundedConnection, None] = {}

    def admit(self, connections: int) -> bool:
        """Return whether a new connection may stay, if there are now ``connections``."""
        if connections <= self._connections_max:
            return True
        longest = next(iter(self.waiting), None)
        if longest is not None:
            longest.end(Closed.DISPLACED)
        return longest is not None


class _Stop(Exception):
    """Ends the parser's work on the bytes of one read."""


class BoundedConnection(HttpToolsProtocol):
    """A connection that closes if a request's headers are late or too large, or if too many
    requests wait for an answer, or if its client does not read the answers.

    The headers are late ``timeout_keep_alive`` seconds after the connection's start or last answer.
    The connection answers 431 if the headers are too large. One read may have thousands of small
    requests. If a client sends more than PIPELINED_MAX requests without waiting, the connection
    answers the first of them, drops the others and closes. A client that reads nothing for
    ``timeout_keep_alive`` seconds loses its connection.
    """

    def __init__(self, pool: ConnectionPool, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = pool
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._unread: asyncio.TimerHandle | None = None
        self._awaits_headers, self._unparsed_bytes = True, 0
        self._has_begun = self._drops_requests = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._pool.admit(len(self.connections)):
            self._await_headers()
        else:
            self._refuse(
                Closed.TOO_MANY, "503 Service Unavailable", "too many connections are open"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self.resume_writing()
        self.pipeline.clear()
        for request in self._unanswered:
            # uvicorn tells only the request that arrived last, which may be a pipelined one.
            request.disconnected = True
            request.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self._later(self.end, Closed.UNREAD)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def end(self, reason: Closed) -> None:
        """Close the connection because of its client."""
        self._pool.closed[reason] += 1
        self._stop_waiting()
        if self.transport.get_write_buffer_size() or self.scheme == "https":
            # A close would wait until the client has read its answer, and has ended TLS.
            self.transport.abort()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._drops_requests or self.transport.is_closing():
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._awaits_headers and self._unparsed_bytes > HEADERS_BYTES_MAX:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            self._drops_requests = True
            self.cycle.keep_alive = False  # the last request that is answered
            self._pool.closed[Closed.PIPELINED] += 1
            self._wait_for_reader()
            raise _Stop
        self._has_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_headers = False
        self._stop_waiting()
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > HEADERS_BYTES_MAX:
            self._refuse_headers()
            raise _Stop
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":
            self._refuse_request("the request must have exactly one Host header")
            raise _Stop
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        self._awaits_headers, self._unparsed_bytes, self._has_begun = True, 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self.cycle.response_complete:  # else a pipelined request is running already
            self._await_headers()

    def send_400_response(self, msg: str) -> None:
        if not self._drops_requests and not self.transport.is_closing():
            self._refuse_request(msg)

    def _refuse_headers(self) -> None:
        text = f"the headers have more than {HEADERS_BYTES_MAX} bytes"
        self._refuse(Closed.LARGE_HEADERS, "431 Request Header Fields Too Large", text)

    def _refuse_request(self, reason: str) -> None:
        self._refuse(Closed.MALFORMED, "400 Bad Request", reason)

    def _await_headers(self) -> None:
        if self._drops_requests:
            return  # the deadline of the last answer remains
        self._stop_waiting()
        if self.transport.is_closing():
            self._wait_for_reader()
        else:
            self._deadline = self._later(self._waited_too_long)
            self._pool.waiting[self] = None

    def _wait_for_reader(self) -> None:
        """Give the client time to read its last answer, for which a closed transport waits."""
        self._deadline = self._later(self.end, Closed.UNREAD)

    def _waited_too_long(self) -> None:
        if self.transport.get_write_buffer_size():
            self.end(Closed.UNREAD)
        elif self._has_begun:
            self.end(Closed.LATE)
        else:
            self.transport.close()

    def _later(self, act: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(self.timeout_keep_alive, act, *arguments)

    def _stop_waiting(self) -> None:
        self._pool.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, counted: Closed, status: str, reason: str) -> None:
        self._pool.closed[counted] += 1
        body = json.dumps({"error": reason})
        headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        text = f"HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n{body}"
        self.transport.write(text.encode("ascii"))
        self.transport.close()
        self._stop_waiting()
        self._wait_for_reader()
