"""The plain job that the engine is compared with: Spark's Kafka source and sink, and nothing else.

    python -m tests.faults.plain_restarts SETTINGS.json

Its checkpoint is in a directory that all hosts share, and a supervisor starts it again at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from benchmarks.processes import kill_session, plain_job, session_of
from ha_engine.query.session import SparkSettings, spark_conf
from tests.cluster.deployment import Services
from tests.cluster.standalone import driver_settings
from tests.connectors.kafka_jars import spark_jars
from tests.faults.numbers import BATCH_ROWS_MAX

ROOT = Path(__file__).parents[2]
RESTART_SECONDS = 0.1
"""RestartSec of systemd, if a unit does not set it."""
CORES = 2


class Supervisor(threading.Thread):
    """Starts the job again whenever it ends, as systemd does with ``Restart=always``."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        super().__init__(name="supervisor", daemon=True)
        self._directory, self._settings = directory, settings
        self._ended = threading.Event()
        self._job: psutil.Popen | None = None

    def run(self) -> None:
        while not self._ended.is_set():
            with plain_job(__name__, self._directory, self._settings) as self._job:
                self._job.wait()
            self._ended.wait(RESTART_SECONDS)

    def kill_driver(self) -> None:
        """Kill the JVM of the driver."""
        for process in self._processes():
            if "org.apache.spark.deploy.SparkSubmit" in process.cmdline():
                process.kill()

    def stop(self) -> None:
        self._ended.set()
        while self.is_alive():  # it may start the job once more
            if self._job is not None:
                kill_session(self._job.pid)
            self.join(RESTART_SECONDS)

    def _processes(self) -> list[psutil.Process]:
        return session_of(self._job.pid) if self._job is not None else []


@contextmanager
def running_plain(
    directory: Path, services: Services, brokers: list[str], source: str, target: str
) -> Iterator[Supervisor]:
    """Run the job from one topic to the other, on two executors of one core."""
    directory.mkdir()
    spark = spark_conf(SparkSettings(master=services.cluster.url, shuffle_partitions=CORES))
    spark |= driver_settings([ROOT]) | {"spark.executor.memory": "512m"}
    spark |= {"spark.jars": spark_jars(), "spark.cores.max": str(CORES)}
    settings = {
        "brokers": ",".join(brokers),
        "source": source,
        "target": target,
        "checkpoint": str(directory / "checkpoint"),
        "spark": spark,
    }
    supervisor = Supervisor(directory, settings)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.config(map=settings["spark"]).getOrCreate()
    address = {"kafka.bootstrap.servers": settings["brokers"]}
    reader = spark.readStream.format("kafka").options(**address, startingOffsets="earliest")
    reader = reader.option("maxOffsetsPerTrigger", BATCH_ROWS_MAX)
    rows = reader.option("subscribe", settings["source"]).load()
    rows = rows.selectExpr("from_json(string(value), 'n BIGINT, at TIMESTAMP') AS row")
    rows = rows.select("row.*").withWatermark("at", "3 hours").dropDuplicatesWithinWatermark(["n"])
    writer = rows.selectExpr("to_json(struct(n)) AS value").writeStream.format("kafka")
    writer = writer.options(**address, topic=settings["target"])
    writer.option("checkpointLocation", settings["checkpoint"]).start().awaitTermination()


if __name__ == "__main__":
    main()
