"""A real redis-server for tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.programs import found
from tests.waiting import wait_until


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class RedisBroker:
    """A server with its data in ``directory``, which it writes before it answers. ``settings`` are
    arguments of its program."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.port, self._settings, self._directory = free_port(), settings, directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = found("redis-server")
        assert program is not None
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self._directory), "--appendonly", "yes"]
        command += ["--appendfsync", "always", *self._settings]
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "redis.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) in (b"+PONG", b"-NOAU")
        except OSError:
            return False

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def client(self, **arguments: Any) -> Any:
        import redis

        return redis.Redis(port=self.port, socket_timeout=60, **arguments)


@contextlib.contextmanager
def running_broker(*settings: str) -> Iterator[RedisBroker]:
    directory = Path(tempfile.mkdtemp(prefix="redis-"))
    broker = RedisBroker(directory, *settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
