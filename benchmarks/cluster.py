"""A node whose queries run on a standalone cluster.

- Rows a second against a plain job on the same cluster: both read the same events from topics of
  their own, with Spark's Kafka connector, in batches of the same size. The plain job has no sink.
- How the rows a second grow with the number of executors. The events are in the node's journal, and
  the query waits for each row instead of computing, so that the executors do not share two cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, Protocol

import psutil
import yaml
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import ROUND_SECONDS, Sections, merged, processes_of
from benchmarks.feeder import Feeder
from benchmarks.kafka import PATIENT, put
from benchmarks.processes import plain_job, session_of, standing_still
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import (
    BATCH_EVENTS,
    SCHEMA,
    WATERMARK,
    WINDOWED,
    WORKLOADS,
    Workload,
    as_ndjson,
    requests,
)
from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.query.session import SparkSettings, spark_conf
from tests.cluster.nodes import node_on
from tests.cluster.standalone import Cluster, driver_settings, running_cluster
from tests.connectors.kafka_broker import create, kafka
from tests.connectors.kafka_jars import SPARK, fetch, spark_jars
from tests.e2e.node_under_test import NodeUnderTest, running

ROOT = Path(__file__).parents[1]
PARTITIONS = 4
CORES = 2
RATIO_MIN = 0.95
LOOK_SECONDS = 0.02

EXECUTORS = (1, 2, 4)
GROWTH_MIN = {2: 1.9, 4: 3.5}
WAITING_ROWS, ROW_MS, READERS = 20_000, 2.0, 8
WAITING = """
import time
from collections.abc import Iterator

import pyarrow as pa


def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(batch.num_rows * {seconds})
        yield batch


def waiting(streams):
    rows = streams["rows"].select("id")
    return rows.mapInArrow(wait, rows.schema)
