"""Compile a type of Avro and the type of a column into a function that writes values in Avro.

The compiler has a table of the pairs of types that lose nothing, and refuses any other pair before
a query runs. The reader in ``avro_reader`` reads each value back as it was.

| column | Avro |
|---|---|
| boolean | boolean |
| tinyint, smallint, int | int, long |
| bigint | long |
| float | float, double |
| double | double |
| string | string, a symbol of an enum, a UUID |
| binary | bytes, fixed |
| decimal | decimal with as many digits before and after the point, or more |
| date | date |
| time | time-micros, time-millis |
| timestamp | timestamp-micros, timestamp-millis, timestamp-nanos |
| timestamp_ntz | local-timestamp-micros, local-timestamp-millis, local-timestamp-nanos |
| array, map, struct | array, map with texts as keys, record |

A nullable column fits only a union with null. Of a union, the compiler takes the first branch that
fits.

Equal rows have equal bytes, since a batch that is delivered again must have the same bytes, and the
nodes compare batches by the rules of ``outbox.canonical``: the keys of a map are sorted, -0.0
becomes 0.0, and every NaN becomes the same NaN.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal as Number
from typing import Any
from uuid import UUID

import pyarrow as pa

from ha_engine.errors import SinkRefused
from ha_engine.formats.avro_schema import (
    NO_DEFAULT,
    Array,
    AvroType,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)

Write = Callable[[bytearray, Any], None]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_NAN = float("nan")
_INT, _LONG = 1 << 31, 1 << 63
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def without_nulls(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with columns that are never null, for rows whose nulls are checked one by
    one."""
    return pa.schema([_mapped(field, lambda part: part.with_nullable(False)) for field in schema])


class RowWriter:
    """Writes rows of ``schema`` as values of ``record``. The constructor raises SinkRefused, which
    names the column that does not fit its field."""

    def __init__(self, record: Record, schema: pa.Schema) -> None:
        try:
            self._parts = _parts(record, list(schema), "")
        except _Unfit as unfit:
            raise SinkRefused(f"the query does not fit the Avro schema: {unfit}") from None
        self._stored = [_mapped(field, _as_number).type for field in schema]

    def values(self, rows: pa.Table, head: bytes) -> list[bytes]:
        """The value of each row, after ``head``. Raises SinkRefused for a row that does not fit."""
        columns = [
            column.cast(kind).to_pylist()
            for column, kind in zip(rows.columns, self._stored, strict=True)
        ]
        try:
            return [
                bytes(_written(bytearray(head), self._parts, row))
                for row in (zip(*columns, strict=True) if columns else [()] * rows.num_rows)
            ]
        except _Unfit as unfit:
            raise SinkRefused(f"a row does not fit the Avro schema: {unfit}") from None


class _Unfit(Exception):
    """A type or a value that does not fit. The text names the column and says what to do."""


# -- types -----------------------------------------------------------------------------------------


