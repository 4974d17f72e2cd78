"""One node, run as its users run it, as the benchmark sees it."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.database import Database
from benchmarks.feeder import Feeder
from benchmarks.processes import cpu_seconds, lives, session_of, spent, standing_still
from benchmarks.waiting import wait_until
from benchmarks.workload import FIRST_EVENT, WORKLOADS, application, as_ndjson
from tests.e2e.node_under_test import NodeUnderTest, running

ROUND_SECONDS = 300.0
DEFAULTS: dict[str, dict[str, Any]] = {
    "lease": {"ttl": "5s", "renew_every": "1s", "db_timeout": "1s"},
    "query": {"heap": "1GiB"},
}
"""A node under test is quicker to give up than a user's."""

NO_TICKS = {"tick_after": "1h"}
"""For rounds whose end is the end of their last event's batch."""


class EngineSide:
    """The node must have been started."""

    def __init__(self, node: NodeUnderTest, database: Database) -> None:
        self.node, self._database = node, database
        self._address = node.url.removeprefix("http://")
        self._staged: dict[str, list[bytes]] = {}

    def feeder(self, stream: str) -> Feeder:
        return Feeder(self._address, stream)

    def prime(self) -> None:
        """Return when every query has worked: a state of "running" is only the node's intention."""
        for workload in WORKLOADS:
            self.feeder(workload.name).feed([as_ndjson(FIRST_EVENT)])
            self.wait_published(workload.name)

    # -- rounds ------------------------------------------------------------------------------------

    def put(self, connection: http.client.HTTPConnection, stream: str, body: bytes) -> float:
        """Send one request; the time of its ack."""
        while self.feeder(stream).post(connection, body) is None:
            time.sleep(0.01)
        return time.time()

    def stage(self, stream: str, batches: Sequence[pa.RecordBatch]) -> None:
        self._staged[stream] = [as_ndjson(batch) for batch in batches]

    def run_from_journal(self, stream: str) -> tuple[float, float, float]:
        """Seconds of feeding the journal while Spark stands still, of working that off, of CPU."""
        with standing_still(self.spark_processes()):
            began = time.time()
            self.feeder(stream).feed(self._staged[stream])
            released, before = time.time(), cpu_seconds(self.processes())
        committed = self.wait_published(stream)
        used = spent(before, cpu_seconds(self.processes()))
        return released - began, committed - released, used

    def run_through_http(self, stream: str) -> float:
        """Seconds from the first request to the commit of the last event's batch."""
        began = time.time()
        self.feeder(stream).feed(self._staged[stream])
        return self.wait_published(stream) - began

    def wait_published(self, stream: str) -> float:
        """When the newest batch of the stream's query was committed."""
        wait_until(lambda: self.published(stream), within=ROUND_SECONDS)
        return self._database.published_at(stream)

    def published(self, stream: str) -> bool:
        status = self.node.status()
        query = status["queries"][stream] if status else None
        if query is None or query["state"] != "running":
            raise RuntimeError(f"query {stream} does not run: {query}; see the node's log")
        return bool(
            query["backlog_events"] == 0
            and all(batch == query["mark"] for batch in query["published"].values())
        )

    # -- processes ---------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Every process of the node: supervisor, node, driver, JVM, workers."""
        assert self.node.process is not None
        top = psutil.Process(self.node.process.pid)
        found = {process.pid: process for process in (top, *top.children(recursive=True))}
        for pid in self.node.left_over():
            found.setdefault(pid, psutil.Process(pid))
        return [process for process in found.values() if lives(process)]

    def spark_processes(self) -> list[psutil.Process]:
        """The driver, the JVM and the workers."""
        pid = self.node.pid_of("query")
        return session_of(pid) if pid is not None else []

    def node_process(self) -> psutil.Process:
        pid = self.node.pid_of("node")
        assert pid is not None
        return psutil.Process(pid)


@contextmanager
def engine_side(
    directory: Path, database: Database, **sections: dict[str, Any]
) -> Iterator[EngineSide]:
    """``sections`` of the config replace keys of the defaults."""
    directory.mkdir()
    merged = {
        name: DEFAULTS.get(name, {}) | sections.get(name, {}) for name in {**DEFAULTS, **sections}
    }
    node = NodeUnderTest(directory, application(), database.url, **merged)
    with running(node):
        node.wait_running()
        side = EngineSide(node, database)
        side.prime()
        yield side
