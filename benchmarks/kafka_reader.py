"""Four ways in which Spark's executors may read Kafka, on a standalone cluster.

- spark: Spark's own source, which decides itself with maxOffsetsPerTrigger;
- wrapper: Spark's own source at the marks of the node (ha_engine.jvm);
- short: the same, but a poll of the consumer gives at most 500 records instead of 20,000;
- python: a Python source at the same marks, with confluent-kafka in Spark's Python workers.

All read the same records of one topic in batches of the same size, in turns, each time from
the first record with an empty checkpoint; the rows go nowhere. The first batches of a run do not
count. CPU is that of the driver's JVM and of the executors, with their Python workers; the process
that answers with marks, and the broker, do not count.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.kafka import put
from benchmarks.processes import cpu_seconds, spent
from benchmarks.python_kafka_source import FORMAT, PythonKafka
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import DDL, WATERMARK, WINDOWED, WORKLOADS, Workload, as_ndjson, requests
from ha_engine.jvm.build import build
from ha_engine.query.session import SparkSettings, spark_conf
from tests.cluster.marks import Ends, Marks, serving
from tests.cluster.standalone import Cluster, executor_settings, running_cluster
from tests.connectors.kafka_broker import create, kafka
from tests.connectors.kafka_jars import SPARK, fetch, spark_jars

ROOT = Path(__file__).parents[1]
WORKER = ROOT / "ha_engine" / "query" / "python_worker"
WAYS = ("spark", "wrapper", "short", "python")
SHORT = {"kafka.max.poll.records": "500", "kafka.max.partition.fetch.bytes": str(1 << 20)}
PARTITIONS = 4
RUN_SECONDS = 900.0
LOOK_SECONDS = 0.05
PLANNED = (24, 1_000)
PLANNING_MS_MAX = {24: 10, 1_000: 50}
OFFSET_BYTES_MAX = 32 << 10


@dataclass(frozen=True, slots=True)
class Size:
    """Batches of so many rows each; the first ``warm`` of them do not count."""

    rows: int
    warm: int
    counted: int

    @property
    def batches(self) -> int:
        return self.warm + self.counted


SIZES = (Size(4_000, 5, 15), Size(200_000, 1, 4))


class Input:
    """A topic with enough records for each size."""

    def __init__(self, brokers: Sequence[str], topic: str, partitions: int) -> None:
        self.brokers, self.topic, self.partitions = ",".join(brokers), topic, partitions
        create(list(brokers), topic, partitions=partitions)

    def end(self, rows: int, partitions: int) -> Ends:
        """The end of the first ``rows`` records, in the first ``partitions``."""
        ends = dict.fromkeys(range(self.partitions), 0)
        ends |= {number: -(-(rows - number) // partitions) for number in range(partitions)}
        return {self.topic: ends}

    def marks(self, rows: int, batches: int, partitions: int) -> Marks:
        marks = Marks(self.end(0, partitions))
        marks.add(*(self.end(rows * number, partitions) for number in range(1, batches + 1)))
        return marks


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a query took, in its batches that count."""

    batch_ms: list[float]
    seconds: float
    cpu_seconds: float
    rows: int
    cpu_rows: int


