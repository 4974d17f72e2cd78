"""The HTTP server inside the node's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from ha_engine.api.connection import BoundedConnection, ConnectionPool
from ha_engine.api.handshakes import TlsListener
from ha_engine.config import HttpConfig
from ha_engine.web.tls import server_context

GRACE_SECONDS = 3
ACCEPTED_MAX = 256
"""The number of new connections that wait to be accepted. The node accepts all of them before it
can refuse the first, so it needs as many open files."""
DATE_SECONDS = 1.0
UNSENT_BYTES_MAX = 64 << 10
"""The bytes of a connection's answers that the kernel keeps before it can send them. Otherwise a
client that reads nothing gets megabytes of answers, and the node makes all of them."""


class WebServer(uvicorn.Server):
    """The server of uvicorn without its signal handlers, because the node has its own."""

    def __init__(self, application: Any, http: HttpConfig, pool: ConnectionPool) -> None:
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed, self._listeners = pool.closed, list[TlsListener]()
        self._tls, self._newest = http.tls, server_context(http.tls, "http.tls")
        super().__init__(
            uvicorn.Config(
                application,
                loop="none",
                http=partial(BoundedConnection, pool),  # type: ignore[arg-type]
                lifespan="off",
                ws="none",  # a WebSocket would escape the limits of BoundedConnection
                log_config=None,
                access_log=False,
                timeout_keep_alive=int(http.keep_alive),
                backlog=ACCEPTED_MAX,
                timeout_graceful_shutdown=GRACE_SECONDS,
                **_encrypting(self._newest, self._show_newest),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on ``sockets``. With TLS, the server counts and limits the handshakes itself."""
        for listener in sockets or ():  # a connection inherits the options of its listener
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        context = self.config.ssl
        if context is None or sockets is None:
            await super().startup(sockets)
            return
        self.servers = []
        for listener in sockets:
            listener.setblocking(False)
            listener.listen(ACCEPTED_MAX)
            self._listeners.append(TlsListener(listener, context, self._connection, self._closed))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            listener.close()
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state={}
        )
        return protocol

    @property
    def open_connections(self) -> int:
        return len(self.server_state.connections)

    def renew_certificate(self) -> None:
        """Read the certificate's files again, and use the certificate for new connections. Raises
        ConfigError."""
        self._newest = server_context(self._tls, "http.tls")

    def _show_newest(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Switch the connection to the newest certificate, during its TLS handshake.

        A TLS context has one certificate for each type of key. If the listening context loaded a
        new certificate with another type of key, some clients would still get the old certificate.
        If the load failed midway, the listening context would have no key.
        """
        if self._newest is not None:
            connection.context = self._newest

    async def main_loop(self) -> None:
        """Wait for ``stop``, and renew the Date header each second. The original method of uvicorn
        polls ten times a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), DATE_SECONDS)

    def stop(self) -> None:
        """Stop the server. Any thread may call the method ``stop``."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _encrypting(context: ssl.SSLContext | None, in_handshake: Any) -> dict[str, Any]:
    """The TLS settings of uvicorn."""
    if context is None:
        return {}
    context.sni_callback = in_handshake
    return {"ssl_context_factory": lambda config, default: context}
