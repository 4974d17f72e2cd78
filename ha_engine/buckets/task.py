"""Write one bucket of a batch into a sink, as a task of Spark.

A bucket of a table is one transaction, which also updates the bucket's ledger row. The ledger row
decides whether a task writes. A task that runs again finds that the bucket has the batch. A task of
an earlier active finds a higher epoch (RULES.md#r24). The module ``plugin`` writes to any other
kind of sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

import pyarrow as pa

from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.buckets.plugin import PluginBucket
from ha_engine.errors import EngineError, Fenced, SinkRefused, SinkUnavailable
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish.sinks.copy_text import CopyText, copy_text

OUTCOME = pa.schema(
    [
        ("bucket", pa.int32()),
        ("failure", pa.string()),
        ("reason", pa.string()),
        ("epoch", pa.int64()),
    ]
)
"""The columns of a task's outcome. ``failure`` is the name of an error, ``reason`` its message, and
``epoch`` that of Fenced."""
OUTCOME_DDL = "bucket int, failure string, reason string, epoch bigint"
_ERRORS = {error.__name__: error for error in (SinkUnavailable, SinkRefused)}


def write_partition(
    place: BucketPlace, number: int, sizes: Mapping[int, int], parts: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write this task's partition, which is the bucket of the same number, and yield its outcome.

    ``sizes`` has the rows of each bucket that has rows. An outcome is a row and not an exception,
    since Spark would repeat a task that raises.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    bucket = context.partitionId()
    outcome: dict[str, object] = {"bucket": bucket}
    try:
        write_bucket(place, number, bucket, sizes.get(bucket, 0), parts)
    except (SinkUnavailable, SinkRefused, Fenced) as error:
        outcome |= {"failure": type(error).__name__, "reason": str(error)}
        outcome["epoch"] = error.epoch if isinstance(error, Fenced) else None
    yield pa.RecordBatch.from_pylist([outcome], schema=OUTCOME)


def write_bucket(
    place: BucketPlace, number: int, bucket: int, size: int, parts: Iterator[pa.RecordBatch]
) -> bool:
    """Write the rows of batch ``number`` in this bucket, and return whether it lacked them.

    ``size`` is the number of the rows. Spark may end the input of a task that it cancels, which
    looks like a bucket with fewer rows. So a bucket of another size is not written.

    An insert keeps one part in memory. Any other write keeps the whole bucket: an upsert writes one
    row of each key, and a plug-in gets the rows in one order. Raises SinkUnavailable, SinkRefused
    or Fenced.
    """
    match place.target:
        case Table():
            return _write_rows(place, place.target, number, bucket, size, parts)
        case Plugin():
            rows = _collected(parts)
            _require_size(0 if rows is None else rows.num_rows, size)
            with closing(PluginBucket(place, place.target, bucket)) as opened:
                return opened.deliver(number, rows)


def require_seen(place: BucketPlace, number: int, buckets: Iterable[int]) -> None:
    """Raise SinkRefused if this host does not see what tasks have written for ``buckets``."""
    if isinstance(place.target, Plugin):
        for bucket in buckets:
            with closing(PluginBucket(place, place.target, bucket)) as opened:
                opened.require_seen(number)


def _write_rows(
    place: BucketPlace,
    table: Table,
    number: int,
    bucket: int,
    size: int,
    parts: Iterator[pa.RecordBatch],
) -> bool:
    engine = open_engine(
        table.url,
        connect_timeout=table.connect_timeout,
        statement_timeout=place.timeout,
        application_name="ha-engine bucket",
    )
    key = LedgerKey(place.group, place.query, place.sink).of_bucket(bucket, place.buckets)
    target = Target(table.name, table.mode, place.key)
    store = PostgresSinkStore(engine, key, target, group_id=place.group_id)
    until = time.monotonic() + place.timeout

    def texts() -> Iterator[CopyText]:
        """Each part gets the whole time, since a bucket has any number of parts."""
        nonlocal until
        rows = 0
        for part in _tables(table, parts):
            rows += part.num_rows
            until = time.monotonic() + place.timeout
            yield copy_text(part, place.key)
        until = time.monotonic() + place.timeout
        _require_size(rows, size)

    try:
        return store.publish(number, place.epoch, texts(), lambda: until - time.monotonic())
    finally:
        store.close()


def _require_size(rows: int, size: int) -> None:
    if rows != size:
        raise SinkUnavailable(f"the task got {rows} of {size} rows, since Spark cancelled it")


def _collected(parts: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """The rows of all parts, or None if there are none."""
    collected = [part for part in parts if part.num_rows]
    return pa.Table.from_batches(collected) if collected else None


def _tables(table: Table, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    if table.mode == "upsert":
        rows = _collected(parts)
        if rows is not None:
            yield rows
    else:
        for part in parts:
            if part.num_rows:
                yield pa.Table.from_batches([part])


def error_of(place: BucketPlace, outcome: dict[str, object]) -> EngineError | None:
    """The error in a task's outcome, or None if the bucket has its rows."""
    match outcome:
        case {"failure": None}:
            return None
        case {"failure": "Fenced", "epoch": int(epoch)}:
            return Fenced(epoch, place.sink)
        case {"failure": str(name), "bucket": bucket, "reason": reason}:
            return _ERRORS[name](f"bucket {bucket} of sink {place.sink}: {reason}")
    raise ValueError(f"{outcome} is no outcome of a task")
