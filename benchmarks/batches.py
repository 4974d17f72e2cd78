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
from pathlib import Path

import psutil
import pyarrow as pa
from rich.console import Console

from benchmarks.processes import cpu_seconds, part_of, spent
from benchmarks.report import Result
from benchmarks.workload import WINDOWED, WORKLOADS, application, events
from ha_engine.query.application import load_application
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoints import CheckpointsOnDisk
from ha_engine.query.host import MemoryKills
from ha_engine.query.jvm import Jvm
from ha_engine.query.link import Address, NodeLink
from ha_engine.query.reports import Reports
from ha_engine.query.runner import QueryRunner
from ha_engine.query.session import SparkSettings, start_spark
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

QUERIES = (WORKLOADS[0], WINDOWED)
BATCHES = {1: 40, 4_000: 40, 16_000: 40, 200_000: 15}
"""Batches of each size that are measured, after as many again that warm up."""
BATCH_SECONDS_MAX, CHILD_SECONDS_MAX = 120.0, 600.0


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
    """Queries that run one after the other in this process, over events that go on."""

    def __init__(self, directory: Path, java: str) -> None:
        self._failure: BaseException | None = None
        self._number = self._next_id = 0
        file = directory / "application.yaml"
        file.write_text(application(QUERIES))
        self._application = load_application(file)
        own = {"spark.driver.extraJavaOptions": java} if java else {}
        # Before gRPC has threads here, which the fork of Java's launcher would leave half behind.
        spark = start_spark(SparkSettings(scratch=directory / "scratch", spark=own))
        self._node = LocalNode(directory)
        self._node.start()
        link = NodeLink(Address(str(self._node.socket), self._node.incarnation))
        self._runner = QueryRunner(
            spark,
            ApplicationVersions(file),
            link,
            Reports(link, self._fail),
            self._node.outbox_directory,
            CheckpointsOnDisk(self._node.checkpoints),
            self._fail,
            Jvm(spark.sparkContext._gateway.proc),
            MemoryKills(),
            read_parallelism=2,
        )

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def figures(self) -> Iterator[tuple[str, tuple[str, float]]]:
        for query in QUERIES:
            self._runner.run(run_command(self._application.queries[query.name]))
            self._number = self._next_id = 0
            for rows, count in BATCHES.items():
                self._seconds(query.name, rows, count)
                before = cpu_seconds(_spark())
                took = self._seconds(query.name, rows, count)
                cpu = spent(before, cpu_seconds(_spark())) / count
                yield f"{query.title}, {rows:,} rows: batch", ("ms", statistics.median(took) * 1e3)
                yield f"{query.title}, {rows:,} rows: CPU of Spark", ("ms", cpu * 1e3)
            self._runner.halt(query.name)
        jvm = next(one for one in _spark() if part_of(one) == "JVM")
        yield "memory of the JVM", ("MiB", jvm.memory_info().rss / (1 << 20))

    def _seconds(self, query: str, rows: int, count: int) -> list[float]:
        """Of so many batches, one after the other."""
        made = [events(self._next_id + n * rows, rows) for n in range(count)]
        self._next_id += count * rows
        return [self._one(query, batch) for batch in made]

    def _one(self, query: str, batch: pa.RecordBatch) -> float:
        self._node.append(self._application.streams[query], batch)
        self._number += 1
        began = time.perf_counter()
        self._node.mark(query)
        wait_until(lambda: self._is_done(query), within=BATCH_SECONDS_MAX, every=0.001)
        return time.perf_counter() - began

    def _is_done(self, query: str) -> bool:
        if self._failure is not None or self._node.seen.failed:
            raise RuntimeError(f"{query} failed: {self._failure or self._node.seen.failed[query]}")
        return self._node.outbox.last_admitted(query) >= self._number


def _spark() -> list[psutil.Process]:
    """Its JVM and its workers; its driver is this process."""
    return psutil.Process().children(recursive=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ha-b-", ignore_cleanup_errors=True) as directory:
        print(json.dumps(dict(_Batches(Path(directory), sys.argv[1]).figures())), flush=True)


if __name__ == "__main__":
    main()
