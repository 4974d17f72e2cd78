"""A sink with buckets for tests: the node's side, the place of its tasks, and its table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ha_engine.buckets.place import BucketPlace, Table
from ha_engine.postgres.bucket_store import PostgresBucketStore
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_table import Target
from ha_engine.postgres.staged_store import PREFIX
from ha_engine.publish.sinks.buckets import BucketedSink
from tests.publish.batches import GROUP, QUERY, SINK, rows_of

ROWS = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
MORE = pa.table({"k": ["c"], "n": pa.array([3], pa.int64())})
UPSERT = Target("delays", "upsert", ("k",), auto_create=True)
INSERT = Target("delays", auto_create=True)
BUCKETS = 3


def sink_of(
    url: str,
    target: Target = INSERT,
    buckets: int = BUCKETS,
    last_mark: int = 100,
    *,
    atomic: bool = False,
) -> BucketedSink:
    key = LedgerKey("default", QUERY, SINK)
    store = PostgresBucketStore(open_engine(url), key, target, buckets, atomic=atomic)
    return BucketedSink(SINK, store, target.key, lambda: last_mark)


def place_of(
    url: str, target: Target = INSERT, epoch: int = 1, *, atomic: bool = False
) -> BucketPlace:
    return BucketPlace(
        group="default",
        group_id=GROUP,
        query=QUERY,
        sink=SINK,
        epoch=epoch,
        key=target.key,
        buckets=BUCKETS,
        timeout=10,
        target=Table(url, 5, target.name, target.mode, atomic=atomic),
    )


def parts(*tables: pa.Table) -> Iterator[pa.RecordBatch]:
    return (batch for table in tables for batch in table.to_batches())


def ledger(url: str) -> list[tuple[object, ...]]:
    return rows_of(url, "SELECT sink, epoch, batch FROM ha_engine_ledger ORDER BY sink")


def visible(url: str) -> list[tuple[object, ...]]:
    return rows_of(url, "SELECT k, n FROM delays ORDER BY k, n")


def stages(url: str) -> list[str]:
    """Return the names of the staging tables."""
    found = rows_of(url, f"SELECT relname FROM pg_class WHERE relname LIKE '{PREFIX}%'")
    return [str(name) for (name,) in found]
