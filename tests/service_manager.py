"""A stand-in for systemd: a datagram socket that receives the notifications of a node."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ServiceManager:
    """Keeps every received line; ``address`` is the value of NOTIFY_SOCKET."""

    def __init__(self, listening: socket.socket, address: str) -> None:
        self._socket, self.address = listening, address
        self.told: list[str] = []

    def hears(self, line: str, within: float = 10.0) -> bool:
        """Return whether a datagram from now on contains ``line``. Blocks."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            if line in self._datagram(left):
                return True
        return False

    def _datagram(self, within: float) -> list[str]:
        self._socket.settimeout(within)
        try:
            lines = self._socket.recv(4096).decode().splitlines()
        except TimeoutError:
            return []
        self.told += lines
        return lines

    def forget(self) -> None:
        """Discard the datagrams that wait to be read."""
        while self._datagram(0.001):
            pass


@contextmanager
def service_manager(address: str) -> Iterator[ServiceManager]:
    """Open a service manager; ``address`` is a path, or a name behind an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + address[1:] if address.startswith("@") else address)
        yield ServiceManager(listening, address)
