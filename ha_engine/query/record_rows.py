"""Convert rows of records to the form that Spark reads: add system columns, join small batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ha_engine.types import Events, Record

BATCH_ROWS = 20_000
"""Record batches are joined up to this many rows; a larger record batch remains as it is."""


def with_system_columns(rows: pa.RecordBatch, record: Record, wanted: pa.Schema) -> pa.RecordBatch:
    """Add system columns to the rows of one record.

    ``wanted`` has the columns of the stream, then the system columns.
    """
    columns = list(rows.columns)
    columns += [
        _system_column(field, rows.num_rows, record) for field in list(wanted)[len(columns) :]
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _system_column(field: pa.Field, count: int, record: Record) -> pa.Array:
    match field.name, record.body:
        case "_received_at", Events(received_at_us=received):
            return pa.repeat(pa.scalar(received, pa.int64()), count).cast(field.type)
        case "_event_id", _:
            numbers = pc.cast(pa.array(range(count), pa.int64()), pa.string())
            return pc.binary_join_element_wise(str(record.position.sequence), numbers, "-")
        case name, _:
            raise ValueError(f"the engine has no column {name}")


def coalesced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join record batches into fewer ones, with the same rows in the same order.

    The new boundaries depend on the rows alone, so that they are equal on every node.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if waiting and count + batch.num_rows > BATCH_ROWS:
            yield _joined(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        count += batch.num_rows
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
