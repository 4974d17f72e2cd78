"""Rows a second that a sink of type ``aggregation`` adds to its tables, beside a plain insert.

    python -m benchmarks.aggregations

Runs on the embedded PostgreSQL, fsync on. The clock starts with the rows in memory, and ends after
the last commit. The aggregation has a count, a sum and an average for each of 100 keys, and for
one length or for six. A batch has the events of 10 seconds. The sides take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from ha_engine.aggregation import Aggregation, Value
from ha_engine.postgres.aggregation_tables import AggregationStore
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish.sinks.copy_text import copy_text

KEYS, BATCH_SECONDS = 100, 10
SIZES = {1_000: 14, 10_000: 14, 100_000: 8}
"""The rows of a batch, and the number of batches of each side."""
TIMEOUT = 120.0
_VALUES = (Value("total", "sum", "x"), Value("n", "count", None), Value("mean", "avg", "x"))
_SIX = ("second", "minute", "hour", "day", "month", "year")
_START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1e6)


def _batch(number: int, size: int) -> pa.Table:
    random = np.random.default_rng(number)
    begin = _START + number * BATCH_SECONDS * 10**6
    at = begin + np.arange(size) * (BATCH_SECONDS * 10**6 // size)
    return pa.table(
        {
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "key": pa.array(random.integers(0, KEYS, size), pa.int32()),
            "x": pa.array(random.integers(0, 10**6, size), pa.int64()),
        }
    )


def _store(url: str, side: str, size: int) -> AggregationStore | PostgresSinkStore:
    engine, name = open_engine(url, statement_timeout=TIMEOUT), f"{side}_{size}"
    key = LedgerKey("bench", name, "table")
    if side == "insert":
        return PostgresSinkStore(engine, key, Target(name, auto_create=True))
    per = _SIX if side == "six" else _SIX[:1]
    return AggregationStore(engine, key, Aggregation(name, name, "at", ("key",), per, _VALUES))


def _measure(url: str, size: int, batches: int) -> dict[str, list[float]]:
    stores = {side: _store(url, side, size) for side in ("insert", "one", "six")}
    for store in stores.values():
        store.prepare(_batch(0, size).schema, lambda: TIMEOUT)
        store.claim(1, 0, "group-1", lambda: TIMEOUT)
    took: dict[str, list[float]] = {side: [] for side in stores}
    for number in range(1, batches + 1):
        rows = _batch(number, size)
        for side, store in stores.items():
            began = time.perf_counter()
            store.publish(number, 1, (copy_text(rows),), lambda: TIMEOUT)
            took[side].append(time.perf_counter() - began)
    return {side: seconds[2:] for side, seconds in took.items()}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-bench-") as directory,
        EmbeddedPostgres(Path(directory) / "postgres") as server,
    ):
        print(f"{'rows':>10} {'side':8} {'p50 ms':>10} {'rows/s':>10}")
        for size, batches in SIZES.items():
            for side, took in _measure(server.url, size, batches).items():
                p50 = statistics.median(took)
                print(f"{size:10,} {side:8} {p50 * 1e3:10.1f} {size / p50:10,.0f}")


if __name__ == "__main__":
    main()
