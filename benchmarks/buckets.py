"""Rows a second that tasks write to the buckets of a table, each bucket by itself or all at once.

    python -m benchmarks.buckets

Runs on the embedded PostgreSQL, fsync on. Four threads stand for the tasks of Spark. The rows are
those of the benchmark of the sink. Of an upsert, every second batch meets keys that are there. The
clock starts with the rows in memory, and ends after the last commit. The two sides take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from benchmarks.sink import TARGETS, rows
from ha_engine.buckets import atomic
from ha_engine.buckets.place import BucketPlace, Table
from ha_engine.buckets.task import stage_bucket, write_bucket
from ha_engine.postgres.bucket_store import PostgresBucketStore
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_table import Target

BUCKETS = 4
SIZES = {1_000: 14, 100_000: 8, 1_000_000: 4}
"""The rows of a batch, and the number of batches of each side."""
PART_ROWS = 10_000
TIMEOUT = 120.0


class _Side:
    """A table with buckets, and the tasks that write it."""

    def __init__(self, url: str, target: Target, *, is_atomic: bool) -> None:
        key = LedgerKey("bench", target.name, "table")
        engine = open_engine(url, statement_timeout=TIMEOUT)
        store = PostgresBucketStore(engine, key, target, BUCKETS, atomic=is_atomic)
        schema = rows(0, 1).schema
        store.prepare(schema, lambda: TIMEOUT)
        store.claim(1, 0, "group-1", lambda: TIMEOUT)
        store.close()
        table = Table(url, 10, target.name, target.mode, is_atomic)
        self._place = BucketPlace(
            "bench", "group-1", target.name, "table", 1, target.key, BUCKETS, TIMEOUT, table
        )
        self._columns = schema.names

    def seconds(self, number: int, buckets: list[pa.Table]) -> float:
        """Write a batch, and return the time that it took."""
        write = self._write_atomic if atomic.is_atomic(self._place) else self._write
        began = time.perf_counter()
        with ThreadPoolExecutor(BUCKETS) as threads:
            write(number, buckets, threads)
        return time.perf_counter() - began

    def _write(self, number: int, buckets: list[pa.Table], threads: ThreadPoolExecutor) -> None:
        def task(bucket: int) -> bool:
            given = buckets[bucket]
            return write_bucket(self._place, number, bucket, given.num_rows, _parts(given))

        assert all(threads.map(task, range(BUCKETS)))

    def _write_atomic(
        self, number: int, buckets: list[pa.Table], threads: ThreadPoolExecutor
    ) -> None:
        stage = atomic.begin(self._place, number, self._columns)
        assert stage is not None

        def task(bucket: int) -> int:
            given = buckets[bucket]
            return stage_bucket(self._place, stage, bucket, given.num_rows, _parts(given))

        staged = dict(enumerate(threads.map(task, range(BUCKETS))))
        atomic.commit(self._place, number, self._columns, stage, staged)


def _parts(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.to_batches(max_chunksize=PART_ROWS))


def _measure(url: str, like: Target, size: int, batches: int) -> dict[str, list[float]]:
    sides = {}
    for name in ("buckets", "atomic"):
        target = replace(like, name=f"{name}_{like.mode}_{size}")
        sides[name] = _Side(url, target, is_atomic=name == "atomic")
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1, batches + 1):
        group = number // 2 if like.mode == "upsert" else number
        step = size // BUCKETS
        buckets = [rows(group * size + bucket * step, step) for bucket in range(BUCKETS)]
        for name, side in sides.items():
            took[name].append(side.seconds(number, buckets))
    return {name: seconds[2:] for name, seconds in took.items()}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-bench-") as directory,
        EmbeddedPostgres(Path(directory) / "postgres") as server,
    ):
        print(f"{'mode':8} {'rows':>10} {'side':8} {'p50 ms':>10} {'rows/s':>10}")
        for mode, like in TARGETS.items():
            for size, batches in SIZES.items():
                for name, took in _measure(server.url, like, size, batches).items():
                    p50 = statistics.median(took)
                    print(f"{mode:8} {size:10,} {name:8} {p50 * 1e3:10.1f} {size / p50:10,.0f}")


if __name__ == "__main__":
    main()
