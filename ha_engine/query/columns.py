"""The column types that a stream may declare, as SQL and as Arrow types.

This module does not handle the types of a query's output, which are Spark's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa

from ha_engine.errors import ApplicationError

_SIMPLE: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_OTHER_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_ARRAY = re.compile(r"array\s*<(.*)>")
_STRUCT = re.compile(r"struct\s*<(.*)>")
_NOT_NULL = re.compile(r"\s+not\s+null$")
DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a stream. ``sql`` is the column's type in Spark's DDL, without ``not null``."""

    name: str
    sql: str
    nullable: bool

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, _arrow_type(self.sql), nullable=self.nullable)

    @property
    def ddl(self) -> str:
        return f"`{self.name}` {self.sql}" + ("" if self.nullable else " NOT NULL")


def parse_column(name: str, declared: str) -> Column:
    """Parse the type of a column, such as ``string not null``.

    Raises ApplicationError, which names the nearest known type.
    """
    text = " ".join(declared.strip().lower().split())
    sql = _NOT_NULL.sub("", text)
    sql = _OTHER_NAMES.get(sql, sql)
    _arrow_type(sql)
    return Column(name, sql, nullable=not _NOT_NULL.search(text))


def _arrow_type(sql: str) -> pa.DataType:
    if simple := _SIMPLE.get(_OTHER_NAMES.get(sql, sql)):
        return simple
    if found := _DECIMAL.fullmatch(sql):
        return _decimal(int(found[1]), int(found[2]), sql)
    if found := _ARRAY.fullmatch(sql):
        return pa.list_(pa.field("element", _arrow_type(found[1].strip())))
    if found := _STRUCT.fullmatch(sql):
        return pa.struct([_struct_field(part) for part in _split(found[1])])
    near = get_close_matches(sql, [*_SIMPLE, *_OTHER_NAMES, "decimal(10,2)"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_SIMPLE)}, decimal(p,s)"
    raise ApplicationError(f"{sql!r} is not a column type; {hint}")


def _decimal(precision: int, scale: int, sql: str) -> pa.DataType:
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
        raise ApplicationError(
            f"{sql!r} is not a column type; "
            f"use decimal(p,s) with 1 <= p <= {DECIMAL_DIGITS_MAX} and s <= p"
        )
    return pa.decimal128(precision, scale)


def _struct_field(text: str) -> pa.Field:
    name, colon, sql = text.partition(":")
    if not colon:
        raise ApplicationError(
            f"{text!r} is not a field of a struct; write struct<name: type, ...>"
        )
    return pa.field(name.strip(), _arrow_type(sql.strip()))


def _split(text: str) -> list[str]:
    """Split ``text`` at the commas outside of angle and round brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in [*parts, text[start:]]]
