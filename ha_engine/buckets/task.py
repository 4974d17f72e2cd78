"""Write one bucket of a batch into a sink, as a task of Spark.

A bucket of a table is one transaction, which also updates the bucket's ledger row. The ledger row
decides whether a task writes. A task that runs again finds that the bucket has the batch. A task of
an earlier active finds a higher epoch (RULES.md#r24). If batches are atomic, a task writes into a
staging table instead, from which the driver moves the rows. The module ``plugin`` writes to any
other kind of sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from ha_engine.buckets.atomic import staged_store
from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.buckets.plugin import PluginBucket
from ha_engine.buckets.table import table_of
from ha_engine.errors import EngineError, Fenced, SinkRefused, SinkUnavailable
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.staged_store import TASK
from ha_engine.publish.sinks.copy_text import CopyText, copy_text

OUTCOME = pa.schema(
    [
        ("bucket", pa.int32()),
        ("failure", pa.string()),
        ("reason", pa.string()),
        ("epoch", pa.int64()),
        ("task", pa.int64()),
        ("staged", pa.int64()),
    ]
)
"""The columns of a task's outcome. ``failure`` is the name of an error, ``reason`` its message, and
``epoch`` that of Fenced. ``staged`` is the number of rows that ``task`` wrote into a staging
table."""
OUTCOME_DDL = "bucket int, failure string, reason string, epoch bigint, task bigint, staged bigint"
_ERRORS = {error.__name__: error for error in (SinkUnavailable, SinkRefused)}


def write_partition(
    place: BucketPlace,
    number: int,
    sizes: Mapping[int, int],
    stage: str | None,
    parts: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write this task's partition, which is the bucket of the same number, and yield its outcome.

    ``sizes`` has the rows of each bucket that has rows. ``stage`` is the staging table of an atomic
    batch. An outcome is a row and not an exception, since Spark would repeat a task that raises.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    bucket, task = context.partitionId(), context.taskAttemptId()
    size = sizes.get(bucket, 0)
    outcome: dict[str, object] = {"bucket": bucket, "task": task}
    try:
        if stage is None:
            write_bucket(place, number, bucket, size, parts)
        else:
            outcome["staged"] = stage_bucket(place, stage, task, size, parts)
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


def stage_bucket(
    place: BucketPlace, stage: str, task: int, size: int, parts: Iterator[pa.RecordBatch]
) -> int:
    """Write the rows of a bucket into the staging table as rows of ``task``, and return their
    number, of which an upsert has one for each key.

    No other task of the attempt has the number ``task``. ``size`` and the memory are as in
    ``write_bucket``. Raises SinkUnavailable or SinkRefused.
    """
    assert isinstance(place.target, Table)
    texts = _Texts(place, place.target, size, parts, task)
    with closing(staged_store(place)) as store:
        return store.stage(stage, texts.parts(), texts.remaining)


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
    engine, key, target = table_of(place, table)
    key = key.of_bucket(bucket, place.buckets)
    store = PostgresSinkStore(engine, key, target, group_id=place.group_id)
    texts = _Texts(place, table, size, parts)
    try:
        return store.publish(number, place.epoch, texts.parts(), texts.remaining)
    finally:
        store.close()


@dataclass
class _Texts:
    """The rows of a bucket as text, and the time to write them.

    Each part gets the whole time, since a bucket has any number of parts. The rows name ``task`` if
    it is given.
    """

    place: BucketPlace
    table: Table
    size: int
    batches: Iterator[pa.RecordBatch]
    task: int | None = None
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin_part()

    def parts(self) -> Iterator[CopyText]:
        """Raises SinkUnavailable at the end if the bucket has another size."""
        rows = 0
        for part in _tables(self.table, self.batches):
            rows += part.num_rows
            self._begin_part()
            if self.task is not None:
                names = pa.repeat(pa.scalar(self.task, pa.int64()), part.num_rows)
                part = part.append_column(TASK, names)
            yield copy_text(part, self.place.key)
        self._begin_part()
        _require_size(rows, self.size)

    def remaining(self) -> float:
        """The seconds that are left for the present part."""
        return self._until - time.monotonic()

    def _begin_part(self) -> None:
        self._until = time.monotonic() + self.place.timeout


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
