"""A connection to the HTTP interface, with limits that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_BYTES_MAX = 64 << 10
PIPELINED_MAX = 8
"""The number of requests that a connection may send before the answer to an earlier one."""


class _Stop(Exception):
    """Ends the parser's work on the bytes of one read."""


class BoundedConnection(HttpToolsProtocol):
    """A connection that closes if a request's headers are late or too large, or if too many
    requests wait for an answer.

    The headers are late ``timeout_keep_alive`` seconds after the connection's start or last answer.
    The connection answers 431 if the headers are too large. One read may have thousands of small
    requests. If a client sends more than PIPELINED_MAX requests without waiting, the connection
    answers the first of them, drops the others and closes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaits_headers, self._unparsed_bytes = True, 0
        self._drops_requests = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

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
            # A client that reads no answers must not keep the connection.
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)
            raise _Stop
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_headers = False
        self._stop_waiting()
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > HEADERS_BYTES_MAX:
            self._refuse_headers()
            raise _Stop
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":
            self._end_with("400 Bad Request", "the request must have exactly one Host header")
            raise _Stop
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaits_headers, self._unparsed_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else a pipelined request is running already
            self._await_headers()

    def send_400_response(self, msg: str) -> None:
        if not self._drops_requests and not self.transport.is_closing():
            self._end_with("400 Bad Request", msg)

    def _refuse_headers(self) -> None:
        text = f"the headers have more than {HEADERS_BYTES_MAX} bytes"
        self._end_with("431 Request Header Fields Too Large", text)

    def _await_headers(self) -> None:
        if self._drops_requests:
            return  # the deadline of the last answer remains
        self._stop_waiting()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_with(self, status: str, reason: str) -> None:
        body = json.dumps({"error": reason})
        headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        text = f"HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n{body}"
        self.transport.write(text.encode("ascii"))
        self.transport.close()
