"""Nodes that an observer asks: real HTTP servers with the route of a node for published batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ha_engine.api.connection import ConnectionPool
from ha_engine.api.output import OutputReader, output_route
from ha_engine.api.server import WebServer
from ha_engine.auth import OPEN, Right
from ha_engine.config import HttpConfig
from ha_engine.outbox.batch_file import write_batch_file
from ha_engine.outbox.published import PublishedBatches
from ha_engine.outbox.query_outbox import OutboxBatch
from ha_engine.web.listening import listen
from ha_engine.web.route import Answer, Operation, OperationRoute, guarded

QUERY = "delays"


def rows_of(number: int) -> pa.Table:
    """The rows of a batch: two, which have the number of the batch."""
    return pa.table({"batch": [number, number], "airport": ["JFK", "ORD"]})


class PublishingNode:
    """A node that shows its role, and the batches that a test has published on it."""

    def __init__(self, directory: Path, batches_max: int = 64, bytes_max: int = 1 << 20) -> None:
        directory.mkdir()
        self.directory, self.group_id, self.url = directory, "group-1", ""
        self.role, self.epoch = "passive", 1
        self.answers = asyncio.Event()
        self.answers.set()
        self.kept = PublishedBatches(directory / "published", batches_max, bytes_max)
        self.asked = 0

    def publish(self, *numbers: int) -> None:
        """Trim these batches from the outbox, as after their publication."""
        for number in numbers:
            path = self.directory / f"{number}.arrow"
            batch = write_batch_file(path, rows_of(number), query=QUERY, number=number)
            self.kept.keep(QUERY, number, OutboxBatch(path, batch.rows, batch.bytes))
            path.unlink()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[PublishingNode]:
        """Serve over HTTP, on the port that the node had before."""
        socket = listen(self.url.removeprefix("http://") or "127.0.0.1:0")
        host, port = socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        pool = ConnectionPool(100, Counter())
        web = WebServer(self.application(), HttpConfig(), pool)
        task = asyncio.create_task(web.serve(sockets=[socket]))
        try:
            yield self
        finally:
            web.stop()
            await task

    def application(self) -> Any:
        async def status(request: Request) -> Response:
            self.asked += 1
            await self.answers.wait()
            tree = {"role": self.role, "epoch": self.epoch, "queries": {QUERY: {}}}
            return JSONResponse(tree)

        async def cluster(request: Request) -> Response:
            return JSONResponse({"group": "g", "nodes": {}})

        keeps = self.kept.batches_max > 0
        reader = OutputReader((QUERY,), self.kept, lambda: self.group_id, keeps_batches=keeps)
        show = {name: Operation(name, name, {200: Answer("")}, needs=Right.READ) for name in "sc"}
        routes = [
            OperationRoute("/v1/status", status, show["s"], "GET"),
            OperationRoute("/v1/cluster", cluster, show["c"], "GET"),
            output_route(reader),
        ]
        return guarded(routes, OPEN)
