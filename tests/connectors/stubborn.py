"""A server that gives the same answer to each request of a method, or of a method and a path, such
as an error that a test cannot make a real server give."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, str, Mapping[str, str]]
"""A status, a body, and headers."""


@contextlib.contextmanager
def answering(answers: Mapping[str, Answer]) -> Iterator[int]:
    """Run the server, and return its port. ``answers`` has an answer for each method, and perhaps
    others for a method and a path, such as ``GET /path``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            own = answers.get(f"{self.command} {self.path}")
            status, body, headers = own or answers[self.command]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