class Reading:
    """Runs queries over a topic in each of the ways."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self._spark, self._cluster, self._directory = spark, cluster, directory
        spark.dataSource.register(PythonKafka)

    def run(
        self, way: str, source: Input, workload: Workload | None, size: Size, partitions: int
    ) -> Run:
        """Run ``size`` batches of ``workload``, or of the plain records."""
        with tempfile.TemporaryDirectory(dir=self._directory) as home:
            socket = Path(home) / "node"
            with serving(source.marks(size.rows, size.batches, partitions), socket):
                records = self._records(way, source, socket, size.rows)
                frame = records if workload is None else _computed(records, workload)
                writer = frame.writeStream.format("noop").outputMode("append")
                query = writer.option("checkpointLocation", f"{home}/checkpoint").start()
                try:
                    return self._measured(query, size)
                finally:
                    query.stop()

    def _records(self, way: str, source: Input, socket: Path, rows: int) -> DataFrame:
        reader = self._spark.readStream
        if way == "python":
            reader = reader.format(FORMAT).option("brokers", source.brokers)
            return reader.option("topic", source.topic).option("socket", str(socket)).load()
        reader = reader.format("kafka" if way == "spark" else "haengine.kafka.MarkedKafka")
        reader = reader.option("kafka.bootstrap.servers", source.brokers)
        reader = reader.option("subscribe", source.topic)
        if way != "spark":
            reader = reader.options(**(SHORT if way == "short" else {}))
            reader = reader.option("mark.socket", str(socket))
            return reader.option("mark.topics", source.topic).load()
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", rows).load()

    def _measured(self, query: Any, size: Size) -> Run:
        warm = self._await(query, size.warm - 1)
        before = self._cpu()
        end = self._await(query, size.batches - 1)
        used = spent(before, self._cpu())
        found = [one for one in query.recentProgress if warm < one["batchId"] < size.batches]
        counted = [one for one in found if one["batchId"] >= size.warm]
        for one in counted:
            if one["numInputRows"] != size.rows:
                raise RuntimeError(f"a batch has {one['numInputRows']} rows, not {size.rows}")
        times = [float(one["durationMs"]["triggerExecution"]) for one in counted]
        return Run(
            times, sum(times) / 1e3, used, size.rows * len(counted), size.rows * (end - warm)
        )

    def _await(self, query: Any, batch: int) -> int:
        """The number of the last batch that ended, once ``batch`` did."""

        def last() -> int:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            progress = query.lastProgress
            return -1 if progress is None else int(progress["batchId"])

        wait_until(lambda: last() >= batch, within=RUN_SECONDS, every=LOOK_SECONDS)
        return last()

    def _cpu(self) -> dict[int, float]:
        roots = psutil.Process().children()
        roots = [one for one in roots if "SparkSubmit" in " ".join(one.cmdline())]
        roots += [one for worker in self._cluster.workers for one in worker.executors()]
        every = [one for root in roots for one in (root, *root.children(recursive=True))]
        return cpu_seconds(every)


def _computed(records: DataFrame, workload: Workload) -> DataFrame:
    rows = records.selectExpr(f"from_json(string(value), '{DDL}') AS row").select("row.*")
    if workload is WINDOWED:
        rows = rows.withWatermark(*WATERMARK)
    rows.createOrReplaceTempView(workload.name)
    return records.sparkSession.sql(workload.sql)


@contextmanager
def _session(cluster: Cluster, directory: Path) -> Iterator[SparkSession]:
    fetch(SPARK)
    jar = directory / "marked-kafka.jar"
    build(jar)
    # Spark waits ten seconds for plain Python, which a busy host may need to import PySpark.
    os.environ |= {"PYSPARK_PYTHON": str(WORKER), "HA_ENGINE_PYTHON": sys.executable}
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # it is asked for its version
    own = {
        "spark.jars": f"{jar},{spark_jars()}",
        "spark.executor.memory": "512m",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **executor_settings(WORKER, [ROOT]),
        "spark.executorEnv.HA_ENGINE_PYTHON": sys.executable,
    }
    settings = SparkSettings(master=cluster.url, heap=512 << 20, shuffle_partitions=2, spark=own)
    spark = SparkSession.builder.config(map=spark_conf(settings)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def measure(
    ways: Sequence[str],
    rounds: int,
    directory: Path,
    result: Result,
    console: Console,
    *,
    planning: bool,
) -> None:
    """Add to ``result`` the figures of each workload and size, or of the planning of marks.

    The ratios are those to the first of ``ways``.
    """
    with ExitStack() as stack:
        brokers = stack.enter_context(kafka()).brokers
        cluster = stack.enter_context(running_cluster(workers=2))
        spark = stack.enter_context(_session(cluster, directory))
        reading = Reading(spark, cluster, directory)
        if planning:
            for partitions in PLANNED:
                _plan(reading, ways, spark, brokers, partitions, rounds, directory, result)
            return
        source = Input(brokers, "rows", PARTITIONS)
        last = max(size.rows * size.batches for size in SIZES)
        for batch in requests(0, last):
            put(source.brokers, source.topic, as_ndjson(batch).splitlines(), PARTITIONS)
        for number in range(rounds + 1):  # the first round compiles, and does not count
            _round(reading, ways, source, number, result, console)
        _ratios(ways, result)
    result.notes.append(f"topic of {PARTITIONS} partitions; 2 workers of one core each")


def _round(
    reading: Reading,
    ways: Sequence[str],
    source: Input,
    number: int,
    result: Result,
    console: Console,
) -> None:
    for workload in (WORKLOADS[0], WINDOWED):
        for size in SIZES:
            shown = []
            for way in _turn(ways, number):
                run = reading.run(way, source, workload, size, PARTITIONS)
                rate, batch = run.rows / run.seconds, statistics.median(run.batch_ms)
                shown.append(f"{way} {rate:,.0f} rows/s, {batch:.0f} ms")
                if number:
                    name = _name(way, workload, size)
                    result.extend(f"{name}", "rows/s", rate)
                    result.extend(f"{name}: a batch", "ms", batch)
                    used = 1e6 * run.cpu_seconds / run.cpu_rows
                    result.extend(f"{name}: CPU", "s/million rows", used)
            line = f"{number}: {workload.title}, {size.rows:,} rows: {'; '.join(shown)}"
            console.print(line, highlight=False)


def _turn(ways: Sequence[str], number: int) -> list[str]:
    """Another way begins each round."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def _name(way: str, workload: Workload, size: Size) -> str:
    return f"{workload.title}, {size.rows:,} rows: {way}"


