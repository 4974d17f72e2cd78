"""The receive stage alone: rows/s through HTTP, gate and journal, with every ack after fdatasync.

    python -m benchmarks.receive [--seconds 5] [--connections 16] [--directory DIR]

The server is a process of its own; the load comes from this one, over raw keep-alive sockets, since
a full HTTP client would cost more than the server. Both share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import psutil
import uvloop

BODIES = {"4 KB": 4 << 10, "256 KB": 256 << 10}


def main() -> None:
    options = _options()
    for name, size in BODIES.items():
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            port = _free_port()
            server = _start(Path(directory), port)
            try:
                body, rows = _body(size)
                print(f"{name}: {_line(options, server, port, body, rows)}", flush=True)
            finally:
                server.terminate()
                server.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--directory", default=None, help="where the journal lies; default /tmp")
    parser.add_argument("--idempotent", action="store_true", help="with producer id and sequence")
    return parser.parse_args()


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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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


def _line(
    options: argparse.Namespace,
    server: subprocess.Popen[bytes],
    port: int,
    body: bytes,
    rows: int,
) -> str:
    process = psutil.Process(server.pid)
    _run(1.0, options, port, body)
    before, started = process.cpu_times(), time.perf_counter()
    latencies = sorted(_run(options.seconds, options, port, body))
    seconds = time.perf_counter() - started
    after = process.cpu_times()
    cpu = (after.user + after.system - before.user - before.system) / seconds
    requests = len(latencies)
    p50, p99 = (latencies[requests * part // 100] * 1e3 for part in (50, 99))
    return (
        f"{requests * rows / seconds:,.0f} rows/s ({requests / seconds:,.0f} requests/s of "
        f"{rows} rows, {options.connections} connections), ack p50 {p50:.2f} ms p99 {p99:.2f} ms, "
        f"server CPU {cpu:.0%} of one core, memory {process.memory_info().rss >> 20} MiB"
    )


def _run(seconds: float, options: argparse.Namespace, port: int, body: bytes) -> list[float]:
    return uvloop.run(_load(seconds, options, port, body))


async def _load(seconds: float, options: argparse.Namespace, port: int, body: bytes) -> list[float]:
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    clients = [
        _Client(loop, body, until, number if options.idempotent else None)
        for number in range(options.connections)
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
