"""An archive of Spark's loaded classes (AppCDS), for the tests of every change.

A Spark that lives for a minute spends half of its CPU on loading classes, and the tests start
dozens. ``python -m tests.class_archive`` starts one and lets Java record the loaded classes;
``environment`` makes each later one map the archive. A node of the product writes its own archive
(ha_engine/query/class_archive.py), which would be ready only after most tests have ended.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from ha_engine.query.session import SparkSettings, start_spark
from ha_engine.query.spark_home import link_spark_home
from tests.waiting import wait_until

DIRECTORY = Path(sys.prefix) / "spark-classes"
HOME = DIRECTORY / "home"
"""The home of every Spark that maps the archive, which is valid for one class path."""
ARCHIVE = DIRECTORY / "spark.jsa"
_COMPILE_ONCE = "-XX:TieredStopAtLevel=1"
"""Without Java's second compiler, which takes half the CPU of a Spark that lives for a minute."""
_SAY_ERRORS_ONLY = "-Xlog:disable -Xlog:all=error:stderr"
"""Without the line that Java prints for each class that it leaves out of an archive."""
_BATCHES = 3
_AGGREGATE = """
    SELECT window(timestamp, '1 hour').start AS hour, value % 7 AS key, count(*) AS n,
        sum(value / 3) AS total
    FROM events GROUP BY window(timestamp, '1 hour'), value % 7
"""


def environment() -> dict[str, str]:
    """Return variables for a fast start of Spark, from the archive if there is one."""
    if not ARCHIVE.exists():
        return {"SPARK_SUBMIT_OPTS": _COMPILE_ONCE}
    return _variables(f"-XX:SharedArchiveFile={ARCHIVE}")


def write() -> None:
    """Replace the archive; this takes half a minute."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    link_spark_home(HOME)
    draft = ARCHIVE.with_suffix(".draft")
    os.environ.update(_variables(f"-XX:ArchiveClassesAtExit={draft}"))
    spark = start_spark(SparkSettings(master="local[2]", heap=768 << 20))
    _run_batches(spark)
    java = next(one for one in psutil.Process().children() if one.name() == "java")
    spark.stop()
    java.terminate()
    wait_until(lambda: java.status() == psutil.STATUS_ZOMBIE, within=60)
    draft.rename(ARCHIVE)


def _variables(archive_option: str) -> dict[str, str]:
    options = f"{_COMPILE_ONCE} {archive_option} {_SAY_ERRORS_ONLY}"
    return {"SPARK_HOME": str(HOME), "SPARK_SUBMIT_OPTS": options}


def _run_batches(spark: Any) -> None:
    """Use the features of most queries in tests: windows, state, checkpoints, Arrow and Python."""
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
        stream.createOrReplaceTempView("events")
        writer = spark.sql(_AGGREGATE).writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", checkpoint).foreachBatch(_collect)
        query = writer.start()
        wait_until(lambda: (query.lastProgress or {"batchId": 0})["batchId"] >= _BATCHES, within=60)
        query.stop()


def _collect(batch: Any, _number: int) -> None:
    batch.mapInArrow(lambda parts: parts, batch.schema).toArrow()


if __name__ == "__main__":
    write()
