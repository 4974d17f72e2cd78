"""The receive stage alone: rows/s through HTTP, gate and journal, with every ack after fdatasync.

    python -m benchmarks.receive [--seconds 5] [--rounds 3] [--connections 16] [--directory DIR]

The server is a process of its own; the load comes from this one, over raw keep-alive sockets, since
a full HTTP client would cost more than the server. Both share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import psutil
import uvloop
from rich.console import Console

from benchmarks.processes import cpu_seconds, spent
from benchmarks.report import Result
from ha_engine.demo.ports import FreePorts

BODIES = {"4 KB": 4 << 10, "256 KB": 256 << 10}
WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Load:
    """``idempotent``: with a producer id and a sequence in each request."""

    seconds: float = 5.0
    connections: int = 16
    idempotent: bool = False


def measure(load: Load, rounds: int, directory: Path | None, result: Result) -> None:
    """The journal lies in ``directory``; None: among the temporary files."""
    for name, size in BODIES.items():
        with tempfile.TemporaryDirectory(dir=directory) as place:
            port = FreePorts().next()
            server = _start(Path(place), port)
            try:
                body, rows = _body(size)
                _run(replace(load, seconds=WARM_UP_SECONDS), port, body)
                for _ in range(rounds):
                    _round(f"bodies of {name}", load, server.pid, port, body, rows, result)
            finally:
                server.terminate()
                server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=Load.connections)
    parser.add_argument("--directory", type=Path, help="where the journal lies; default /tmp")
    parser.add_argument("--idempotent", action="store_true", help="with producer id and sequence")
    given, result = parser.parse_args(), Result("receive")
    load = Load(given.seconds, given.connections, given.idempotent)
    measure(load, given.rounds, given.directory, result)
    result.show(Console())
    print(f"written to {result.save()}")


def _start(directory: Path, port: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "tests.receive.solo", str(directory), str(port)]
    server = subprocess.Popen(arguments)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return server
    raise SystemExit("the server did not start; run python -m tests.receive.solo to see why")


def _body(size: int) -> tuple[bytes, int]:
    lines: list[bytes] = []
    while sum(map(len, lines)) + len(lines) < size:
        number = len(lines)
        event = {
            "origin": ("EWR", "JFK", "LGA")[number % 3],
            "at": f"2013-{number % 12 + 1:02}-{number % 28 + 1:02}T05:{number % 60:02}:00Z",
            "delay": number % 90 - 10,
            "flight": number,
        }
        lines.append(json.dumps(event, separators=(",", ":")).encode())
    return b"\n".join(lines), len(lines)


def _round(
    name: str, load: Load, server: int, port: int, body: bytes, rows: int, result: Result
) -> None:
    process = psutil.Process(server)
    before, began = cpu_seconds([process]), time.perf_counter()
    waits = _run(load, port, body)
    took, used = time.perf_counter() - began, spent(before, cpu_seconds([process]))
    figures = {
        ("rows/s", ""): len(waits) * rows / took,
        ("ack p50", "ms"): 1e3 * statistics.median(waits),
        ("ack p99", "ms"): 1e3 * statistics.quantiles(waits, n=100)[98],
        ("server's CPU", "cores"): used / took,
        ("server's memory", "MiB"): process.memory_info().rss / (1 << 20),
    }
    for (figure, unit), value in figures.items():
        result.extend(f"{name}: {figure}", unit, value)


def _run(load: Load, port: int, body: bytes) -> list[float]:
    return uvloop.run(_load(load, port, body))


async def _load(load: Load, port: int, body: bytes) -> list[float]:
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + load.seconds
    clients = [
        _Client(loop, body, until, number if load.idempotent else None)
        for number in range(load.connections)
    ]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    return [latency for client in clients for latency in await client.latencies]


class _Client(asyncio.Protocol):
    """Sends the same request again and again; one connection, one request in flight."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, body: bytes, until: float, number: int | None
    ) -> None:
        self._loop, self._body, self._until, self._number = loop, body, until, number
        self._producer = f"{time.time_ns()}-{number}"
        self._sequence = 0
        self._seen = b""
        self._found: list[float] = []
        self.latencies: asyncio.Future[list[float]] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, end, answer = self._seen.partition(b"\r\n\r\n")
        if not end or not answer.endswith(b"}"):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(self._seen.decode())
            return
        self._seen = b""
        now = time.perf_counter()
        self._found.append(now - self._sent)
        if now < self._until:
            self._send()
        else:
            self._transport.close()
            self.latencies.set_result(self._found)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.latencies.done():
            self._fail(f"the server closed the connection: {exc}")

    def _fail(self, reason: str) -> None:
        if not self.latencies.done():
            self.latencies.set_exception(RuntimeError(reason))
        self._transport.close()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._head() + self._body)

    def _head(self) -> bytes:
        identity = ""
        if self._number is not None:
            identity = f"X-Producer-Id: {self._producer}\r\nX-Sequence: {self._sequence}\r\n"
            self._sequence += 1
        return (
            "POST /v1/streams/flights/events HTTP/1.1\r\nHost: bench\r\n"
            f"Content-Type: application/x-ndjson\r\n{identity}"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        ).encode()


if __name__ == "__main__":
    main()
