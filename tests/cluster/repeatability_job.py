"""The driver of one run of ``repeatability``: it runs queries and keeps a digest of each column."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr, session_window, window, window_time
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.cluster.standalone import driver_settings, ordered_shuffle

ROWS, PARTITIONS, STATE_PARTITIONS = 1_000, 4, 2
ORDER = "*"
"""Stands for the order of a batch's rows."""
_EVENTS = (
    "value AS id",
    "timestamp_millis(1600000000000 + value - value % 20) AS at",
    "pmod(xxhash64(value), 7) AS k",
    "pmod(xxhash64(value, 1), 1000) AS i",
    "(pmod(xxhash64(value, 2), 1000003) - 500000) / 997D * pow(10D, pmod(value, 7) - 3) AS d",
    "float(pmod(xxhash64(value, 3), 100003) / 991D) AS f",
    "decimal(pmod(xxhash64(value, 4), 100003)) / 100 AS n",
    "concat('s', pmod(xxhash64(value, 5), 50)) AS s",
)
_FUNCTIONS = (
    "count(*)",
    "count_if(i > 500)",
    "sum(i)",
    "sum(n)",
    "avg(i)",
    "avg(n)",
    "min(d)",
    "max(d)",
    "min(s)",
    "max(s)",
    "max(struct(i, id))",
    "bit_xor(i)",
    "bool_and(i > 3)",
    "sum(d)",
    "sum(f)",
    "avg(d)",
    "round(sum(d), 3)",
    "sum(cast(d AS decimal(30, 9)))",
    "stddev(i)",
    "stddev(d)",
    "skewness(d)",
    "kurtosis(d)",
    "corr(d, f)",
    "covar_pop(i, f)",
    "regr_slope(d, f)",
    "first(id)",
    "last(id)",
    "any_value(id)",
    "min_by(id, i)",
    "max_by(id, i)",
    "max_by(id, struct(i, id))",
    "collect_list(i)",
    "collect_set(i)",
    "sort_array(collect_list(i))",
    "sort_array(collect_set(i))",
    "listagg(s, ',')",
    "listagg(s, ',') WITHIN GROUP (ORDER BY s)",
    "approx_count_distinct(id)",
    "approx_percentile(d, 0.5, 50)",
    "percentile(d, 0.5)",
    "median(i)",
    "mode(i)",
    "histogram_numeric(d, 5)",
    "hex(count_min_sketch(i, 0.1D, 0.9D, 1))",
    "hll_sketch_estimate(hll_sketch_agg(id))",
    "hex(hll_sketch_agg(id))",
    "hex(bitmap_construct_agg(i))",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run does: ``names`` are keys of SHAPES. With ``jar`` the shuffles are ordered."""

    master: str
    directory: str
    batches: int
    names: list[str]
    jar: str | None

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Run:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Shape:
    """A query over events. ``keys`` are columns that name a row of a batch.

    Each other column is compared on its own, with the rows sorted by ``keys``.
    """

    make: Callable[[DataFrame], DataFrame]
    keys: tuple[str, ...]
    mode: str = "update"


def _windows(events: DataFrame) -> DataFrame:
    groups = events.groupBy("k", _window_of("10 seconds"))
    return groups.agg(*map(_named, _FUNCTIONS))


def _sessions(events: DataFrame) -> DataFrame:
    few = events.where("i < 8")
    groups = few.groupBy("k", session_window("at", "300 milliseconds"))
    wanted = ("count(*)", "sum(d)", "sum(n)", "first(id)", "collect_list(i)")
    return groups.agg(*map(_named, wanted))


def _deduplicated(events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["i"]).select("i", "id", "d", "s")


def _joined(events: DataFrame) -> DataFrame:
    left = events.where("i < 100").selectExpr("id AS l", "i AS li", "at AS la", "d AS ld")
    right = events.where("i < 100").selectExpr("id AS r", "i AS ri", "at AS ra", "d AS rd")
    near = "li = ri AND ra BETWEEN la AND la + INTERVAL 3 SECONDS AND r > l"
    return left.join(right, expr(near), "leftOuter").selectExpr("*", "ld + rd AS total")


def _rows(events: DataFrame) -> DataFrame:
    return events.where("i % 3 = 0").selectExpr(
        "id", "d * 1.1 AS e", "explode(array(1, 2)) AS part"
    )


def _dealt(events: DataFrame) -> DataFrame:
    return events.where("i % 3 = 0").repartition(STATE_PARTITIONS).select("id", "d")


def _looked_up(events: DataFrame) -> DataFrame:
    places = events.sparkSession.range(1000).selectExpr("id AS i", "id * 3 AS place")
    return events.join(places.hint("merge"), "i").selectExpr("id", "place", "d")


def _chained(events: DataFrame) -> DataFrame:
    short = events.groupBy("k", _window_of("2 seconds"))
    sums = short.agg(expr("sum(d) AS d"), expr("sum(n) AS n"))
    again = sums.select("d", "n", window_time("window").alias("at"))
    return again.groupBy(_window_of("6 seconds")).agg(
        expr("sum(d)"), expr("sum(n)"), expr("max(d)")
    )


def _in_python(events: DataFrame) -> DataFrame:
    return events.groupBy("k").applyInPandasWithState(
        _with_state,
        "k long, total double, rows string",
        "total double",
        "update",
        GroupStateTimeout.NoTimeout,
    )


def _with_state(
    key: tuple[int], pieces: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    total, rows = (state.get[0] if state.exists else 0.0), hashlib.blake2b(digest_size=8)
    for piece in pieces:
        rows.update(piece["id"].to_numpy().tobytes())
        for value in piece["d"]:
            total += value
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "total": [total], "rows": [rows.hexdigest()]})


SHAPES = {
    "filter": Shape(_rows, ("id", "part"), "append"),
    "round robin": Shape(_dealt, ("id",), "append"),
    "lookup": Shape(_looked_up, ("id",), "append"),
    "windows": Shape(_windows, ("k", "window")),
    "sessions": Shape(_sessions, ("k", "session_window"), "append"),
    "first of duplicates": Shape(_deduplicated, ("i",), "append"),
    "outer join": Shape(_joined, ("l", "r"), "append"),
    "windows of windows": Shape(_chained, ("window",), "append"),
    "state in Python": Shape(_in_python, ("k",)),
}


def _window_of(length: str) -> Column:
    return window("at", length).alias("window")


def _named(text: str) -> Column:
    return expr(text).alias(text)


def main() -> None:
    run = Run.from_text(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable  # no setting names the Python of functions
    spark = SparkSession.builder.master(run.master).config(map=_settings(run.jar)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with ThreadPoolExecutor(len(run.names)) as threads:
        for written in [threads.submit(_write, spark, run, name) for name in run.names]:
            written.result()
    spark.stop()


def _settings(jar: str | None) -> dict[str, str]:
    return {
        **driver_settings([Path.cwd()]),
        **(ordered_shuffle(Path(jar)) if jar is not None else {}),
        "spark.sql.shuffle.partitions": str(STATE_PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
        ".checkpointing.FileSystemBasedCheckpointFileManager",
    }


def _write(spark: SparkSession, run: Run, name: str) -> None:
    """Run one query for so many batches, and write a line of digests for each."""
    shape = SHAPES[name]
    source = spark.readStream.format("rate-micro-batch")
    for option, value in (("rowsPerBatch", ROWS), ("numPartitions", PARTITIONS)):
        source = source.option(option, value)
    events = source.load().selectExpr(*_EVENTS).withWatermark("at", "5 seconds")
    done = threading.Event()
    with Path(run.directory, name).open("w") as lines:

        def keep(batch: DataFrame, number: int) -> None:
            rows = batch.toArrow()
            if number < run.batches:
                lines.write(json.dumps(_digests(rows, shape.keys)) + "\n")
                lines.flush()
            if number + 1 >= run.batches:
                done.set()

        writer = shape.make(events).writeStream.outputMode(shape.mode).foreachBatch(keep)
        place = Path(run.directory, f"{name} checkpoint").as_uri()
        query = writer.option("checkpointLocation", place).start()
        while not done.wait(1):
            if query.exception() is not None:
                raise RuntimeError(f"{name}: {query.exception()}")
        query.stop()


def _digests(batch: pa.Table, keys: tuple[str, ...]) -> dict[str, str]:
    rows = batch.to_pylist()
    digests = {ORDER: _digest([[row[key] for key in keys] for row in rows])}
    rows.sort(key=lambda row: [repr(row[key]) for key in keys])
    return digests | {name: _digest([row[name] for row in rows]) for name in batch.column_names}


def _digest(values: list[Any]) -> str:
    # repr tells each double from every other.
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


if __name__ == "__main__":
    main()
