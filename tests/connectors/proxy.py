"""A network that hangs: a proxy between a client and a server, which tests freeze and thaw."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to a port, until it is frozen: then it keeps what it receives, like the
    network of a host that hangs."""

    def __init__(self, port: int, listen: int = 0) -> None:
        self._target, self.port = port, listen
        self._flows = threading.Event()
        self._flows.set()
        self._limit: int | None = None
        self._lock, self._sockets = threading.Lock(), set[socket.socket]()
        self._listener: socket.socket | None = None
        self.start()

    def start(self) -> None:
        """Accept connections, again after ``kill``."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port))
                self.port = self._listener.getsockname()[1]
                accept = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
                accept.start()

    def kill(self) -> None:
        """Break all connections at once, and accept no other."""
        with self._lock:
            listener, self._listener = self._listener, None
            for one in (listener, *self._sockets):
                if one is not None:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
            if listener is not None:
                listener.close()

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
        self.kill()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                serve = threading.Thread(target=self._serve, args=(listener, client), daemon=True)
                serve.start()

    def _serve(self, listener: socket.socket, client: socket.socket) -> None:
        """Forward both ways, until both ends have closed the connection."""
        # If the server is down, the connection of the client ends.
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            with self._lock:
                if self._listener is not listener:
                    return
                self._sockets |= {client, server}
            back = threading.Thread(target=self._pump, args=(server, client, False), daemon=True)
            back.start()
            self._pump(client, server, True)
            back.join()
            with self._lock:
                self._sockets -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._forward(data, target, counts)
        if counts:
            self._flows.wait()
        with contextlib.suppress(OSError):
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
