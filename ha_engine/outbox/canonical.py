"""Write each value in one canonical form, so that equal rows have equal bytes and can be sorted.

``in_one_form`` keeps the types of the columns, for sinks. ``canonical_columns`` changes them, for
the digest and the order of rows. In both, -0.0 becomes 0.0, every NaN becomes the same NaN, and the
entries of a map are sorted.

In ``canonical_columns``, a column with nulls gets a column of validity before it, and each null
becomes the zero of its type. A struct becomes its validity and one column for each field. Lists and
maps become bytes by ``encoded``. Values of other types do not change, or become the integer that
stores them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INT64 = pa.int64()


def canonical_columns(table: pa.Table) -> pa.Table:
    """Convert a table to columns without nulls, of types that Arrow can sort, named by numbers."""
    columns = [
        part for column in table.combine_chunks().columns for part in _parts(_single(column))
    ]
    return pa.table(columns, names=[str(index) for index in range(len(columns))])


def _single(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if column.null_count:
        yield pc.cast(pc.is_valid(column), pa.uint8())
    if pa.types.is_struct(kind):
        for child in column.flatten():
            yield from _parts(child)
    elif not pa.types.is_null(kind):
        yield _plain(column)


def _plain(column: pa.Array) -> pa.Array:
    """Convert a column to a type that Arrow can sort, and replace its nulls."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.fill_null(_one_zero_one_nan(column), 0.0)
    if pa.types.is_boolean(kind):
        return pc.fill_null(pc.cast(column, pa.uint8()), 0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.fill_null(pc.cast(column, pa.large_string()), "")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.fill_null(pc.cast(column, pa.large_binary()), b"")
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pc.fill_null(_as_integer(column), 0)
    if pa.types.is_integer(kind):
        return pc.fill_null(column, 0)
    if pa.types.is_decimal(kind):
        return pc.fill_null(column, pa.scalar(Decimal(0), kind))
    return pa.array([encoded(value) for value in _values(column)], pa.large_binary())


def _one_zero_one_nan(column: pa.Array) -> pa.Array:
    wide = pc.add(pc.cast(column, pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(wide), pa.scalar(math.nan, pa.float64()), wide)


def _as_integer(column: pa.Array) -> pa.Array:
    narrow = pa.int32() if column.type.bit_width == 32 else _INT64
    return pc.cast(column.view(narrow), _INT64)


# -- values in their own types ---------------------------------------------------------------------


def in_one_form(table: pa.Table) -> pa.Table:
    """Replace each value by the one of its equals that is the same on every node.

    The digest takes two values as equal that differ in bytes. A sink shows the bytes.
    """
    for index, field in enumerate(table.schema):
        if _has_equals(field.type):
            found = _in_one_form(_single(table.column(index)))
            table = table.set_column(index, field, found)
    return table


def _has_equals(kind: pa.DataType) -> bool:
    """Whether values of ``kind`` may be equal and differ in bytes."""
    return bool(pa.types.is_floating(kind) or pa.types.is_map(kind)) or any(
        _has_equals(kind.field(index).type) for index in range(kind.num_fields)
    )


def _in_one_form(column: pa.Array) -> pa.Array:
    """``column`` is no slice, so its children have no other values than its own."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.cast(_one_zero_one_nan(column), kind)
    if not _has_equals(kind):
        return column
    if pa.types.is_struct(kind):
        children = [_in_one_form(column.field(index)) for index in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        children = [_sorted_entries(column)]
    else:
        children = [_in_one_form(column.values)]
    buffers = column.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, children=children)


def _sorted_entries(column: pa.MapArray) -> pa.StructArray:
    """The entries of all maps of ``column``, sorted within each map."""
    kind, ends = column.type, column.offsets.to_pylist()
    keys, items = _in_one_form(column.keys), _in_one_form(column.items)
    owners = [row for row, (a, b) in enumerate(pairwise(ends)) for _ in range(a, b)]
    compared = canonical_columns(pa.table([owners, keys, items], names=["owner", "key", "item"]))
    order = pc.sort_indices(compared, [(name, "ascending") for name in compared.column_names])
    fields = [kind.key_field, kind.item_field]
    return pa.StructArray.from_arrays([keys.take(order), items.take(order)], fields=fields)


# -- values inside lists and maps ------------------------------------------------------------------


def row_keys(table: pa.Table) -> list[bytes]:
    """For each row, bytes that are equal exactly for equal rows."""
    columns = [map(encoded, _values(_single(column))) for column in table.columns]
    return [b"".join(row) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> Iterator[Any]:
    """Yield Python values. A map becomes ``_Entries``, to distinguish it from a list."""
    for scalar in column:
        yield _value(scalar)


class _Entries(list[tuple[Any, Any]]):
    """The entries of a map, in any order."""


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_map(kind):
        return _Entries((_value(entry["key"]), _value(entry["value"])) for entry in scalar.values)
    if pa.types.is_struct(kind):
        return tuple(_value(scalar[index]) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_value(item) for item in scalar.values]
    return scalar.as_py()


def encoded(value: Any) -> bytes:
    """Encode a value as a tag and a self-delimiting body.

    Two encodings are equal exactly if the values are equal.
    """
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return _framed(b"i", str(value).encode())
        case float():
            return b"d" + struct.pack(">d", math.nan if math.isnan(value) else value + 0.0)
        case str():
            return _framed(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes():
            return _framed(b"b", value)
        case Decimal():
            return _framed(b"e", str(value).encode())
        case datetime() | date() | time():
            return _framed(b"w", value.isoformat().encode())
        case timedelta():
            return _framed(b"u", str(value // timedelta(microseconds=1)).encode())
        case _Entries():
            entries = sorted(encoded(key) + encoded(item) for key, item in value)
            return _framed(b"m", b"".join(entries))
        case list():
            return _framed(b"l", b"".join(encoded(item) for item in value))
        case tuple():
            return _framed(b"r", b"".join(encoded(item) for item in value))
        case _:
            raise TypeError(f"values of type {type(value).__name__} cannot be compared")


def _framed(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">I", len(body)) + body
