"""The Python process that Spark starts for a source, a sink or a task; it connects, then imports.

Spark waits only ten seconds for the connection of some workers, such as the worker that plans a
source. No setting changes this limit of ten seconds. PySpark's own workers need a second of CPU for
imports before they connect, which may take longer than ten seconds on a busy host. After ten
seconds Spark fails the query with "Python worker failed to connect back". This module connects
first and imports PySpark afterwards, when Spark waits without a limit. PySpark's own worker then
uses the connection.

Spark starts the program ``python_worker`` beside this file, with Python's arguments ``-m MODULE``.
"""

from __future__ import annotations

import os
import runpy
import socket
import struct
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import IO

_INT = struct.Struct("!i")
_PORT, _SECRET = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SECRET"
_ACCEPTED = b"ok"


def main() -> None:
    """Connect to Spark if Spark listens for a connection, and run the module that Spark named."""
    _, module, *arguments = sys.argv[1:]
    if _listens(os.environ):
        _hand_over(_connected(os.environ))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _listens(environ: MutableMapping[str, str]) -> bool:
    """Whether Spark waits for this process on IPv4. PySpark itself opens all other connections."""
    return _PORT in environ and environ.get("SPARK_PREFER_IPV6", "").lower() != "true"


def _connected(environ: MutableMapping[str, str]) -> socket.socket:
    """Authenticate to Spark as PySpark does: send the secret, read the answer, send the pid."""
    seconds = float(environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    connection = socket.create_connection(("127.0.0.1", int(environ[_PORT])), seconds)
    secret = environ[_SECRET].encode()
    connection.sendall(_INT.pack(len(secret)) + secret)
    if _received(connection, _INT.unpack(_received(connection, _INT.size))[0]) != _ACCEPTED:
        raise ConnectionRefusedError("Spark refused the secret of its own Python worker")
    connection.sendall(_INT.pack(os.getpid()))
    return connection


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("Spark closed the connection of its Python worker")
        data += part
    return data


def _hand_over(connection: socket.socket) -> None:
    """Make PySpark's worker use ``connection`` instead of opening a connection."""
    from pyspark import worker_util

    @contextmanager
    def sock_file(timeout: int | None = -1) -> Iterator[IO[bytes]]:
        if timeout is None or timeout > 0:
            connection.settimeout(timeout)
        file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
        with file:
            yield file  # type: ignore[misc]

    if not hasattr(worker_util, "get_sock_file_to_executor"):
        raise ImportError("this release of PySpark connects its workers in another way")
    worker_util.get_sock_file_to_executor = sock_file


if __name__ == "__main__":
    main()
