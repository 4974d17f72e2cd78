"""Choose free ports for servers that the demo starts later."""

from __future__ import annotations

import random
import socket

PORTS = range(10_000, 32_768)
"""The ports below those that Linux gives to outgoing connections and to servers that ask for any
port.

Linux could give away a higher port between the choice of the port and the start of its server.
"""


class FreePorts:
    """Finds ports of the loopback interface that no process uses now.

    The search begins at a random port, so that two demos seldom choose the same ports.
    """

    def __init__(self) -> None:
        self._last = random.choice(PORTS)  # noqa: S311 - no secret

    def next(self) -> int:
        for _ in PORTS:
            self._last = self._last + 1 if self._last + 1 in PORTS else PORTS.start
            if _is_free(self._last):
                return self._last
        raise OSError("no port of the loopback interface is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
