"""A server program of another system as a process, which tests stop, kill and start again."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.programs import found
from tests.waiting import wait_until

_PORTS = range(10_000, 32_768)
"""Ports that Linux gives to no outgoing connection, which could take the port of a server before
its start, or before it starts again."""
_chance = random.SystemRandom()


def free_port() -> int:
    while True:
        port = _chance.choice(_PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def new_directory(path: Path) -> Path:
    """Make the directory, and return its path."""
    path.mkdir()
    return path


class Server:
    """A server with its data in ``directory``. A kind says how its program is started, and whether
    it answers a connection."""

    program: str
    ready_seconds = 10.0

    def __init__(self, directory: Path) -> None:
        self.port, self.directory = free_port(), directory
        self._process: subprocess.Popen[bytes] | None = None

    def arguments(self) -> list[str]:
        """Return the arguments of the program for the next start."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the program with its arguments for the next start."""
        program = found(self.program)
        assert program is not None
        return [program, *self.arguments()]

    def answers(self, connection: socket.socket) -> bool:
        raise NotImplementedError

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.program}.log"

    def start(self) -> None:
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the program. A server that waits for others is not ready before these are."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log)

    def await_ready(self) -> None:
        wait_until(self._is_ready, within=self.ready_seconds)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return self.answers(connection)
        except OSError:
            return False

    def freeze(self) -> None:
        """Let the server hang, with its connections open."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


S = TypeVar("S", bound=Server)


@contextlib.contextmanager
def running(make: Callable[[Path], S]) -> Iterator[S]:
    """Run the server that ``make`` returns for an empty directory."""
    directory = Path(tempfile.mkdtemp(prefix="server-"))
    server = make(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
