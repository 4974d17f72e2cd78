"""A network that hangs: a proxy between a client and a server, which tests freeze and thaw."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to a port, until it is frozen: then it keeps what it receives, like the
    network of a host that hangs."""

    def __init__(self, port: int, listen: int = 0) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", listen))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._limit: int | None = None
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze_after(self, size: int) -> None:
        """Freeze the way to the server after ``size`` more bytes."""
        self._limit = size

    def freeze(self) -> None:
        """Keep what is sent to the server from now on, also on new connections."""
        self._flows.clear()

    @property
    def is_frozen(self) -> bool:
        return not self._flows.is_set()

    def thaw(self) -> None:
        self._limit = None
        self._flows.set()

    def close(self) -> None:
        self.thaw()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the server is down
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, target, counts in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pump, args=(source, target, counts), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._forward(data, target, counts)
            if counts:
                self._flows.wait()
            target.shutdown(socket.SHUT_WR)

    def _forward(self, data: bytes, target: socket.socket, counts: bool) -> None:
        if counts and self._limit is not None:
            now = data[: self._limit]
            target.sendall(now)
            self._limit -= len(now)
            data = data[len(now) :]
            if not data:
                return
            self._flows.clear()
        if counts:
            self._flows.wait()
        target.sendall(data)
