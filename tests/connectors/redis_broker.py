"""A real redis-server for tests."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.connectors.server import Server, running


class RedisBroker(Server):
    """A server that writes its data before it answers. ``settings`` are arguments of its
    program."""

    program = "redis-server"

    def __init__(self, directory: Path, *settings: str) -> None:
        super().__init__(directory)
        self._settings = settings

    def arguments(self) -> list[str]:
        found = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        found += ["--dir", str(self.directory), "--appendonly", "yes"]
        return [*found, "--appendfsync", "always", *self._settings]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(5) in (b"+PONG", b"-NOAU")

    def client(self, **arguments: Any) -> Any:
        import redis

        return redis.Redis(port=self.port, socket_timeout=60, **arguments)


def running_broker(*settings: str) -> AbstractContextManager[RedisBroker]:
    return running(lambda directory: RedisBroker(directory, *settings))
