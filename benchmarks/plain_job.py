"""The plain job: the same queries in one Spark session, each batch copied into PostgreSQL.

    python -m benchmarks.plain_job SETTINGS.json

Written in good faith: the engine's own Spark settings, the same batch size, ``toArrow`` and COPY of
Arrow's CSV in one transaction, one connection for each query. It keeps no ledger: after a crash it
may copy a batch twice. It reports each commit and Spark's progress as lines of JSON.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from benchmarks.plain_source import FORMAT, SpoolSource
from benchmarks.workload import DDL, WATERMARK, WORKLOADS, Workload
from ha_engine.query.session import SparkSettings, register_source, spark_conf


class Report:
    """Lines of JSON for the side that measures."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def write(self, kind: str, **values: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")


class Progress(StreamingQueryListener):  # type: ignore[misc]
    """Spark's own word on each batch."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        if progress.numInputRows:
            self._report.write(
                "progress",
                query=progress.name,
                batch=progress.batchId,
                rows=progress.numInputRows,
                file=json.loads(progress.sources[0].endOffset)["file"],
                duration_ms=dict(progress.durationMs),
            )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if event.exception:
            self._report.write("died", reason=event.exception[:2000])


def copied(
    workload: Workload, settings: dict[str, Any], report: Report
) -> Callable[[DataFrame, int], None]:
    """What foreachBatch calls."""
    connection = psycopg2.connect(settings["url"])

    def copy(frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        if table.num_rows:
            csv = io.BytesIO()
            options = pyarrow.csv.WriteOptions(include_header=False)
            pyarrow.csv.write_csv(table, csv, options)
            csv.seek(0)
            with connection, connection.cursor() as cursor:
                columns = ", ".join(f'"{name}"' for name in table.column_names)
                into = f"{settings['tables']}_{workload.name} ({columns})"
                cursor.copy_expert(f"COPY {into} FROM STDIN (FORMAT csv)", csv, 1 << 20)
        report.write("commit", query=workload.name, batch=batch, at=time.time())

    return copy


def start(
    spark: SparkSession, workload: Workload, settings: dict[str, Any], report: Report
) -> None:
    reader = spark.readStream.format(FORMAT).schema(DDL)
    reader = reader.option("directory", str(Path(settings["spool"], workload.name)))
    reader = reader.option("files_per_batch", settings["files_per_batch"])
    reader = reader.option("tasks", settings["tasks"])
    reader.load().withWatermark(*WATERMARK).createOrReplaceTempView(workload.name)
    stream = spark.sql(workload.sql).writeStream.queryName(workload.name).outputMode("append")
    stream = stream.option("checkpointLocation", str(Path(settings["checkpoint"], workload.name)))
    stream.foreachBatch(copied(workload, settings, report)).start()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else a data source runs in the system's python
    conf = spark_conf(SparkSettings()) | settings["spark"]
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    register_source(spark, SpoolSource)
    report = Report(Path(settings["report"]))
    spark.streams.addListener(Progress(report))
    for workload in WORKLOADS:
        if workload.name in settings["workloads"]:
            start(spark, workload, settings, report)
    report.write("started")
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