def _mapped(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Return ``field`` with a change of itself and of each field in its type."""
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _mapped(kind.item_field, change))
    elif pa.types.is_list(kind):
        kind = pa.list_(_mapped(kind.value_field, change))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_mapped(kind.value_field, change))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_mapped(part, change) for part in kind])
    return change(field.with_type(kind))


def _as_number(field: pa.Field) -> pa.Field:
    """Change a time or date to the number that stores it, since Python's datetime lacks some. A
    cast to a field that may not be null would check its values."""
    field = field.with_nullable(True)
    if pa.types.is_timestamp(field.type) or pa.types.is_time64(field.type):
        return field.with_type(pa.int64())
    return field.with_type(pa.int32()) if pa.types.is_date32(field.type) else field


# A part of a record is its function and the index of its column, or the bytes of its default.
_Part = tuple[Write, int] | bytes


def _parts(record: Record, columns: Sequence[pa.Field], where: str) -> list[_Part]:
    """The fields of ``record`` in their order. ``where`` is the path of the struct whose fields
    ``columns`` are, with a point after it. Raises _Unfit."""
    names = [column.name for column in columns]
    known = {field.name for field in record.fields}
    for name in names:
        if name not in known:
            raise _Unfit(
                f"the record {record.name} has no field for the column {where}{name}; leave the "
                "column out of the query, or rename it"
            )
        if names.count(name) > 1:
            raise _Unfit(f"two columns are named {where}{name}; rename one")
    parts: list[_Part] = []
    for field in record.fields:
        if field.name in names:
            at = names.index(field.name)
            parts.append((_write_of(field.type, columns[at], where + field.name), at))
        else:
            parts.append(_default_of(record, field, where))
    return parts


def _written(out: bytearray, parts: Sequence[_Part], values: Sequence[Any]) -> bytearray:
    for part in parts:
        match part:
            case bytes():
                out += part
            case write, at:
                write(out, values[at])
    return out


def _write_of(of: AvroType, column: pa.Field, where: str) -> Write:
    """The function that writes values of ``column``, whose path is ``where``. Raises _Unfit."""
    if isinstance(of, Union):
        return _union(of, column, where)
    if column.nullable and not pa.types.is_null(column.type):
        raise _Unfit(
            f"the column {where} may be null, and its field may not; use coalesce in the query, or "
            "a union with null in the schema"
        )
    write = _plain(of, column.type, where)

    def write_present(out: bytearray, value: Any) -> None:
        if value is None:
            raise _Unfit(f"the column {where} is null, and its field may not be")
        write(out, value)

    return write if pa.types.is_null(column.type) else write_present


def _union(of: Union, column: pa.Field, where: str) -> Write:
    null = next((n for n, one in enumerate(of.branches) if _is_null(one)), None)
    if null is not None and pa.types.is_null(column.type):
        return lambda out, value: _long(out, null)
    if null is None and column.nullable:
        raise _Unfit(
            f"the column {where} may be null, and no branch of its field is null; use coalesce in "
            "the query, or a union with null in the schema"
        )
    reasons = []
    for index, branch in enumerate(of.branches):
        if _is_null(branch):
            continue
        try:
            write = _write_of(branch, column.with_nullable(False), where)
        except _Unfit as unfit:
            reasons.append(str(unfit))
        else:
            return _branch(index, write, null, where)
    raise _Unfit("; ".join(reasons) or f"the field of the column {where} has only null")


def _branch(index: int, write: Write, null: int | None, where: str) -> Write:
    def write_branch(out: bytearray, value: Any) -> None:
        if value is not None:
            _long(out, index)
            write(out, value)
        elif null is not None:
            _long(out, null)
        else:
            raise _Unfit(f"the column {where} is null, and its field may not be")

    return write_branch


def _is_null(of: AvroType) -> bool:
    return isinstance(of, Primitive) and of.kind == "null"


def _plain(of: AvroType, kind: pa.DataType, where: str) -> Write:
    """The function that writes values that are not null. Raises _Unfit."""
    match of:
        case Array(items) if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return _array(_write_of(items, kind.value_field, f"{where}[]"))
        case Map(values) if pa.types.is_map(kind) and _is_text(kind.key_type):
            return _map(_write_of(values, kind.item_field, f"{where}[]"), where)
        case Record() if pa.types.is_struct(kind):
            return _record(of, kind, where)
        case Decimal() if pa.types.is_decimal(kind):
            return _decimal(of, kind, where)
        case Enum() if _is_text(kind):
            return _enum(of, where)
        case Fixed(is_uuid=True) if _is_text(kind):
            return _fixed_uuid(where)
        case Fixed(is_uuid=False) if _is_bytes(kind):
            return _fixed(of, where)
        case Primitive():
            write = _primitive(of, kind, where)
            if write is not None:
                return write
    raise _Unfit(
        f"the column {where} is {kind}, and its field is {_shown(of)}; cast the column in the "
        "query, or change the schema"
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _shown(of: AvroType) -> str:
    match of:
        case Primitive(kind, logical):
            return kind if logical is None else f"{kind} with the logical type {logical}"
        case Decimal(precision=precision, scale=scale):
            return f"a decimal of {precision} digits, {scale} after the point"
        case Fixed() | Enum() | Record():
            return f"the {type(of).__name__.lower()} {of.name}"
        case _:
            return type(of).__name__.lower()


def _primitive(of: Primitive, kind: pa.DataType, where: str) -> Write | None:
    """The function for a primitive type, or None if values of ``kind`` do not fit ``of``."""
    is_integer = pa.types.is_signed_integer(kind)
    is_time = pa.types.is_time64(kind) and kind.unit == "us"
    is_moment = pa.types.is_timestamp(kind) and kind.unit == "us"
    is_instant, is_local = is_moment and kind.tz is not None, is_moment and kind.tz is None
    match of.kind, _logical(of):
        case "null", _:
            return (lambda out, value: None) if pa.types.is_null(kind) else None
        case "boolean", None:
            return _boolean if pa.types.is_boolean(kind) else None
        case "int", None:
            return _long if is_integer and kind.bit_width <= 32 else None
        case "long", None:
            return _long if is_integer else None
        case "float", None:
            return _float if pa.types.is_float32(kind) else None
        case "double", None:
            return _double if pa.types.is_float32(kind) or pa.types.is_float64(kind) else None
        case "string", "uuid":
            return _uuid(where) if _is_text(kind) else None
        case "string", None:
            return _string if _is_text(kind) else None
        case "bytes", None:
            return _bytes if _is_bytes(kind) else None
        case "int", "date":
            return _long if pa.types.is_date32(kind) else None
        case "int", "time-millis":
            return _milliseconds(where) if is_time else None
        case "long", "time-micros":
            return _long if is_time else None
        case "long", "timestamp-millis":
            return _milliseconds(where) if is_instant else None
        case "long", "timestamp-micros":
            return _long if is_instant else None
        case "long", "timestamp-nanos":
            return _nanoseconds(where) if is_instant else None
        case "long", "local-timestamp-millis":
            return _milliseconds(where) if is_local else None
        case "long", "local-timestamp-micros":
            return _long if is_local else None
        case "long", "local-timestamp-nanos":
            return _nanoseconds(where) if is_local else None
        case _:
            return None


_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(
            f"{local}timestamp-{unit}"
            for local in ("", "local-")
            for unit in ("millis", "micros", "nanos")
        ),
    },
    "string": {"uuid"},
}


def _logical(of: Primitive) -> str | None:
    """The logical type, or None for an unknown one, which the specification tells to ignore."""
    return of.logical if of.logical in _LOGICAL.get(of.kind, ()) else None


# -- values ----------------------------------------------------------------------------------------


def _boolean(out: bytearray, value: bool) -> None:
    out.append(value)


def _long(out: bytearray, value: int) -> None:
    """Write a zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _float(out: bytearray, value: float) -> None:
    out += _FLOAT.pack(_one_zero_one_nan(value))


def _double(out: bytearray, value: float) -> None:
    out += _DOUBLE.pack(_one_zero_one_nan(value))


def _one_zero_one_nan(value: float) -> float:
    return value + 0.0 if value == value else _NAN  # NaN differs from itself


def _bytes(out: bytearray, value: bytes) -> None:
    _long(out, len(value))
    out += value


def _string(out: bytearray, value: str) -> None:
    _bytes(out, value.encode())


def _array(write: Write) -> Write:
    def write_array(out: bytearray, value: Sequence[Any]) -> None:
        if value:
            _long(out, len(value))
            for one in value:
                write(out, one)
        out.append(0)

    return write_array


def _map(write: Write, where: str) -> Write:
    def write_map(out: bytearray, value: Sequence[tuple[str, Any]]) -> None:
        entries = sorted((key.encode(), part) for key, part in value)
        if len({key for key, _ in entries}) < len(entries):
            raise _Unfit(f"the map {where} has a key twice")
        if entries:
            _long(out, len(entries))
            for key, part in entries:
                _bytes(out, key)
                write(out, part)
        out.append(0)

    return write_map


def _record(of: Record, kind: pa.StructType, where: str) -> Write:
    parts, names = _parts(of, list(kind), f"{where}."), [field.name for field in kind]

    def write_record(out: bytearray, value: dict[str, Any]) -> None:
        _written(out, parts, [value[name] for name in names])

    return write_record


def _enum(of: Enum, where: str) -> Write:
    indexes = {symbol: index for index, symbol in enumerate(of.symbols)}

    def write_symbol(out: bytearray, value: str) -> None:
        if value not in indexes:
            raise _Unfit(f"the column {where} is {value[:100]!r}, no symbol of the enum {of.name}")
        _long(out, indexes[value])

    return write_symbol


def _fixed(of: Fixed, where: str) -> Write:
    def write_fixed(out: bytearray, value: bytes) -> None:
        if len(value) != of.size:
            raise _Unfit(
                f"the column {where} has {len(value)} bytes, and the fixed type {of.name} {of.size}"
            )
        out += value

    return write_fixed


def _fixed_uuid(where: str) -> Write:
    def write_uuid(out: bytearray, value: str) -> None:
        out += UUID(_uuid_text(value, where)).bytes

    return write_uuid


def _uuid(where: str) -> Write:
    return lambda out, value: _string(out, _uuid_text(value, where))


def _uuid_text(value: str, where: str) -> str:
    if not _UUID.fullmatch(value):
        raise _Unfit(f"the column {where} is {value[:100]!r}, which is no UUID")
    return value


def _milliseconds(where: str) -> Write:
    def write_milliseconds(out: bytearray, value: int) -> None:
        if value % 1_000:
            raise _Unfit(
                f"the column {where} has microseconds, and its field only milliseconds; truncate "
                "the column in the query"
            )
        _long(out, value // 1_000)

    return write_milliseconds


def _nanoseconds(where: str) -> Write:
    def write_nanoseconds(out: bytearray, value: int) -> None:
        if not -_LONG <= value * 1_000 < _LONG:
            raise _Unfit(f"the time in the column {where} is out of range for nanoseconds")
        _long(out, value * 1_000)

    return write_nanoseconds


def _decimal(of: Decimal, kind: pa.DataType, where: str) -> Write:
    """Raises _Unfit if the field lacks digits for the column."""
    added = of.scale - kind.scale
    if kind.scale < 0 or added < 0 or of.precision < kind.precision + added:
        raise _Unfit(
            f"the column {where} is {kind}, and its field is {_shown(of)}; cast the column in the "
            "query, or change the schema"
        )
    if of.size is not None and _bytes_of(10 ** (kind.precision + added) - 1) > of.size:
        raise _Unfit(f"the field of the column {where} has {of.size} bytes, too few for its digits")
    factor = 10**added

    def write_decimal(out: bytearray, value: Number) -> None:
        unscaled = _unscaled(value) * factor
        size = of.size or _bytes_of(unscaled)
        if of.size is None:
            _long(out, size)
        out += unscaled.to_bytes(size, "big", signed=True)

    return write_decimal


def _unscaled(value: Number) -> int:
    """The digits of ``value`` as a whole number; a method of Decimal would round them."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _bytes_of(value: int) -> int:
    """The fewest bytes of ``value`` in two's complement."""
    return (value if value >= 0 else ~value).bit_length() // 8 + 1


# -- defaults --------------------------------------------------------------------------------------


def _default_of(record: Record, field: Field, where: str) -> bytes:
    """The bytes of a field for which there is no column. Raises _Unfit."""
    if field.default is NO_DEFAULT:
        raise _Unfit(
            f"the record {record.name} has the field {where}{field.name} without a default, and "
            "the query has no column for it; select one"
        )
    out = bytearray()
    try:
        is_written = _wrote_default(out, field.type, field.default)
    except OverflowError:  # a number too large for a float
        is_written = False
    if not is_written:
        raise _Unfit(
            f"the default of the field {where}{field.name} of {record.name} is not supported; "
            "select a column for it"
        )
    return bytes(out)


def _wrote_default(out: bytearray, of: AvroType, value: Any) -> bool:
    """Write a default, whose form is that of JSON. Return False if it is not supported."""
    match of, value:
        case Union(branches), _:
            return _wrote_union(out, branches, value)
        case Primitive("null"), None:
            return True
        case Primitive("boolean"), bool():
            _boolean(out, value)
        case Primitive("int" | "long" as kind), int() if not isinstance(value, bool):
            limit = _INT if kind == "int" else _LONG
            if not -limit <= value < limit:
                return False
            _long(out, value)
        case Primitive("float"), int() | float() if not isinstance(value, bool):
            _float(out, value)
        case Primitive("double"), int() | float() if not isinstance(value, bool):
            _double(out, value)
        case Primitive("string"), str():
            _string(out, value)
        case Enum(_, symbols), str() if value in symbols:
            _long(out, symbols.index(value))
        case (Array(), []) | (Map(), {}) if not value:
            out.append(0)
        case _:
            return False
    return True


def _wrote_union(out: bytearray, branches: Sequence[AvroType], value: Any) -> bool:
    for index, branch in enumerate(branches):
        inner = bytearray()
        if _wrote_default(inner, branch, value):
            _long(out, index)
            out += inner
            return True
    return False