"""


class Side(Protocol):
    """A reader of the events of a topic."""

    name: str

    def processes(self) -> list[psutil.Process]: ...

    def has_read(self, rows: int) -> bool:
        """Whether all batches of the first ``rows`` events have ended."""
        ...


class Engine:
    """One node, run as its users run it, whose stream has its events in a topic."""

    name = "engine"

    def __init__(self, node: NodeUnderTest, stream: str) -> None:
        self._node, self._stream = node, stream

    def processes(self) -> list[psutil.Process]:
        return processes_of(self._node)

    def has_read(self, rows: int) -> bool:
        status = self._node.status()
        if status is None or status["sources"][self._stream]["log"]["rows"] < rows:
            return False
        return _is_level(status)


class Plain:
    """The plain job."""

    name = "plain"

    def __init__(self, process: psutil.Popen, progress: Path) -> None:
        self._process, self._progress = process, progress

    def processes(self) -> list[psutil.Process]:
        return session_of(self._process.pid)

    def has_read(self, rows: int) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"the plain job ended: see {self._progress.parent}")
        return self._progress.exists() and int(self._progress.read_text()) >= rows


def _is_level(status: dict[str, Any]) -> bool:
    """Whether all batches of all queries of a node have ended."""
    queries = status["queries"].values()
    return all(not one["backlog_events"] and one["batch"] == one["mark"] for one in queries)


@contextmanager
def _engine(
    directory: Path, cluster: Cluster, log: dict[str, Any], workload: Workload, database: Database
) -> Iterator[Engine]:
    directory.mkdir()
    application = _application(workload.name, {"sql": workload.sql}, {"log": log})
    spark = {"spark.jars": spark_jars()}
    query = PATIENT["query"] | {"spark": spark, "shuffle_partitions": CORES}
    with _node(cluster, directory, application, database, PATIENT | {"query": query}) as node:
        yield Engine(node, workload.name)


def _application(stream: str, query: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    columns = {field.name: str(_TYPES[field.name]) + " not null" for field in SCHEMA}
    column, delay = WATERMARK
    watermark = {"column": column, "delay": delay}
    return {
        "name": "bench",
        "streams": {stream: {"schema": columns, "watermark": watermark, **more}},
        "queries": {"measured": query},
    }


_TYPES = {"id": "bigint", "at": "timestamp", "key": "string", "amount": "double"}


@contextmanager
def _node(
    cluster: Cluster,
    directory: Path,
    application: dict[str, Any],
    database: Database,
    sections: Sections,
) -> Iterator[NodeUnderTest]:
    text, shared = yaml.safe_dump(application), directory / "shared"
    node = node_on(cluster, shared, directory, text, database.url, "node-a", **merged(sections))
    # The nodes that ran before in this database have other journals, and so other groups.
    node.reconfigure(group=f"{directory.parent.name}-{directory.name}")
    with running(node):
        node.wait_running()
        yield node


@contextmanager
def _plain(
    directory: Path, cluster: Cluster, log: dict[str, Any], workload: Workload
) -> Iterator[Plain]:
    directory.mkdir()
    conf = spark_conf(SparkSettings(master=cluster.url, shuffle_partitions=CORES))
    settings = {
        "workload": workload.name,
        "brokers": ",".join(log["brokers"]),
        "input": log["topic"],
        "batch_events": BATCH_EVENTS,
        "checkpoint": str(directory / "checkpoint"),
        "progress": str(directory / "progress"),
        "spark": conf
        | driver_settings([ROOT])
        | {"spark.jars": spark_jars(), "spark.cores.max": str(CORES)},
    }
    with plain_job("benchmarks.plain_cluster_job", directory, settings) as process:
        yield Plain(process, directory / "progress")


def measure(
    rows: int,
    rounds: int,
    directory: Path,
    database: Database,
    result: Result,
    console: Console,
) -> None:
    """Add to ``result`` the rows a second of a node and of a plain job on one cluster."""
    fetch(SPARK)
    build(JAR)
    with kafka() as brokers, running_cluster(workers=2, cores=2, memory="1500m") as cluster:
        for workload in (WORKLOADS[0], WINDOWED):
            topics = {name: f"{workload.name}-{name}" for name in ("engine", "plain")}
            logs = {
                name: {"type": "kafka", "brokers": brokers.brokers, "topic": topic}
                for name, topic in topics.items()
            }
            for topic in topics.values():
                create(brokers.brokers, topic, partitions=PARTITIONS)
            home = directory / workload.name
            home.mkdir()
            with (
                _engine(home / "engine", cluster, logs["engine"], workload, database) as engine,
                _plain(home / "plain", cluster, logs["plain"], workload) as plain,
            ):
                turns = _Turns([engine, plain], logs, rows)
                turns.round()  # Spark compiles
                for number in range(1, rounds + 1):
                    rates = turns.round()
                    for name, rate in rates.items():
                        result.extend(f"{workload.title}: {name}", "rows/s", rate)
                    shown = ", ".join(f"{name} {rate:,.0f} rows/s" for name, rate in rates.items())
                    console.print(f"{workload.title}, {number}/{rounds}: {shown}", highlight=False)
            ours, theirs = (result.samples(f"{workload.title}: {name}") for name in topics)
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            result.at_least(f"{workload.title}, of the plain job", ratios, RATIO_MIN, "ratio")
    result.notes.append(f"topics of {PARTITIONS} partitions; {CORES} executors of a core a side")


class _Turns:
    """Both sides, which take turns."""

    def __init__(self, sides: Sequence[Side], logs: dict[str, dict[str, Any]], rows: int) -> None:
        self._sides, self._logs, self._rows = sides, logs, rows
        self._rounds = 0

    def round(self) -> dict[str, float]:
        """Run the same events through each side; another one begins each time."""
        first, rates = self._rounds * self._rows, dict[str, float]()
        self._rounds += 1
        lines = [
            line for batch in requests(first, self._rows) for line in as_ndjson(batch).splitlines()
        ]
        for side, other in [*permutations(self._sides)][:: 1 if self._rounds % 2 else -1]:
            log = self._logs[side.name]
            with standing_still([*side.processes(), *other.processes()]):
                put(",".join(log["brokers"]), log["topic"], lines, PARTITIONS)
            with standing_still(other.processes()):
                began, total = time.monotonic(), self._rounds * self._rows
                _await(side, total)
                rates[side.name] = self._rows / (time.monotonic() - began)
        return rates


def _await(side: Side, rows: int) -> None:
    wait_until(lambda: side.has_read(rows), within=ROUND_SECONDS, every=LOOK_SECONDS)


def measure_growth(
    rounds: int, directory: Path, database: Database, result: Result, console: Console
) -> None:
    """Add to ``result`` the rows a second with each number of executors."""
    build(JAR)
    with running_cluster(workers=max(EXECUTORS), cores=1, memory="600m") as cluster:
        for count in EXECUTORS:
            for rate in _rates(count, rounds, directory / str(count), cluster, database):
                result.extend(f"{count} executors", "rows/s", rate)
                console.print(f"{count} executors: {rate:,.0f} rows/s", highlight=False)
    (base, *_) = (result.samples(f"{count} executors") for count in EXECUTORS)
    for count, least in GROWTH_MIN.items():
        ratios = [
            more / one for more, one in zip(result.samples(f"{count} executors"), base, strict=True)
        ]
        result.at_least(f"{count} executors, of one", ratios, least, "ratio")
    result.notes.append(f"batches of {WAITING_ROWS:,} rows, each of which waits {ROW_MS:g} ms")


def _rates(
    executors: int, rounds: int, home: Path, cluster: Cluster, database: Database
) -> Iterator[float]:
    home.mkdir()
    (home / "waits.py").write_text(WAITING.format(seconds=ROW_MS / 1e3))
    query = {"function": "waits:waiting", "output_mode": "append", "read_tasks": READERS}
    sections = PATIENT | {
        "query": PATIENT["query"] | {"max_events_per_batch": WAITING_ROWS},
        "execution": {"executors": {"count": executors, "cores": 1, "memory": "512MiB"}},
    }
    application = _application("rows", query, {})
    with _node(cluster, home, application, database, sections) as node:
        feeder = Feeder(node.url.removeprefix("http://"), "rows")
        for number in range(rounds + 1):
            batches = [as_ndjson(one) for one in requests(number * WAITING_ROWS, WAITING_ROWS)]
            began = time.monotonic()
            feeder.feed(batches)
            wait_until(lambda: _ended(node), within=ROUND_SECONDS, every=LOOK_SECONDS)
            if number:  # the first batch starts the workers
                yield WAITING_ROWS / (time.monotonic() - began)


def _ended(node: NodeUnderTest) -> bool:
    status = node.status()
    return status is not None and _is_level(status)
