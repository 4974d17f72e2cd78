"""A gate behind real HTTP on a real journal, for a group of one: durable is committed.

As a program it serves until it gets a signal to end: ``python -m tests.receive.solo DIRECTORY
PORT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from ha_engine.api.http import http_error
from ha_engine.auth import OPEN, Access
from ha_engine.config import ReceiveConfig
from ha_engine.errors import Backpressure
from ha_engine.journal import Journal
from ha_engine.journal.writer import JournalWriter
from ha_engine.receive.gate import Gate
from ha_engine.receive.http import routes
from ha_engine.receive.intake import Intake
from ha_engine.types import Events, Position, Record
from ha_engine.web.route import guarded

SCHEMA = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("delay", pa.float64()),
        pa.field("flight", pa.int64()),
    ]
)
STREAMS = MappingProxyType({"flights": SCHEMA, "other": SCHEMA})
MAX_BODY = 16 << 20


class NoBacklog:
    """Queries that are never behind, unless the test sets it."""

    refused: Backpressure | None = None

    def refusal(self, stream: str) -> Backpressure | None:
        return self.refused


class SoloLog:
    """Epoch 1 of a group of one. ``hold`` delays commits until ``release``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._writer = JournalWriter(journal, self._on_durable, self._on_failed)
        self._last = self._durable = journal.last.sequence
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._held = False

    def offer(self, events: Events, payload: bytes) -> Position:
        position = Position(1, self._last + 1)
        self._writer.append([Record(position, self._durable, events, payload)])
        self._last = position.sequence
        return position

    async def committed(self, sequence: int) -> None:
        if sequence <= self._durable and not self._held:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((sequence, future))
        await future

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._on_durable(self._durable)

    def refuse(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            future.set_exception(error)

    async def close(self) -> None:
        await self._writer.close()

    def _on_durable(self, sequence: int) -> None:
        self._durable = sequence
        if self._held:
            return
        due = [future for through, future in self._waiters if through <= sequence]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > sequence]
        for future in due:
            if not future.done():
                future.set_result(None)

    def _on_failed(self, error: BaseException) -> None:
        for _, future in self._waiters:
            future.set_exception(error)


class Solo:
    """One open gate over the journal in ``directory``, which is replayed first."""

    def __init__(
        self,
        directory: Path,
        config: ReceiveConfig | None = None,
        schemas: Mapping[str, pa.Schema] = STREAMS,
    ) -> None:
        self._schemas = schemas
        self.journal = Journal.open(directory, group="solo")
        self.log, self.backlog = SoloLog(self.journal), NoBacklog()
        self.gate = Gate(
            schemas,
            self.log,
            self.backlog,
            config or ReceiveConfig(),
            lambda: time.time_ns() // 1000,
        )
        for record in self.records():
            self.gate.replay(record)
        self.gate.open()

    def records(self) -> list[Record]:
        return list(self.journal.read(self.journal.first, self.journal.last.sequence))

    def stored(self) -> list[dict[str, object]]:
        """Return every stored row, in the journal's order."""
        return [row for record in self.records() for row in self._rows(record)]

    def _rows(self, record: Record) -> list[dict[str, object]]:
        assert isinstance(record.body, Events)
        schema = self._schemas[record.body.stream]
        rows: list[dict[str, object]] = pa.ipc.read_record_batch(record.payload, schema).to_pylist()
        return rows

    def app(
        self,
        max_body: int = MAX_BODY,
        body_within_seconds: float = 30.0,
        access: Access = OPEN,
    ) -> Starlette:
        found = routes(Intake(self.gate), max_body, body_within_seconds)
        return guarded(found, access, {HTTPException: http_error})

    async def close(self) -> None:
        self.gate.close("this node is stopping")
        await self.log.close()
        self.journal.close()


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """Serve ``app`` on a real socket of this loop; return its URL."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", access_log=False, timeout_keep_alive=75
    )
    server = uvicorn.Server(config)
    # Name the protocol, else asyncio leaves Nagle's algorithm on: 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        running = asyncio.create_task(server.serve([listener]), name="uvicorn")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await running


async def _serve(directory: Path, port: int) -> None:
    solo = Solo(directory)
    config = uvicorn.Config(
        solo.app(), port=port, log_level="warning", access_log=False, timeout_keep_alive=75
    )
    await uvicorn.Server(config).serve()
    await solo.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
