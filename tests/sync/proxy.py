"""A proxy before a node or a database, which can cut, stop and delay the traffic."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

_PIECE_BYTES = 64 << 10


class Proxy:
    """Forwards all traffic to ``target``, a port of this machine or the path of a socket. Listens
    on ``port`` once started, or on the given path."""

    def __init__(self, target: int | Path = 0) -> None:
        self.target = target
        self.port = 0
        self.accepted = 0
        self.delay_seconds = 0.0
        self.refusing = False
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start_at(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection; accept new ones."""
        for writer in self._writers:
            writer.transport.abort()

    def stop(self) -> None:
        """Let nothing pass, and close nothing: a silent network."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.target, Path):
            return await asyncio.open_unix_connection(self.target)
        return await asyncio.open_connection("127.0.0.1", self.target)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(_PIECE_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._open.wait()
                sink.write(piece)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
