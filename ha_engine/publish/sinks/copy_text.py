"""Convert rows of a batch to the CSV text that PostgreSQL's COPY reads.

Arrow writes numbers, text, dates and times. Arrow's CSV lacks bytes and nested types, so bytes
become hex text, and structs, lists and maps become JSON text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ha_engine.errors import SinkRefused
from ha_engine.formats.values import json_text
from ha_engine.outbox.canonical import in_one_form

_ROW = "\0row"
"""Name of a column of our own. PostgreSQL forbids such a name, so no other column has it."""


@dataclass(frozen=True, slots=True)
class CopyText:
    """CSV without a header, where null is an empty field and an empty text is ``""``."""

    columns: tuple[str, ...]
    rows: int
    body: IO[bytes]


def copy_text(table: pa.Table, key: tuple[str, ...] = ()) -> CopyText:
    """Write the rows as CSV. If ``key`` is given, write only one row of each key.

    Of several rows with the same key, only the greatest is written. Rows are compared by the other
    columns from left to right, where null is the lowest value. The comparison makes every node
    write the same row, whatever the order of its rows (RULES.md#i6). Their values get one
    form first, since PostgreSQL takes -0.0 and 0.0 as one key. Raises SinkRefused for a value
    without a JSON form.
    """
    table = in_one_form(table) if key else table
    plain = pa.table(
        [_plain(table.field(index), column) for index, column in enumerate(table.columns)],
        names=table.column_names,
    )
    if key:
        plain = _one_of_each(plain, list(key))
    buffer = pa.BufferOutputStream()
    pyarrow.csv.write_csv(plain, buffer, pyarrow.csv.WriteOptions(include_header=False))
    return CopyText(tuple(plain.column_names), plain.num_rows, pa.BufferReader(buffer.getvalue()))


def _one_of_each(table: pa.Table, key: list[str]) -> pa.Table:
    if table.select(key).group_by(key).aggregate([]).num_rows == table.num_rows:
        return table
    # Arrow puts nulls last in either direction, so the greatest row of a key comes first.
    others = [(name, "descending") for name in table.column_names if name not in key]
    ordered = table.sort_by([*((name, "ascending") for name in key), *others])
    numbered = ordered.append_column(_ROW, pa.array(range(ordered.num_rows), pa.int64()))
    first = numbered.group_by(key).aggregate([(_ROW, "min")])[f"{_ROW}_min"]
    return ordered.take(first.take(pc.sort_indices(first)))


def _plain(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to a type that Arrow writes to CSV in PostgreSQL's form."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(field, column.cast(kind.value_type))
    if pa.types.is_nested(kind):
        return _by_value(column, lambda value: _as_json(field.name, value))
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    ):
        return _by_value(column, lambda value: "\\x" + bytes(value).hex())
    return column.cast(_written_as(kind), safe=False)


def _written_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.large_string()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kind == pa.time64("ns"):
        return pa.time64("us")
    return kind


def _by_value(column: pa.ChunkedArray, written: Callable[[Any], str]) -> pa.ChunkedArray:
    values = column.to_pylist(maps_as_pydicts="lossy")
    texts = [None if value is None else written(value) for value in values]
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def _as_json(column: str, value: Any) -> str:
    try:
        return json_text(value)
    except (TypeError, ValueError) as error:
        raise SinkRefused(
            f"a value of column {column} has no form in JSON ({error}); "
            "select the fields of that column as separate columns"
        ) from error
