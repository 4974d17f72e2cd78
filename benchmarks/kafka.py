"""From Kafka to Kafka: a node against a plain Spark job with Spark's own Kafka connector.

Both sides read the same events from a topic of their own, run the same query, and write its rows as
JSON to another topic. While a round's events are written to the topic, all processes of both sides
stand still, so that the producer's speed does not count. The time of a round ends when the rows are
visible to readers of committed records. Then the rows are compared with what the query must give.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, Protocol

import psutil
import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console

from benchmarks.database import Database
from benchmarks.engine_side import ROUND_SECONDS, merged, processes_of
from benchmarks.processes import (
    cpu_seconds,
    part_of,
    plain_job,
    session_of,
    spent,
    standing_still,
)
from benchmarks.report import Result
from benchmarks.waiting import wait_until
from benchmarks.workload import BATCH_EVENTS, WORKLOADS, Workload, as_ndjson, requests
from tests.connectors.kafka_broker import KafkaCluster, create, kafka
from tests.connectors.kafka_jars import SPARK, fetch, spark_jars
from tests.e2e.node_under_test import NodeUnderTest, running

PARTITIONS = 2
RATIO_MIN = 0.8
LOOK_SECONDS = 0.1
WORKLOAD: Workload = WORKLOADS[1]
PATIENT: dict[str, dict[str, Any]] = {
    # The node stands still while a round's events are written.
    "lease": {"ttl": "60s", "renew_interval": "5s", "db_timeout": "2s"},
    "receive": {"max_backlog_events": 50_000_000},
    "query": {"idle_batch_interval": "1h", "max_events_per_batch": BATCH_EVENTS},
}


class Side(Protocol):
    """Whoever moves events from the topic ``NAME-in`` to ``NAME-out``."""

    name: str

    def processes(self) -> list[psutil.Process]: ...


def put(brokers: str, topic: str, lines: Sequence[bytes], partitions: int) -> None:
    """Write each line as a message, in turn to the first ``partitions`` of the topic."""
    address = {"bootstrap.servers": brokers, "log_level": 0, "linger.ms": 20}
    producer = Producer(address | {"queue.buffering.max.messages": len(lines) + 1})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % partitions)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(ROUND_SECONDS):
        raise RuntimeError("the broker did not take all messages in time")


class Topics:
    """The topics of one side."""

    def __init__(self, brokers: Sequence[str], name: str) -> None:
        self.input, self.output = f"{name}-in", f"{name}-out"
        self._brokers = ",".join(brokers)
        create(list(brokers), self.input, partitions=PARTITIONS)
        create(list(brokers), self.output, partitions=PARTITIONS)
        terms = {"group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
        self._reader = Consumer({"bootstrap.servers": self._brokers, "log_level": 0} | terms)
        self._ends = [TopicPartition(self.output, number, 0) for number in range(PARTITIONS)]

    def put(self, lines: Sequence[bytes]) -> None:
        """Write each line as one message, the lines in turn to the partitions."""
        put(self._brokers, self.input, lines, PARTITIONS)

    def visible(self) -> int:
        """How many records, and markers of transactions, the output has for readers."""
        return sum(self._reader.get_watermark_offsets(part)[1] - part.offset for part in self._ends)

    def taken(self) -> list[bytes]:
        """The rows since the last call."""
        self._reader.assign(self._ends)
        rows, ended = list[bytes](), set[int]()
        while len(ended) < PARTITIONS:
            for message in self._reader.consume(10_000, LOOK_SECONDS):
                if message.error() is None:
                    rows.append(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        self._ends = self._reader.position(self._ends)
        return rows


class Engine:
    """One node, run as its users run it."""

    name = "engine"

    def __init__(self, node: NodeUnderTest) -> None:
        self._node = node

    def processes(self) -> list[psutil.Process]:
        return processes_of(self._node)


class Plain:
    """The plain job."""

    name = "plain"

    def __init__(self, process: psutil.Popen) -> None:
        self._process = process

    def processes(self) -> list[psutil.Process]:
        return session_of(self._process.pid)


@contextmanager
def _engine(
    directory: Path, cluster: KafkaCluster, topics: Topics, database: Database
) -> Iterator[Engine]:
    directory.mkdir()
    place = {"type": "kafka", "brokers": cluster.brokers, "format": "json"}
    schema = {"id": "bigint not null", "at": "timestamp not null"}
    schema |= {"key": "string not null", "amount": "double not null"}
    source = {"name": "input", **place, "topic": topics.input}
    ledger = {"replication": 1, "min_insync_replicas": 1}
    sink = {"name": "output", **place, "topic": topics.output, "ledger": ledger}
    application = {
        "name": "bench",
        "streams": {WORKLOAD.name: {"schema": schema, "sources": [source]}},
        "queries": {"copy": {"sql": WORKLOAD.sql, "sinks": [sink]}},
    }
    node = NodeUnderTest(
        directory, yaml.safe_dump(application), database.url, "node-a", **merged(PATIENT)
    )
    with running(node):
        node.wait_running()
        yield Engine(node)


@contextmanager
def _plain(directory: Path, cluster: KafkaCluster, topics: Topics) -> Iterator[Plain]:
    directory.mkdir()
    settings = {
        "workload": WORKLOAD.name,
        "brokers": ",".join(cluster.brokers),
        "input": topics.input,
        "output": topics.output,
        "batch_events": BATCH_EVENTS,
        "checkpoint": str(directory / "checkpoint"),
        "jars": spark_jars(),
    }
    with plain_job("benchmarks.plain_kafka_job", directory, settings) as process:
        yield Plain(process)


def measure(
    rows: int,
    rounds: int,
    directory: Path,
    database: Database,
    result: Result,
    console: Console,
) -> None:
    fetch(SPARK)
    with kafka() as cluster:
        topics = {name: Topics(cluster.brokers, name) for name in ("engine", "plain")}
        with (
            _engine(directory / "engine", cluster, topics["engine"], database) as engine,
            _plain(directory / "plain", cluster, topics["plain"]) as plain,
        ):
            sides = _Sides([engine, plain], topics, rows, result)
            sides.round(0)  # Spark compiles
            for number in range(1, rounds + 1):
                rates = sides.round(number)
                shown = ", ".join(f"{name} {rate:,.0f} rows/s" for name, rate in rates.items())
                console.print(f"{number}/{rounds}: {shown}", highlight=False)
    engine_rates, plain_rates = (result.samples(_rate(name)) for name in topics)
    ratios = [one / other for one, other in zip(engine_rates, plain_rates, strict=True)]
    result.at_least("Kafka to Kafka, of the plain job", ratios, RATIO_MIN, "ratio")


def _rate(name: str) -> str:
    return f"Kafka to Kafka: {name}"


class _Sides:
    """Both sides, which take turns."""

    def __init__(
        self, sides: Sequence[Side], topics: dict[str, Topics], rows: int, result: Result
    ) -> None:
        self._sides, self._topics, self._rows, self._result = sides, topics, rows, result

    def round(self, number: int) -> dict[str, float]:
        """Run the same events through each side. The figures of round 0 are not kept."""
        first, rates = number * self._rows, dict[str, float]()
        lines = [
            line for batch in requests(first, self._rows) for line in as_ndjson(batch).splitlines()
        ]
        for side, other in [*permutations(self._sides)][:: 1 if number % 2 else -1]:
            topics = self._topics[side.name]
            with standing_still(other.processes()):
                took, used = _run(side, topics, lines)
            _require_ids(topics.taken(), first, self._rows)
            rates[side.name] = self._rows / took
            if number:
                self._result.extend(_rate(side.name), "rows/s", rates[side.name])
                for part, seconds in used.items():
                    name = f"{_rate(side.name)}, CPU of {part}"
                    self._result.extend(name, "us/row", 1e6 * seconds / self._rows)
        return rates


def _run(side: Side, topics: Topics, lines: Sequence[bytes]) -> tuple[float, dict[str, float]]:
    """Seconds from the first look at the events to the last visible row, and of CPU by part."""
    processes = side.processes()
    with standing_still(processes):
        topics.put(lines)
    began, before = time.monotonic(), _cpu_by_part(processes)
    wait_until(lambda: topics.visible() >= len(lines), within=ROUND_SECONDS, every=0.02)
    took, after = time.monotonic() - began, _cpu_by_part(side.processes())
    return took, {part: spent(before.get(part, {}), used) for part, used in after.items()}


def _cpu_by_part(processes: Sequence[psutil.Process]) -> dict[str, dict[int, float]]:
    """CPU seconds by part and pid."""
    parts: dict[str, list[psutil.Process]] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            parts.setdefault(part_of(process), []).append(process)
    return {part: cpu_seconds(found) for part, found in parts.items()}


def _require_ids(rows: Sequence[bytes], first: int, count: int) -> None:
    ids = sorted(json.loads(row)["id"] for row in rows)
    if ids != list(range(first, first + count)):
        raise RuntimeError(f"{len(ids)} rows for events {first} to {first + count - 1}")