def _ratios(ways: Sequence[str], result: Result) -> None:
    for workload in (WORKLOADS[0], WINDOWED):
        for size in SIZES:
            base = _name(ways[0], workload, size)
            for way in ways[1:]:
                name, of = _name(way, workload, size), f"of {ways[0]}'s"
                rates = _divided(result.samples(name), result.samples(base))
                result.add(f"{name}, rows/s {of}", "ratio", rates)
                used = _divided(result.samples(f"{name}: CPU"), result.samples(f"{base}: CPU"))
                result.add(f"{name}, CPU {of}", "ratio", used)


def _divided(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def _plan(
    reading: Reading,
    ways: Sequence[str],
    spark: SparkSession,
    brokers: Sequence[str],
    partitions: int,
    rounds: int,
    directory: Path,
    result: Result,
) -> None:
    """Batches of one record, which show what a mark of so many partitions costs; and planning calls
    alone, of a mark in which all partitions grew."""
    source = Input(brokers, f"plan-{partitions}", partitions)
    size = Size(1, 5, 15)
    put(source.brokers, source.topic, [b"{}"] * size.batches, 1)
    for number in range(rounds + 1):
        for way in _turn(ways, number):
            run = reading.run(way, source, None, size, 1)
            if number:
                name = f"a batch of one record, {partitions:,} partitions: {way}"
                result.extend(name, "ms", statistics.median(run.batch_ms))
    name = f"planning a mark of {partitions:,} partitions"
    for _ in range(rounds):
        times, length = _calls(spark, source, directory)
        result.extend(f"{name}: wrapper", "ms", statistics.median(times))
        result.extend(f"{name}: its offset", "bytes", length)
    result.aim(f"{name}: wrapper", PLANNING_MS_MAX[partitions])
    result.aim(f"{name}: its offset", OFFSET_BYTES_MAX)


def _calls(
    spark: SparkSession, source: Input, directory: Path, times: int = 30
) -> tuple[list[float], int]:
    """Milliseconds of the calls of Spark in each batch: ask for the mark, write it, read it, plan
    tasks; and the bytes of the offset."""
    jvm: Any = spark._jvm
    marks = Marks(source.end(0, source.partitions))
    marks.add(*(source.end(10**9 + number, source.partitions) for number in range(1, times + 11)))
    options = jvm.java.util.HashMap()
    for name, value in {
        "kafka.bootstrap.servers": source.brokers,
        "subscribe": source.topic,
        "mark.socket": str(directory / "plan"),
        "mark.topics": source.topic,
    }.items():
        options.put(name, value)
    texts = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    provider, found, length = jvm.haengine.kafka.MarkedKafka(), list[float](), 0
    schema, no_parts = provider.inferSchema(texts), provider.inferPartitioning(texts)
    table = provider.getTable(schema, no_parts, options)
    with serving(marks, directory / "plan"):
        stream = table.newScanBuilder(texts).build().toMicroBatchStream(str(directory / "none"))
        start = stream.initialOffset()
        for _ in range(times + 10):
            began = time.perf_counter()
            end = stream.latestOffset(start, None)
            text = end.json()
            stream.planInputPartitions(start, stream.deserializeOffset(text))
            start = end
            found.append((time.perf_counter() - began) * 1e3)
            length = len(text)
        stream.stop()
    return found[10:], length
