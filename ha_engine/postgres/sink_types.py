"""The PostgreSQL type for each Arrow type, and the types of existing columns that also fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import types as sql
from sqlalchemy.dialects.postgresql import BYTEA, DOUBLE_PRECISION, JSONB, TIMESTAMP

from ha_engine.errors import SinkRefused

_TEXTS = frozenset({"text", "character varying", "character", "citext"})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The types of a column in a sink's table that fit one column of a query's output.

    A new table gets the type ``created``. The types ``accepted`` fit in an existing table, and have
    the names that PostgreSQL's ``format_type`` returns.
    """

    created: sql.TypeEngine[Any]
    accepted: frozenset[str]


def column_type(field: pa.Field) -> ColumnType:
    """The PostgreSQL types for one column of a query's output.

    Structs, lists and maps become jsonb. Raises SinkRefused, with advice, for an Arrow type without
    an equivalent in PostgreSQL.
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    found = _number(kind) or _text_or_bytes(kind) or _time(kind) or _nested(kind)
    if found is None:
        raise SinkRefused(
            f"column {field.name} has type {kind}, and PostgreSQL has no such type; "
            "cast it in the query, for example to string or to a number"
        )
    return found


def _of(created: sql.TypeEngine[Any], *accepted: str) -> ColumnType:
    return ColumnType(created, frozenset(accepted))


def _number(kind: pa.DataType) -> ColumnType | None:
    if pa.types.is_boolean(kind):
        return _of(sql.Boolean(), "boolean")
    if kind in {pa.int8(), pa.int16(), pa.uint8()}:
        return _of(sql.SmallInteger(), "smallint", "integer", "bigint", "numeric")
    if kind in {pa.int32(), pa.uint16()}:
        return _of(sql.Integer(), "integer", "bigint", "numeric")
    if kind in {pa.int64(), pa.uint32()}:
        return _of(sql.BigInteger(), "bigint", "numeric")
    if kind == pa.uint64():
        return _of(sql.Numeric(20, 0), "numeric")
    if kind in {pa.float16(), pa.float32()}:
        return _of(sql.REAL(), "real", "double precision")
    if kind == pa.float64():
        return _of(DOUBLE_PRECISION(), "double precision")
    if pa.types.is_decimal(kind):
        return _of(sql.Numeric(kind.precision, kind.scale), "numeric")
    return None


def _text_or_bytes(kind: pa.DataType) -> ColumnType | None:
    if is_text(kind) or pa.types.is_null(kind):
        return ColumnType(sql.Text(), _TEXTS | {"json", "jsonb", "uuid"})
    if is_bytes(kind):
        return _of(BYTEA(), "bytea")
    return None


def _time(kind: pa.DataType) -> ColumnType | None:
    if pa.types.is_timestamp(kind):
        name = f"timestamp {'without' if kind.tz is None else 'with'} time zone"
        return _of(TIMESTAMP(timezone=kind.tz is not None), name)
    if pa.types.is_date(kind):
        return _of(sql.Date(), "date")
    if pa.types.is_time(kind):
        return _of(sql.Time(), "time without time zone")
    return None


def _nested(kind: pa.DataType) -> ColumnType | None:
    return ColumnType(JSONB(), _TEXTS | {"json", "jsonb"}) if pa.types.is_nested(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Arrow's string types."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Arrow's binary types."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
