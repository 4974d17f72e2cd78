"""The shuffle that reads the blocks of map tasks in one order, on executors of a real cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ha_engine.jvm.build import build
from tests.cluster.standalone import Cluster, executor_settings, running_cluster
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, needs("javac")]
ROWS, MAP_TASKS, REDUCE_TASKS = 60_000, 24, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jar = tmp_path_factory.mktemp("jar") / "ha-engine.jar"
    build(jar)
    settings = executor_settings(Path(sys.executable), [Path.cwd()]) | {
        "spark.jars": str(jar),
        "spark.shuffle.manager": "haengine.shuffle.OrderedShuffleManager",
        # A task reads a block of 20 KB while it waits for the next two or three.
        "spark.reducer.maxSizeInFlight": "64k",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
    wait_until(lambda: all(worker.executors() for worker in cluster.workers), within=120)
    yield session
    session.stop()


def _dealt(spark: SparkSession) -> DataFrame:
    """Rows of MAP_TASKS tasks, with the number of their task, after a shuffle."""
    rows = spark.range(0, ROWS, 1, MAP_TASKS).selectExpr("id", "spark_partition_id() AS task")
    return rows.repartition(REDUCE_TASKS, "id")


def _by_partition(dealt: DataFrame) -> list[list[tuple[int, int]]]:
    """The task and the id of each row, in the order in which each task got them."""
    rows = dealt.selectExpr("spark_partition_id() AS place", "task", "id").collect()
    return [[(t, i) for place, t, i in rows if place == number] for number in range(REDUCE_TASKS)]


def test_a_task_gets_the_rows_of_the_map_tasks_in_their_order(spark: SparkSession) -> None:
    for _ in range(3):
        parts = _by_partition(_dealt(spark))
        assert sum(map(len, parts)) == ROWS
        assert all(part == sorted(part) and part[-1][0] == MAP_TASKS - 1 for part in parts)


def test_a_shuffle_without_rows_gives_none(spark: SparkSession) -> None:
    assert _dealt(spark).where("id < 0").count() == 0
    assert spark.range(0, 1, 1, MAP_TASKS).repartition(REDUCE_TASKS, "id").collect() == [(0,)]


@pytest.mark.nightly("no other test kills an executor that has blocks of a shuffle")
def test_rows_of_a_killed_executor_come_again_in_the_same_order(
    cluster: Cluster, spark: SparkSession
) -> None:
    rows = _dealt(spark).rdd.glom()
    expected = rows.collect()
    for worker in cluster.workers:
        old = worker.executors()
        for executor in old:
            executor.kill()
        assert rows.collect() == expected  # the blocks of all other map tasks are still there
        wait_until(lambda old=old, of=worker: set(of.executors()) - set(old), within=120)
