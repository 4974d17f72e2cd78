"""Rows a second of the postgres sink by batch size and mode, and the latency of a one-row batch.

    python -m benchmarks.sink

Runs on the embedded PostgreSQL, fsync on, one connection, a table of seven columns, with a primary
key of four of them for the upsert. A batch is written before its clock starts: what is measured is
reading the file, turning it into text, COPY, the upsert where asked, the ledger, and the commit.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from ha_engine.outbox import OutboxBatch
from ha_engine.outbox.batch_file import write_batch_file
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Deadline
from ha_engine.publish.sinks.postgres import PostgresSink

KEY = ("origin", "carrier", "window_start", "n")
TARGETS = {
    "insert": Target("rows", auto_create=True),
    "upsert": Target("rows", "upsert", KEY, auto_create=True),
}
"""A table of each mode, whose name a measurement replaces."""
BATCHES = {1: 300, 1_000: 40, 20_000: 12, 200_000: 4}


class _Always:
    def remaining_seconds(self) -> float:
        return 60.0

    def highest_planned(self, query: str) -> float:
        return 0.0


def rows(first: int, count: int) -> pa.Table:
    """Rows of delays, with the numbers from ``first``."""
    numbers = range(first, first + count)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "origin": [("EWR", "JFK", "LGA")[n % 3] for n in numbers],
            "carrier": [f"C{n % 16}" for n in numbers],
            "window_start": pa.array(
                [start + timedelta(hours=n % 8760) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "n": pa.array(numbers, pa.int64()),
            "flights": pa.array([n % 40 for n in numbers], pa.int64()),
            "mean_delay": [n * 0.37 for n in numbers],
            "late": [n % 5 == 0 for n in numbers],
        }
    )


def _written(directory: Path, number: int, table: pa.Table) -> OutboxBatch:
    written = write_batch_file(directory / f"{number}.arrow", table, query="b", number=number)
    return OutboxBatch(written.path, written.rows, written.bytes)


def _measure(url: str, target: Target, size: int, repeats: int, directory: Path) -> list[float]:
    """Seconds of each publish; in upsert mode every second batch meets keys that are there."""
    engine = open_engine(url, statement_timeout=60)
    store = PostgresSinkStore(engine, LedgerKey("bench", target.name, "table"), target)
    sink = PostgresSink("table", store, target.key if target.mode == "upsert" else ())
    sink.claim(1, 0, "group-1", Deadline(_Always(), 60))
    seconds = []
    for number in range(1, repeats + 1):
        group = number // 2 if target.mode == "upsert" else number
        batch = _written(directory, number, rows(group * size, size))
        started = time.perf_counter()
        sink.publish(number, batch, 1, Deadline(_Always(), 60))
        seconds.append(time.perf_counter() - started)
    sink.close()
    return seconds[2:] if repeats > 4 else seconds[1:]


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-bench-") as directory,
        EmbeddedPostgres(Path(directory) / "postgres") as server,
    ):
        print(f"{'mode':8} {'rows':>8} {'p50 ms':>9} {'p95 ms':>9} {'rows/s':>10}")
        for mode, like in TARGETS.items():
            for size, repeats in BATCHES.items():
                target = replace(like, name=f"{mode}_{size}")
                files = Path(directory) / target.name
                files.mkdir()
                took = _measure(server.url, target, size, repeats, files)
                p50, p95 = statistics.median(took), sorted(took)[int(len(took) * 0.95)]
                print(f"{mode:8} {size:8,} {p50 * 1e3:9.2f} {p95 * 1e3:9.2f} {size / p50:10,.0f}")
        took = _empty(server.url, Path(directory))
        print(f"{'empty':8} {0:8} {statistics.median(took) * 1e3:9.2f}")


def _empty(url: str, directory: Path) -> list[float]:
    (directory / "empty").mkdir()
    return _measure(url, Target("empty", auto_create=True), 0, 300, directory / "empty")


if __name__ == "__main__":
    main()
