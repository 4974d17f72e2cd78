"""Rows a second that a pattern takes, against jobs that a user would write in Spark for it.

    python -m benchmarks.patterns [--batches 8] [--per-key 1 10 1000] [--within 60] [--store hdfs]
    python -m benchmarks.patterns --open 1000000 --within 600 [--store rocksdb]

One core finds *A, then B with at least its amount, within a minute* (``--within``) in batches of
200,000 events, of which a seventh is A and a seventh is B. ``pattern`` is the engine's. ``python``
is a function with ``applyInPandasWithState``, and ``join`` a join of the stream with itself, which
yields every pair. ``count`` is a windowed aggregation, for comparison. The sides take turns, each
with a checkpoint of its own. The clock of a batch runs while Spark computes it, without its
planning. The first two batches do not count. With ``--open``, batches before them open a match of
each of so many keys, and the events of the other batches have one of these keys.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from ha_engine.jvm import engine_jar
from ha_engine.query.patterns.pattern import One, Pattern, Step
from ha_engine.query.patterns.pattern import Sequence as Parts
from ha_engine.query.patterns.plan import pattern_frame
from ha_engine.query.session import SparkSettings, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200_000
WARMING = 2
SCHEMA = "key long, at timestamp, kind int, amount double, _event_id string"
FOUND = "key long, first timestamp, second timestamp"
STORES = ("hdfs", "rocksdb")

A_THEN_B = Pattern(
    ("events",),
    MappingProxyType({"events": ("key",)}),
    Parts(
        (
            One(Step("a", "events", "kind = 1")),
            One(Step("b", "events", "kind = 2 AND amount >= a.amount")),
        )
    ),
    60,
    MappingProxyType({"key": "key", "first": "a.at", "second": "b.at"}),
)

Job = Callable[["SparkSession", "DataFrame", int], "DataFrame"]
"""The output of a job over events. The number is the longest time of a match in seconds."""


def pattern(spark: SparkSession, events: DataFrame, within: int) -> DataFrame:
    sought = replace(A_THEN_B, within=within)
    return pattern_frame(spark, sought, {"events": events}, {"events": "at"}).frame


def python(spark: SparkSession, events: DataFrame, within: int) -> DataFrame:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def pairs(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        return _pairs(key, frames, state, within)

    grouped = events.where("kind IN (1, 2)").groupBy("key")
    return grouped.applyInPandasWithState(
        pairs, FOUND, "open binary", "append", GroupStateTimeout.EventTimeTimeout
    )


def _pairs(
    key: Any, frames: Iterator[pd.DataFrame], state: Any, within: int
) -> Iterator[pd.DataFrame]:
    """Find pairs in the events of a key. Its state has the events since the watermark and the open
    matches, as that of the pattern."""
    waiting, open_matches = pickle.loads(state.get[0]) if state.exists else ([], [])
    for frame in frames:
        waiting += zip(frame["at"], frame["_event_id"], frame["kind"], frame["amount"], strict=True)
    watermark = pd.Timestamp(state.getCurrentWatermarkMs(), unit="ms")
    waiting.sort()
    found = []
    while waiting and waiting[0][0] <= watermark:
        at, _, kind, amount = waiting.pop(0)
        since = at - pd.Timedelta(seconds=within)
        open_matches = [one for one in open_matches if one[0] >= since]
        if kind == 1:
            open_matches.append((at, amount))
        else:
            found += [(key[0], first, at) for first, least in open_matches if amount >= least]
            open_matches = [one for one in open_matches if amount < one[1]]
    if waiting or open_matches:
        state.update((pickle.dumps((waiting, open_matches)),))
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1_000 * within)
    elif state.exists:
        state.remove()
    if found:
        yield pd.DataFrame(found, columns=["key", "first", "second"])


def join(spark: SparkSession, events: DataFrame, within: int) -> DataFrame:
    from pyspark.sql.functions import expr

    one = events.where("kind = 1").selectExpr("key", "at AS first", "amount AS least")
    two = events.where("kind = 2").selectExpr("key AS other", "at AS second", "amount")
    meets = (
        f"key = other AND second >= first AND second <= first + INTERVAL {within} SECONDS "
        "AND amount >= least"
    )
    return one.join(two, expr(meets))


def count(spark: SparkSession, events: DataFrame, within: int) -> DataFrame:
    from pyspark.sql.functions import expr

    return events.groupBy("key", expr(f"window(at, '{within} seconds')")).agg(expr("count(*) AS n"))


JOBS: dict[str, Job] = {"pattern": pattern, "python": python, "join": join, "count": count}


class Bench:
    """Runs the jobs over events in files of Parquet, one for each batch."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        batches: int,
        within: int,
        keys_open: int = 0,
    ) -> None:
        self._spark, self._directory = spark, directory
        self._batches, self._within = batches, within
        self._opening = keys_open // ROWS

    def measure(self, name: str, per_key: int) -> tuple[float, float, int]:
        """Return the rows a second, and the bytes and rows of the state after the last batch."""
        reader = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        events = reader.parquet(str(self._events(per_key))).withWatermark("at", "10 seconds")
        checkpoint = tempfile.mkdtemp(dir=self._directory)
        writer = JOBS[name](self._spark, events, self._within).writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one.numInputRows]
        seconds = [one.durationMs["addBatch"] / 1_000 for one in batches[self._opening + WARMING :]]
        operators = batches[-1].stateOperators
        size = sum(one.memoryUsedBytes for one in operators)
        return ROWS / statistics.median(seconds), size, sum(one.numRowsTotal for one in operators)

    def _events(self, per_key: int) -> Path:
        """Write the events, each batch ten seconds after the one before. A batch has ``per_key``
        events of a key."""
        place = self._directory / f"events-{per_key}"
        for number in range(0 if place.exists() else self._opening + self._batches):
            keys = self._opening * ROWS or ROWS // per_key
            first = number * ROWS if per_key == 1 else 0
            key, kind = f"pmod(hash(id), {keys}) + {first % (5 * ROWS)}", "pmod(hash(id, 7), 7)"
            if number < self._opening:
                key, kind = f"id + {number * ROWS}", "1"
            elif self._opening:
                key = f"pmod(hash(id, {number}), {keys})"
            self._spark.range(ROWS).selectExpr(
                f"{key} AS key",
                f"timestamp_micros(1700000000000000 + {number} * 10000000 + id * 50) AS at",
                f"CAST({kind} AS int) AS kind",
                "CAST(pmod(hash(id, 9), 1000) AS double) AS amount",
                f"concat({number}, '-', id) AS _event_id",
            ).coalesce(1).write.mode("append").parquet(str(place))
        return place


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-key", type=int, nargs="+", default=[1, 10, 1000])
    parser.add_argument("--jobs", nargs="+", default=[*JOBS], choices=JOBS)
    parser.add_argument("--within", type=int, default=60)
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    parser.add_argument("--open", type=int, default=0, metavar="KEYS")
    given = parser.parse_args(arguments)
    shown = Table("events a key", "job", "rows/s", "of pattern", "state MiB", "state rows")
    with tempfile.TemporaryDirectory(prefix="ha-engine-patterns-") as directory:
        settings = SparkSettings(
            master="local[1]",
            heap=3 << 30,
            scratch=Path(directory, "scratch"),
            state_store=given.store,
            jars=(engine_jar(),),
            spark={"spark.sql.streaming.numRecentProgressUpdates": "1000"},
        )
        spark, place = start_spark(settings), Path(directory)
        bench = Bench(spark, place, given.batches, given.within, given.open)
        for per_key in given.per_key:
            measured = {name: list[tuple[float, float, int]]() for name in given.jobs}
            for _ in range(given.rounds):
                for name, found in measured.items():
                    found.append(bench.measure(name, per_key))
            speed = {n: statistics.median(one[0] for one in each) for n, each in measured.items()}
            for name, each in measured.items():
                share = f"{speed[name] / speed['pattern']:.2f}" if "pattern" in speed else ""
                size, rows = each[-1][1] / (1 << 20), each[-1][2]
                shown.add_row(
                    f"{per_key:,}", name, f"{speed[name]:,.0f}", share, f"{size:,.0f}", f"{rows:,}"
                )
    Console().print(shown)


if __name__ == "__main__":
    main()
