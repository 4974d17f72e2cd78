"""Routes of a node on a separate port, for commands that call them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp

from ha_engine.api.connection import ConnectionPool
from ha_engine.api.server import WebServer
from ha_engine.config import HttpConfig
from ha_engine.config.server_tls import ServerTls
from ha_engine.web.listening import listen
from tests.waiting import wait_until

PLAIN = ServerTls()


def web_server(application: ASGIApp, http: HttpConfig) -> WebServer:
    return WebServer(application, http, ConnectionPool(http.max_connections, Counter()))


@contextlib.contextmanager
def serving(application: ASGIApp, tls: ServerTls = PLAIN) -> Iterator[str]:
    """Serve ``application`` and return its URL."""
    with running(
        web_server(application, HttpConfig(tls=tls)), "https" if tls.pair else "http"
    ) as url:
        yield url


@contextlib.contextmanager
def running(server: WebServer, scheme: str) -> Iterator[str]:
    """Run ``server`` and return its URL."""
    socket = listen("127.0.0.1:0")
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[socket])))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"{scheme}://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(10)
