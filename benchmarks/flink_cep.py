"""Rows a second that a pattern takes, against Flink CEP with the same rule on the same core.

    python -m benchmarks.flink_cep [--batches 12] [--rounds 3] [--per-key 1 10 1000] [--core 0]

Both find *A, then B with at least its amount, within a minute*, as ``benchmarks.patterns``
describes. Flink makes its events in memory and Spark reads them from files. Flink keeps its state
on the heap and writes no checkpoint. All threads of both have one core. The sides take turns. The
jars of Flink come from a Maven repository, as those of Kafka for the tests do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.patterns import STORES, Bench
from ha_engine.jvm import engine_jar
from ha_engine.query.session import SparkSettings, start_spark
from tests.connectors.kafka_jars import classpath, fetch

HEAP = 3 << 30
WITHIN = 60
JARS = Path(__file__).with_name("flink_jars.txt")
SOURCE = Path(__file__).parent / "flink" / "AThenB.java"
_OPENED = ("java.lang", "java.util")
"""Packages of Java that Flink's serializers need."""


class Flink:
    """The compiled job."""

    def __init__(self, directory: Path) -> None:
        fetch(JARS)
        self._path = f"{directory}:{classpath(JARS)}"
        subprocess.run(["javac", "-cp", self._path, "-d", str(directory), str(SOURCE)], check=True)

    def measure(self, per_key: int, batches: int) -> float:
        """Return the events a second."""
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        words = ["-cp", self._path, "AThenB", str(per_key), str(batches), str(WITHIN)]
        job = ["java", f"-Xmx{HEAP}", *opened, *words]
        ended = subprocess.run(job, check=True, capture_output=True, text=True)
        return float(ended.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-key", type=int, nargs="+", default=[1, 10, 1000])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    given = parser.parse_args(arguments)
    os.sched_setaffinity(0, {given.core})
    shown = Table("events a key", "pattern rows/s", "Flink CEP rows/s", "pattern of Flink CEP")
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-flink-"))
    try:
        settings = SparkSettings(
            master="local[1]",
            heap=HEAP,
            scratch=directory / "scratch",
            state_store=given.store,
            jars=(engine_jar(),),
        )
        (directory / "classes").mkdir()
        flink = Flink(directory / "classes")
        bench = Bench(start_spark(settings), directory, given.batches, WITHIN)
        for per_key in given.per_key:
            rounds = [
                (bench.measure("pattern", per_key)[0], flink.measure(per_key, given.batches))
                for _ in range(given.rounds)
            ]
            ours, theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
            shown.add_row(f"{per_key:,}", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    Console().print(shown)


if __name__ == "__main__":
    main()
