"""A Python worker of Spark connects before it imports, so that a slow host has time to import."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ha_engine.query import session

SECRET = b"shared with Spark"
WORKER = """
import os
open(os.environ["GATE"]).read()  # blocks until the test opens the other end
from pyspark.worker_util import get_sock_file_to_executor
with get_sock_file_to_executor() as file:
    file.write(b"imported")
"""


@contextmanager
def spark_that_listens() -> Iterator[socket.socket]:
    """Open the socket on which Spark waits for a worker."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(120)
        yield server


def started(server: socket.socket, directory: Path, gate: Path) -> subprocess.Popen[bytes]:
    (directory / "slow_worker.py").write_text(WORKER)
    environment = {
        **os.environ,
        "GATE": str(gate),
        "HA_ENGINE_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)]),
        "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        "SPARK_AUTH_SOCKET_TIMEOUT": "120",
    }
    program = session._worker_program()
    return subprocess.Popen([program, "-m", "slow_worker"], env=environment)


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


def test_a_worker_connects_before_it_imports(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with spark_that_listens() as server:
        process = started(server, tmp_path, gate)
        connection, _ = server.accept()
        with closing(connection):
            connection.settimeout(120)
            assert received(connection, 4 + len(SECRET)) == struct.pack("!i", len(SECRET)) + SECRET
            connection.sendall(struct.pack("!i", 2) + b"ok")
            # The worker module has not run yet: it waits at the gate of the test.
            assert struct.unpack("!i", received(connection, 4))[0] == process.pid
            gate.write_text("go")
            assert received(connection, 100) == b"imported"
        assert process.wait(120) == 0


def test_a_worker_whose_secret_is_refused_ends(tmp_path: Path) -> None:
    with spark_that_listens() as server:
        process = started(server, tmp_path, tmp_path / "never")
        connection, _ = server.accept()
        with closing(connection):
            connection.settimeout(120)
            received(connection, 4 + len(SECRET))
            connection.sendall(struct.pack("!i", 3) + b"err")
            assert process.wait(120) == 1


def test_spark_runs_plain_python_where_the_worker_program_may_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python_worker"
    program.touch(mode=0o644)
    monkeypatch.setattr(session, "_WORKER", program)
    assert session._worker_program() == sys.executable


@pytest.mark.spark
def test_workers_of_spark_run_through_the_worker_program(spark) -> None:  # type: ignore[no-untyped-def]
    from pyspark.sql.functions import udf

    command = udf(lambda _: Path("/proc/self/cmdline").read_text().replace("\0", " "), "string")
    (row,) = spark.range(1).select(command("id").alias("command")).collect()
    assert "ha_engine.query.worker" in row.command
