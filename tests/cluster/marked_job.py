"""A driver whose queries read Kafka at marks. It writes each batch down, for tests to compare.

    python -m tests.cluster.marked_job SETTINGS.json

The query ``rows`` gives the place of each record, and ``groups`` counts and sums them in windows.
Each batch is a file of its own in the directory of its query, ``NUMBER-ATTEMPT.json``. A batch
waits while the directory has the file ``hold-NUMBER``, and a task of ``rows`` while it has
``hold-task``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ha_engine.query.session import SparkSettings, spark_conf

DDL = "id BIGINT, at TIMESTAMP, key STRING, amount DECIMAL(10, 2)"
FORMAT = "haengine.kafka.MarkedKafka"
POLL_SECONDS = 0.02


def session(settings: dict[str, Any]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = SparkSettings(
        master=settings["master"], heap=512 << 20, shuffle_partitions=2, spark=settings["spark"]
    )
    return SparkSession.builder.config(map=spark_conf(own)).getOrCreate()


def records_of(spark: SparkSession, settings: dict[str, Any]) -> DataFrame:
    """One source for each topic."""
    found = None
    for topic in settings["topics"]:
        reader = spark.readStream.format(FORMAT).option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", settings["brokers"])
        reader = reader.option("mark.socket", settings["socket"]).option("mark.topics", topic)
        one = reader.options(**settings.get("options", {})).load()
        found = one if found is None else found.unionAll(one)
    assert found is not None
    return found


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    spark = session(settings)
    records, home = records_of(spark, settings), Path(settings["home"])
    rows = records.select("topic", "partition", "offset")
    if settings["stalls"]:
        rows = rows.mapInArrow(_stalling(str(home / "rows")), rows.schema)
    decoded = records.selectExpr(f"from_json(string(value), '{DDL}') AS row").select("row.*")
    decoded.createOrReplaceTempView("records")
    groups = spark.sql(
        "SELECT key, window.start AS start, count(*) AS events, sum(amount) AS total "
        "FROM records GROUP BY key, window(at, '10 seconds')"
    )
    queries = {"rows": rows, "groups": groups}
    started = [_start(home / name, queries[name]) for name in settings["queries"]]
    while not (home / "stop").exists():
        for query in started:
            query.awaitTermination(POLL_SECONDS)  # raises what ended it
    for query in started:
        query.stop()
    spark.stop()


def _start(directory: Path, frame: DataFrame) -> Any:
    directory.mkdir(parents=True, exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        _wait_while(directory / f"hold-{number}", directory / f"inside-{number}")
        content = json.dumps(sorted(list(map(str, row)) for row in batch.collect()))
        attempts = (directory / f"{number}-{attempt}.json" for attempt in count())
        file = next(file for file in attempts if not file.exists())
        part = file.with_suffix(".part")
        part.write_text(content)
        part.replace(file)

    writer = frame.writeStream.outputMode("update").queryName(directory.name)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return writer.foreachBatch(write).start()


def _stalling(directory: str) -> Any:
    def stall(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            hold, inside = Path(directory, "hold-task"), Path(directory, "inside-task")
            while hold.exists():
                inside.touch()
                time.sleep(0.02)
            yield batch

    return stall


def _wait_while(hold: Path, inside: Path) -> None:
    while hold.exists():
        inside.touch()
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
