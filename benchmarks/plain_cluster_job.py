"""The plain job on a cluster: Spark's own Kafka source, a query, and no sink.

    python -m benchmarks.plain_cluster_job SETTINGS.json

It writes the number of rows that its ended batches have read into a file, as a node's status does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.plain_kafka_job import rows_of
from benchmarks.workload import WATERMARK, WORKLOADS

LOOK_SECONDS = 0.02


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.config(map=settings["spark"]).getOrCreate()
    (workload,) = (one for one in WORKLOADS if one.name == settings["workload"])
    rows = rows_of(spark, settings).withWatermark(*WATERMARK)
    rows.createOrReplaceTempView(workload.name)
    writer = spark.sql(workload.sql).writeStream.format("noop")
    query = writer.option("checkpointLocation", settings["checkpoint"]).start()
    ended = dict[int, int]()
    while query.isActive:
        ended |= {one["batchId"]: one["numInputRows"] for one in query.recentProgress}
        _replace(Path(settings["progress"]), str(sum(ended.values())))
        time.sleep(LOOK_SECONDS)
    query.awaitTermination()


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main()
