"""Find the newest rows of a query that a request asks for, in the batches that are on disk."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ha_engine.errors import NotAValue
from ha_engine.observer.store import KeptBatch


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most ``limit`` rows, whose columns have the values in ``equal``, written as text."""

    limit: int
    equal: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of one batch, the newest first."""

    batch: KeptBatch
    rows: pa.Table


def newest(batches: Sequence[KeptBatch], wanted: Wanted) -> list[Found]:
    """The newest rows of ``batches``, which are oldest first. Blocks on files.

    A batch that is deleted meanwhile counts as too old. Raises NotAValue for a column that a batch
    does not have, or a value that is not of the column's type.
    """
    found, left = list[Found](), wanted.limit
    for batch in reversed(batches):
        try:
            rows = _reversed(_matching(_read(batch), wanted.equal)).slice(0, left)
        except FileNotFoundError:
            break
        if rows.num_rows:
            found.append(Found(batch, rows))
        left -= rows.num_rows
        if not left:
            break
    return found


def as_arrow(found: Sequence[Found]) -> bytes:
    """The rows as an Arrow IPC file. Rows with other columns than the newest ones, from before a
    change of the query, are left out."""
    tables = [one.rows for one in found]
    same = [table for table in tables if table.schema == tables[0].schema]
    table = pa.concat_tables(same) if same else pa.table({})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def as_objects(found: Found) -> list[dict[str, Any]]:
    """The rows as objects for JSON: a value that JSON does not have is written as text."""
    return [{name: _plain(value) for name, value in row.items()} for row in found.rows.to_pylist()]


def _read(batch: KeptBatch) -> pa.Table:
    with batch.path.open("rb") as file, pa.ipc.open_file(file.read()) as reader:
        return reader.read_all().replace_schema_metadata(None)


def _reversed(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))


def _matching(table: pa.Table, equal: Mapping[str, str]) -> pa.Table:
    for column, text in equal.items():
        if column not in table.column_names:
            known = ", ".join(table.column_names) or "none"
            raise NotAValue(f"there is no column {column!r}; known: {known}")
        kind = table.schema.field(column).type
        try:
            value = pa.scalar(text).cast(kind)
            table = table.filter(pc.equal(table[column], value))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise NotAValue(f"{column}={text} is no value of type {kind}") from None
    return table


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
