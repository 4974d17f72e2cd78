"""One node, run as its users run it, as the benchmark sees it."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.database import Database
from benchmarks.feeder import CONNECTIONS, Feeder
from benchmarks.processes import cpu_seconds, lives, session_of, spent, standing_still
from benchmarks.waiting import wait_until
from benchmarks.workload import WORKLOADS, Workload, application, as_ndjson, events
from ha_engine.client.payload import Form
from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.pair import Pair, running_pair

ROUND_SECONDS = 300.0
DEFAULTS: dict[str, dict[str, Any]] = {
    "lease": {"ttl": "5s", "renew_interval": "1s", "db_timeout": "1s"},
    "query": {"heap": "1GiB", "nice": 15},
}
"""A node under test is quicker to give up than a user's."""

Sections = Mapping[str, dict[str, Any]]
"""Sections of the config, whose keys replace those of the defaults."""

NO_EMPTY_BATCHES = {"idle_batch_interval": "1h"}
"""For rounds whose end is the end of their last event's batch."""


class EngineSide:
    """``node`` is the active and must run, as must the ``passive`` that follows it, if any.

    A batch counts once it is in the sink and the passive has run it as well.
    """

    def __init__(
        self,
        node: NodeUnderTest,
        database: Database,
        workloads: Sequence[Workload] = WORKLOADS,
        passive: NodeUnderTest | None = None,
    ) -> None:
        self.node, self._database, self._workloads = node, database, workloads
        self.nodes = (node,) if passive is None else (node, passive)
        self._address = node.url.removeprefix("http://")
        self._staged: dict[str, tuple[list[bytes], int]] = {}

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def feeder(
        self, stream: str, form: Form = Form.NDJSON, connections: int = CONNECTIONS
    ) -> Feeder:
        return Feeder(self._address, stream, form, connections)

    def prime(self) -> None:
        """Return when every query has worked: a state of "running" is only the node's intention."""
        for workload in self._workloads:
            self.feed_singly(workload.name, [0])

    def feed_singly(self, stream: str, ids: Sequence[int]) -> None:
        """Each event in a batch of its own."""
        for one in ids:
            self.feeder(stream).feed([as_ndjson(events(one, 1))])
            self.wait_published(stream)

    # -- rounds ------------------------------------------------------------------------------------

    def put(self, connection: http.client.HTTPConnection, stream: str, body: bytes) -> float:
        """Send one request; the time of its ack."""
        while self.feeder(stream).post(connection, body) is None:
            time.sleep(0.01)
        return time.time()

    def stage(
        self, stream: str, batches: Sequence[pa.RecordBatch], connections: int = CONNECTIONS
    ) -> None:
        """Make the requests that a round will send over so many connections."""
        self._staged[stream] = [as_ndjson(batch) for batch in batches], connections

    def _feed_staged(self, stream: str) -> None:
        bodies, connections = self._staged[stream]
        self.feeder(stream, connections=connections).feed(bodies)

    def run_from_journal(self, stream: str) -> tuple[float, float, float]:
        """Seconds of feeding the journal while Spark stands still, of working that off, of CPU."""
        with standing_still(self.spark_processes()):
            began = time.time()
            self._feed_staged(stream)
            released, before = time.time(), cpu_seconds(self.processes())
        committed = self.wait_published(stream)
        used = spent(before, cpu_seconds(self.processes()))
        return released - began, committed - released, used

    def run_through_http(self, stream: str) -> float:
        """Seconds from the first request to the commit of the last event's batch."""
        began = time.time()
        self._feed_staged(stream)
        return self.wait_published(stream) - began

    def wait_published(self, stream: str) -> float:
        """When the newest batch of the stream's query was committed, or the passive level."""
        wait_until(lambda: self.published(stream), within=ROUND_SECONDS)
        committed = self._database.published_at(stream)
        if not self._is_level(stream):
            wait_until(lambda: self._is_level(stream), within=ROUND_SECONDS, every=0.02)
            return time.time()
        return committed

    def published(self, stream: str) -> bool:
        query = self._query(self.node, stream)
        return bool(
            query["backlog_events"] == 0
            and all(batch == query["mark"] for batch in query["published"].values())
        )

    def _is_level(self, stream: str) -> bool:
        """Whether each node has run the same batches."""
        return len({self._query(node, stream)["batch"] for node in self.nodes}) == 1

    def _query(self, node: NodeUnderTest, stream: str) -> dict[str, Any]:
        status = node.status()
        query = status["queries"][stream] if status else None
        if query is None or query["state"] != "running":
            raise RuntimeError(f"query {stream} does not run: {query}; see the node's log")
        found: dict[str, Any] = query
        return found

    # -- processes ---------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Every process of the nodes: supervisor, node, driver, JVM, workers."""
        return [process for node in self.nodes for process in processes_of(node)]

    def spark_processes(self) -> list[psutil.Process]:
        """The driver, the JVM and the workers."""
        pids = (node.pid_of("query") for node in self.nodes)
        return [process for pid in pids if pid is not None for process in session_of(pid)]

    def node_process(self) -> psutil.Process:
        pid = self.node.pid_of("node")
        assert pid is not None
        return psutil.Process(pid)


def processes_of(node: NodeUnderTest) -> list[psutil.Process]:
    assert node.process is not None
    top = psutil.Process(node.process.pid)
    found = {process.pid: process for process in (top, *top.children(recursive=True))}
    for pid in node.left_over():
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that Spark no longer needed
            found.setdefault(pid, psutil.Process(pid))
    return [process for process in found.values() if lives(process)]


def merged(sections: Sections) -> dict[str, dict[str, Any]]:
    """The config of a node: the defaults with the keys of ``sections`` in their place."""
    names = {**DEFAULTS, **sections}
    return {name: DEFAULTS.get(name, {}) | sections.get(name, {}) for name in names}


@contextmanager
def pair_side(
    directory: Path,
    database: Database,
    workloads: Sequence[Workload] = WORKLOADS,
    sections: Sections = MappingProxyType({}),
) -> Iterator[EngineSide]:
    """Two nodes, warm and in sync; the settings are those of ``engine_side``."""
    directory.mkdir()
    config = merged(sections)
    config["query"] = {"min_batch_interval": "0s"} | config["query"]
    pair = Pair(directory, application(workloads), database.url, **config)
    with running_pair(pair):
        active = pair.wait_protected()
        side = EngineSide(active, database, workloads, pair.other(active))
        side.prime()
        yield side


@contextmanager
def engine_side(
    directory: Path,
    database: Database,
    workloads: Sequence[Workload] = WORKLOADS,
    sections: Sections = MappingProxyType({}),
    *,
    code: Path | None = None,
) -> Iterator[EngineSide]:
    """``sections`` of the config replace keys of the defaults; ``code`` is where another release of
    the engine lies."""
    directory.mkdir()
    node = NodeUnderTest(
        directory, application(workloads), database.url, "node-a", **merged(sections)
    )
    node.code = code
    with running(node):
        node.wait_running()
        side = EngineSide(node, database, workloads)
        side.prime()
        yield side
