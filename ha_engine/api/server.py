"""The HTTP server inside the node's event loop, and the socket that it listens on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from ha_engine.certificates import readable_pair
from ha_engine.config import HttpConfig
from ha_engine.config.quantities import split_address
from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import AddressInUse

GRACE_SECONDS = 3


class WebServer(uvicorn.Server):
    """uvicorn without its signal handlers: the node has its own."""

    def __init__(self, application: Any, http: HttpConfig) -> None:
        self._tls = http.tls
        super().__init__(
            uvicorn.Config(
                application,
                loop="none",
                http="httptools",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=int(http.keep_alive),
                limit_concurrency=http.max_connections,
                timeout_graceful_shutdown=GRACE_SECONDS,
                **_certificate(http.tls),
            )
        )

    def renew_certificate(self) -> None:
        """Connections that are opened from now on see what the files hold. Raises ConfigError."""
        if (pair := readable_pair(self._tls, "http.tls")) and self.config.ssl:
            self.config.ssl.load_cert_chain(*pair)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _certificate(tls: ServerTls) -> dict[str, Any]:
    """Settings of uvicorn. Raises ConfigError."""
    pair = readable_pair(tls, "http.tls")
    return {} if pair is None else dict(zip(("ssl_certfile", "ssl_keyfile"), pair, strict=True))


def listen(address: str) -> socket.socket:
    """A TCP socket bound to ``host:port``. Raises AddressInUse."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off for each connection.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise AddressInUse(
            f"http.listen {address} cannot be bound: {error.strerror}; stop what uses it or choose "
            "another port"
        ) from error
    return opened
