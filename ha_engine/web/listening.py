"""Open the socket of an HTTP server.

A start of a node first binds the socket for a moment, to check that the address is free.
"""

from __future__ import annotations

import socket

from ha_engine.config.quantities import split_address
from ha_engine.errors import AddressInUse


def listen(address: str) -> socket.socket:
    """Bind a TCP socket to ``host:port``. Raises AddressInUse."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With TCP as the explicit protocol, asyncio turns off Nagle's algorithm for each connection.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise AddressInUse(
            f"http.listen {address} cannot be bound: {error.strerror}; "
            "stop the program that uses it, or choose another port"
        ) from error
    return opened
