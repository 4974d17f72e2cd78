"""A real HTTP server that takes NDJSON, remembers keys, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """``answer`` returns the status for a request with these rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.requests: list[tuple[str, int]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[list[dict[str, Any]]], int] = lambda rows: 200
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    def take(self, key: str, headers: dict[str, str], rows: list[dict[str, Any]]) -> int:
        with self._lock:
            status = self.answer(rows)
            self.requests.append((key, status))
            self.headers.append(headers)
            if status < 300 and key not in self._keys:
                self._keys.add(key)
                self.rows += rows
            return status


@contextmanager
def listening(receiver: Receiver) -> Iterator[str]:
    """Return the URL of the receiver."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = [json.loads(line) for line in body.splitlines()]
            status = receiver.take(self.headers["Idempotency-Key"], dict(self.headers), rows)
            words = b"too odd" if status >= 400 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(words)))
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/rows"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
