"""The shuffle that reads the blocks of map tasks in one order, on executors of a real cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from ha_engine.jvm.build import build
from tests.cluster.standalone import Cluster, driver_settings, ordered_shuffle, running_cluster
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("a cluster takes half a minute to start; no query uses the shuffle yet"),
    pytest.mark.slow,
]
ROWS, MAP_TASKS, REDUCE_TASKS = 60_000, 24, 2
Parts = list[list[tuple[int, int]]]
"""For each reduce task, the map task and the number of each row, in the order of their arrival."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessPoolExecutor]:
    """A process with a Spark of its own, since a process has at most one."""
    jar = tmp_path_factory.mktemp("jar") / "ha-engine.jar"
    build(jar)
    with ProcessPoolExecutor(1, get_context("spawn"), _start, (cluster.url, str(jar))) as driver:
        assert driver.submit(_empty).result() == (0, [0])
        wait_until(lambda: all(worker.executors() for worker in cluster.workers), within=120)
        yield driver
        driver.submit(_stop).result()


def test_a_task_gets_the_rows_of_the_map_tasks_in_their_order(driver: ProcessPoolExecutor) -> None:
    for _ in range(3):
        parts = driver.submit(_parts).result()
        assert sum(map(len, parts)) == ROWS
        assert all(part == sorted(part) and part[-1][0] == MAP_TASKS - 1 for part in parts)


def test_rows_of_a_killed_executor_come_again_in_the_same_order(
    cluster: Cluster, driver: ProcessPoolExecutor
) -> None:
    expected = driver.submit(_parts_again).result()
    for worker in cluster.workers:
        old = worker.executors()
        for executor in old:
            executor.kill()
        again = driver.submit(_parts_again).result()
        assert again == expected  # the blocks of all other map tasks were still there
        wait_until(lambda old=old, of=worker: set(of.executors()) - set(old), within=120)


# -- in the process of the driver ------------------------------------------------------------------


def _start(master: str, jar: str) -> None:
    settings = {
        **driver_settings([Path.cwd()]),
        **ordered_shuffle(Path(jar)),
        # A task reads a block of 20 KB while it waits for the next two or three.
        "spark.reducer.maxSizeInFlight": "64k",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkSession.builder.master(master).config(map=settings).getOrCreate()


def _stop() -> None:
    SparkSession.active().stop()


def _dealt() -> DataFrame:
    """Rows of MAP_TASKS tasks, with the number of their task, after a shuffle."""
    rows = SparkSession.active().range(0, ROWS, 1, MAP_TASKS)
    return rows.selectExpr("spark_partition_id() AS task", "id").repartition(REDUCE_TASKS, "id")


def _empty() -> tuple[int, list[int]]:
    """Shuffle no row, and one row."""
    one = SparkSession.active().range(0, 1, 1, MAP_TASKS).repartition(REDUCE_TASKS, "id")
    return _dealt().where("id < 0").count(), [row.id for row in one.collect()]


def _parts() -> Parts:
    return _collected(_dealt().rdd)


def _parts_again() -> Parts:
    """As _parts, from the blocks of the first call."""
    return _collected(_kept())


@cache
def _kept() -> RDD[tuple[int, int]]:
    return _dealt().rdd


def _collected(rows: RDD[tuple[int, int]]) -> Parts:
    return [[(task, number) for task, number in part] for part in rows.glom().collect()]
