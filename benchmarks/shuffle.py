"""A shuffle whose blocks are read in one order, against Spark's own shuffle.

On a standalone cluster of two executors with a core each. Each way has a session of its own in each
round; the first jobs of a session do not count.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.report import Result
from ha_engine.jvm.build import build
from tests.cluster.standalone import Cluster, driver_settings, ordered_shuffle, running_cluster

ROOT = Path(__file__).parents[1]
ROWS = 2_000_000
MAP_TASKS = (4, 200)
REDUCE_TASKS = 4
WARM, COUNTED = 2, 3
RATIO_MIN = 0.9
ORDERED, SPARK = "ordered", "spark"


def measure(rounds: int, result: Result, console: Console) -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as home, running_cluster(workers=2) as cluster:
        jar = Path(home, "ha-engine.jar")
        build(jar)
        for number in range(rounds):
            for way in (ORDERED, SPARK)[:: -1 if number % 2 else 1]:
                for tasks, rate in _session(cluster, jar, way).items():
                    rates.setdefault((way, tasks), []).append(rate)
                    shown = f"{way}, {tasks} map tasks: {rate:,.0f} rows/s"
                    console.print(f"{number + 1}/{rounds}: {shown}", highlight=False)
    for tasks in MAP_TASKS:
        ordered, own = rates[ORDERED, tasks], rates[SPARK, tasks]
        ratios = [one / other for one, other in zip(ordered, own, strict=True)]
        name = f"{tasks} map tasks: ordered"
        result.at_least(f"{name}, of Spark's own", ratios, RATIO_MIN, "ratio")
        result.add(name, "rows/s", ordered)


def _session(cluster: Cluster, jar: Path, way: str) -> dict[int, float]:
    """The rows a second of the median job, by map tasks."""
    settings = driver_settings([ROOT]) | {"spark.sql.shuffle.partitions": str(REDUCE_TASKS)}
    if way == ORDERED:
        settings |= ordered_shuffle(jar)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        return {tasks: _rate(spark, tasks) for tasks in MAP_TASKS}
    finally:
        spark.stop()


def _rate(spark: SparkSession, tasks: int) -> float:
    events = spark.range(0, ROWS, 1, tasks).selectExpr("id % 500000 AS k", "id / 7D AS amount")
    sums = events.groupBy("k").agg({"amount": "sum"})
    seconds = list[float]()
    for _ in range(WARM + COUNTED):
        began = time.monotonic()
        sums.write.format("noop").mode("overwrite").save()
        seconds.append(time.monotonic() - began)
    return ROWS / statistics.median(seconds[WARM:])
