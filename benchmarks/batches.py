"""One micro-batch of n rows, from its mark to its outbox file: a query process and nothing else.

Two settings take turns, each in a process of its own: the engine's, and the same with other options
for Java. For what a setting of Spark or of its JVM costs, where a whole node would hide it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
from rich.console import Console

from benchmarks.report import Result
from ha_engine.query.application import StreamSpec, load_application
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.link import Address, NodeLink
from ha_engine.query.reports import Reports
from ha_engine.query.runner import Directories, QueryRunner
from ha_engine.query.session import SparkSettings, start_spark
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

APPLICATION = """
name: batches
streams:
  events:
    schema: {at: timestamp not null, key: string not null, value: int, ratio: double, text: string}
queries:
  filter:
    sql: SELECT key, value FROM events WHERE value > 0
  aggregation:
    sql: SELECT key, count(*) AS n, sum(value) AS total FROM events GROUP BY key
    output_mode: update
"""
KEYS = 100_000
BATCHES = {1: 40, 4_000: 40, 200_000: 15}
"""Batches of each size that are measured, after as many again that warm up."""
CHILD_SECONDS_MAX = 600.0
START = datetime(2013, 1, 1, tzinfo=UTC)


def measure(java: str, rounds: int, result: Result, console: Console) -> None:
    """``java``: options, separated by blanks, of the side that the engine's is compared with."""
    sides = {"as it is": "", java: java}
    for number in range(rounds):
        for words in list(sides)[:: -1 if number % 2 else 1]:
            console.print(f"  round {number + 1}: {words}", highlight=False)
            for name, (unit, value) in _child(sides[words]).items():
                result.extend(f"{words}: {name}", unit, value)
    for figure in [one for one in result.figures if one.name.startswith("as it is: ")]:
        name = figure.name.removeprefix("as it is: ")
        theirs = result.samples(f"{java}: {name}")
        ratios = [a / b for a, b in zip(figure.samples, theirs, strict=True)]
        result.add(f"{name}, of {java}", "ratio", ratios)


def _child(java: str) -> dict[str, tuple[str, float]]:
    command = [sys.executable, "-m", "benchmarks.batches", java]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX)
    if done.returncode:
        raise RuntimeError(
            f"no batches with {java or 'the engine as it is'}: {done.stderr[-2000:]}"
        )
    told: dict[str, tuple[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return told


class _Batches:
    """Queries of the application above, run one after the other in this process."""

    def __init__(self, directory: Path, java: str) -> None:
        (directory / "application.yaml").write_text(APPLICATION)
        self.application = load_application(directory / "application.yaml")
        own = {"spark.driver.extraJavaOptions": java} if java else {}
        # Before gRPC has threads here, which the fork of Java's launcher would leave half behind.
        spark = start_spark(SparkSettings(scratch=directory / "scratch", spark=own))
        self._node = LocalNode(directory)
        self._node.start()
        link = NodeLink(Address(str(self._node.socket), self._node.incarnation))
        self._runner = QueryRunner(
            spark,
            ApplicationVersions(directory / "application.yaml"),
            link,
            Reports(link, lambda error: None),
            Directories(self._node.checkpoints, self._node.outbox_directory),
            lambda error: None,
            read_parallelism=2,
        )

    def figures(self) -> Iterator[tuple[str, tuple[str, float]]]:
        for name, query in self.application.queries.items():
            self._runner.run(run_command(query))
            number = 0
            for rows, count in BATCHES.items():
                batch = _rows(self.application.streams["events"], rows)
                for _ in range(count):
                    self._one(name, number := number + 1, batch)
                cpu = _cpu()
                took = [self._one(name, number := number + 1, batch) for _ in range(count)]
                cpu = (_cpu() - cpu) / count
                yield f"{name}, {rows:,} rows: batch", ("ms", statistics.median(took) * 1e3)
                yield f"{name}, {rows:,} rows: CPU", ("ms", cpu * 1e3)
            self._runner.halt(name)
        yield "memory of the JVM", ("MiB", _jvm().memory_info().rss / (1 << 20))

    def _one(self, query: str, number: int, batch: pa.RecordBatch) -> float:
        self._node.append(self.application.streams["events"], batch)
        began = time.perf_counter()
        self._node.mark(query)
        wait_until(lambda: self._node.outbox.last_admitted(query) >= number, every=0.001)
        return time.perf_counter() - began


def _rows(stream: StreamSpec, count: int) -> pa.RecordBatch:
    rows = [
        {
            "at": START + timedelta(seconds=n),
            "key": f"k{n * 7919 % KEYS}",
            "value": n % 5,
            "ratio": n / 7,
            "text": "some text that is here",
        }
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=stream.arrow_schema)


def _cpu() -> float:
    """Seconds of the JVM and of the workers of Spark: what ends meanwhile is not counted."""
    return sum(map(_seconds, psutil.Process().children(recursive=True)))


def _seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return 0.0


def _jvm() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    return next(one for one in children if one.name() == "java")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ha-b-", ignore_cleanup_errors=True) as directory:
        print(json.dumps(dict(_Batches(Path(directory), sys.argv[1]).figures())), flush=True)


if __name__ == "__main__":
    main()
