"""Parse, check and convert one column from JSON to Arrow, and describe the values that the column
accepts.

The module ``query/columns.py`` reads the column types of an application file.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_FIRST_DAY, _DAYS_END = -719162, 2932897
"""The days 0001-01-01 and 10000-01-01, counted from 1970-01-01."""
_IN_A_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


class SchemaMismatch(Exception):
    """The data of a request does not match the stream's schema. The text of the exception says why
    the data does not match."""


class ColumnReader:
    """Says how pyarrow's JSON reader must parse one column, then checks and converts the parsed
    column."""

    def __init__(self, field: pa.Field) -> None:
        self.name: str = field.name
        self._target: pa.DataType = field.type
        self.parsed: pa.Field = field.with_type(_parsed_type(field.type))
        self._has_floats = _has(field.type, pa.types.is_floating)
        self._has_narrow_floats = _has(field.type, pa.types.is_float32)
        self._has_strings = _has(field.type, pa.types.is_string)
        self._has_decimals = _has(field.type, pa.types.is_decimal)
        self._has_years = _has(field.type, pa.types.is_temporal)
        self.is_checked = self._has_floats or self._has_strings or self._has_decimals

    def check(self, column: pa.ChunkedArray, source: bytes | None) -> None:
        """Refuse NaN, Infinity, U+0000 and decimals with too many digits, since pyarrow accepts
        them.

        pyarrow counts the digits of a decimal as written, so it accepts 123 as decimal(3,2).
        ``source`` is the JSON text that the column was parsed from, or None. If ``source`` lacks
        the letters of NaN, Infinity or U+0000, the check for that value is skipped. A column of
        32-bit floats is always checked, because pyarrow turns a too large number into Infinity.
        Raises SchemaMismatch.
        """
        if self._has_floats and (self._has_narrow_floats or _may_hold(source, b"NaN", b"Inf")):
            _require(column, pa.types.is_floating, _is_finite, "a number that is not finite")
        if self._has_strings and _may_hold(source, b"\\u0000"):
            _require(column, pa.types.is_string, _has_no_nul, "a string with U+0000 in it")
        if self._has_decimals:
            _require(column, pa.types.is_decimal, _fits, "a decimal with too many digits")

    def converted(self, column: pa.ChunkedArray) -> pa.Array:
        """Convert the parsed ``column`` to the type that the stream declares. Raises
        SchemaMismatch."""
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if array.type != self._target:
            try:
                array = _converted(array, self._target)
            except (pa.ArrowInvalid, binascii.Error) as error:
                raise SchemaMismatch(str(error)) from None
        for leaf in leaves(array) if self._has_years else ():
            require_known_years(leaf)
        return array


def _may_hold(source: bytes | None, *words: bytes) -> bool:
    return source is None or any(word in source for word in words)


def expected(kind: pa.DataType) -> str:
    """Describe a JSON value of type ``kind`` in words that end a sentence."""
    match kind:
        case _ if pa.types.is_boolean(kind):
            return "true or false"
        case _ if pa.types.is_integer(kind):
            return f"a whole number of {kind.bit_width} bits"
        case _ if pa.types.is_floating(kind):
            return f"a finite number of {kind.bit_width} bits"
        case _ if pa.types.is_decimal(kind):
            whole = kind.precision - kind.scale
            return f"a number with at most {whole} digits before and {kind.scale} after the point"
        case _ if pa.types.is_timestamp(kind):
            return (
                'a timestamp such as "2013-01-01T05:15:00Z", with at most 6 fractional digits and '
                "a year from 1 to 9999 in UTC"
            )
        case _ if pa.types.is_date(kind):
            return 'a date such as "2013-01-01", with a year from 1 to 9999'
        case _ if pa.types.is_binary(kind):
            return "a string in base64"
        case _ if pa.types.is_string(kind):
            return "a string (U+0000 and lone surrogates cannot be stored)"
        case _ if pa.types.is_list(kind):
            return f"an array, each element {expected(kind.value_type)}"
        case _ if pa.types.is_struct(kind):
            return f"an object with the fields {', '.join(field.name for field in kind)}"
        case _:
            return f"of type {kind}"


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """The type as which pyarrow parses a column of type ``kind``. Dates and binary values are
    parsed as strings, because pyarrow itself would expect day numbers and plain text."""
    match kind:
        case _ if pa.types.is_date(kind) or pa.types.is_binary(kind):
            return pa.string()
        case _ if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(_parsed_type(kind.value_type)))
        case _ if pa.types.is_struct(kind):
            return pa.struct([field.with_type(_parsed_type(field.type)) for field in kind])
        case _:
            return kind


def _has(kind: pa.DataType, wanted: Any) -> bool:
    return bool(wanted(kind)) or any(
        _has(kind.field(index).type, wanted) for index in range(kind.num_fields)
    )


def _require(column: pa.ChunkedArray, of_kind: Any, holds: Any, otherwise: str) -> None:
    for chunk in column.chunks:
        for leaf in leaves(chunk):
            if of_kind(leaf.type) and not holds(leaf):
                raise SchemaMismatch(otherwise)


def leaves(array: pa.Array) -> list[pa.Array]:
    """The arrays of values inside structs and lists, without the values inside a null struct or
    list."""
    match array:
        case pa.StructArray() | pa.ListArray() | pa.LargeListArray():
            children = array.flatten()
            children = children if isinstance(children, list) else [children]
            return [leaf for child in children for leaf in leaves(child)]
        case _:
            return [array]


def require_known_years(leaf: pa.Array) -> None:
    """Refuse dates with a year that Python or PostgreSQL cannot represent: a sink would fail at
    them.

    Raises SchemaMismatch.
    """
    match leaf.type:
        case pa.TimestampType() as kind:
            in_a_day = _IN_A_DAY[kind.unit]
        case kind if pa.types.is_date32(kind):
            in_a_day = 1
        case kind if pa.types.is_date64(kind):
            in_a_day = _IN_A_DAY["ms"]
        case _:
            return
    seen = pc.min_max(leaf.view(pa.int32() if in_a_day == 1 else pa.int64())).as_py()
    known = range(_FIRST_DAY * in_a_day, _DAYS_END * in_a_day)
    if any(value is not None and value not in known for value in seen.values()):
        raise SchemaMismatch("a year that is not from 1 to 9999")


def _is_finite(array: pa.Array) -> bool:
    return pc.all(pc.is_finite(array), min_count=0).as_py() is not False


def _fits(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has_no_nul(array: pa.Array) -> bool:
    return pc.any(pc.match_substring(array, "\0")).as_py() is not True


def _converted(array: pa.Array, target: pa.DataType) -> pa.Array:
    match target:
        case _ if array.type == target:
            return array
        case _ if pa.types.is_binary(target):
            texts = array.to_pylist()
            return pa.array([None if text is None else _bytes_of(text) for text in texts], target)
        case _ if pa.types.is_struct(target):
            children = [
                _converted(array.field(index), field.type) for index, field in enumerate(target)
            ]
            return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
        case _ if pa.types.is_list(target):
            values = _converted(array.values, target.value_type)
            return pa.ListArray.from_arrays(
                array.offsets, values, type=target, mask=array.is_null()
            )
        case _:
            return array.cast(target)


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise SchemaMismatch(str(error)) from None
