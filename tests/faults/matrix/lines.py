"""The connections of a host to others, which a proxy on the same host delays, reorders or stops.

The nodes connect to the proxy instead. What reaches the other end still comes from their host, so
faults of the network apply to it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from tests.sync.proxy import Proxy

_PIECE_BYTES = 64 << 10
_PIECES_MAX = 64
"""Pieces that are under way at one time, in each direction of a connection."""
_NEW_NET = 0x40000000
_CALL_SECONDS = 10.0


class Line(Proxy):
    """Connects to ``target``. Each piece arrives ``delay_seconds`` after it was sent; those of
    every second connection at once, if the line is ``reordering``. The line stops once
    ``allowance`` more bytes have passed."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__()
        self._far = target
        self._numbers = itertools.count()
        self.reordering = False
        self.allowance: int | None = None

    async def listen(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def disturb(
        self, *, delay_seconds: float = 0.0, reordering: bool = False, allowance: int | None = None
    ) -> None:
        """Begin a fault, from any thread."""

        def begin() -> None:
            self.delay_seconds, self.reordering = delay_seconds, reordering
            self.allowance = allowance

        self._loop.call_soon_threadsafe(begin)

    def repair(self) -> None:
        """End every fault, from any thread. What is under way still comes late."""
        self.disturb()
        self._loop.call_soon_threadsafe(self.go_on)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._far)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)
        clock, number = asyncio.get_running_loop().time, next(self._numbers) // 2
        delivery = asyncio.create_task(self._deliver(under_way, sink))
        try:
            with contextlib.suppress(OSError):
                while piece := await source.read(_PIECE_BYTES):
                    at_once = self.reordering and number % 2
                    due = clock() + (0.0 if at_once else self.delay_seconds)
                    await under_way.put((due, piece))
            await under_way.put((clock(), b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter
    ) -> None:
        clock, broken = asyncio.get_running_loop().time, False
        while (arrived := await under_way.get())[1]:
            await asyncio.sleep(arrived[0] - clock())
            rest = arrived[1]
            while rest and not broken:
                await self._open.wait()
                part = rest[: self.allowance]
                rest = rest[len(part) :]
                self._count(len(part))
                try:
                    sink.write(part)
                    await sink.drain()
                except OSError:
                    broken = True
        sink.transport.abort()
        self._writers.discard(sink)

    def _count(self, passed: int) -> None:
        if self.allowance is not None:
            self.allowance -= passed
            if self.allowance == 0:
                self.allowance = None
                self.stop()


class HostLines:
    """The lines of one host, on an event loop in the network namespace at ``path``."""

    def __init__(self, path: str) -> None:
        self._path, self._loop = path, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"lines of {path}", daemon=True)
        self._lines: list[Line] = []

    @classmethod
    @contextlib.contextmanager
    def on(cls, path: str) -> Iterator[HostLines]:
        lines = cls(path)
        lines._thread.start()
        try:
            yield lines
        finally:
            for line in lines._lines:
                lines._await(line.close())
            lines._loop.call_soon_threadsafe(lines._loop.stop)
            lines._thread.join(_CALL_SECONDS)
            lines._loop.close()

    def add(self, port: int, target: tuple[str, int]) -> Line:
        """Listen on a port of the host's loopback, and connect to ``target``."""
        line = Line(target)
        self._await(line.listen(port))
        self._lines.append(line)
        return line

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def _run(self) -> None:
        # Only this thread enters the namespace; its sockets are made there.
        namespace = os.open(self._path, os.O_RDONLY)
        entered = ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NET)
        os.close(namespace)
        assert entered == 0, os.strerror(ctypes.get_errno())
        self._loop.run_forever()
