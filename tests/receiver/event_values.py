"""Events of a stream with every type, with the extreme values of each."""

from __future__ import annotations

import math
import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ha_engine.query.columns import parse_column

COLUMNS = tuple(
    parse_column(name, declared)
    for name, declared in {
        "text": "string",
        "flag": "boolean",
        "tiny": "tinyint",
        "small": "smallint",
        "number": "int",
        "long": "bigint",
        "float": "float",
        "double": "double",
        "bytes": "binary",
        "day": "date",
        "time": "timestamp",
        "local": "timestamp_ntz",
        "money": "decimal(38,10)",
        "price": "decimal(5,2)",
        "share": "decimal(38,38)",
        "times": "array<timestamp>",
        "nested": "struct<a: int, t: timestamp_ntz, n: struct<d: decimal(20,3), b: binary>>",
        "structs": "array<struct<f: float, s: string>>",
        "lists": "array<array<double>>",
        "per%cent": "string",
    }.items()
)
SCHEMA = pa.schema([column.arrow for column in COLUMNS])
RANDOM = 300

_FIRST, _MICROSECONDS = datetime(1, 1, 1), 315_537_897_599_999_999
_REFORM = datetime(1582, 10, 10, 1, 2, 3, 4)
"""A day that the Julian calendar has, and the Gregorian one had not yet."""
_VALUES: dict[str, list[Any]] = {
    "text": [
        "",
        'a"b\\c',
        "\u2028\x01\x1f\x7f\ufeff\ufffe\U0001f600é",
        "null",
        "1",
        " x ",
        "\r\n\t",
    ],
    "flag": [True, False],
    "tiny": [-128, 127],
    "small": [-(1 << 15), (1 << 15) - 1],
    "number": [-(1 << 31), (1 << 31) - 1],
    "long": [-(1 << 63), (1 << 63) - 1, 0],
    "float": [0.0, -0.0, 1.401298464324817e-45, 3.4028234663852886e38, 0.1, 16_777_217.0],
    "double": [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 1e23, 2**53 + 1.0],
    "bytes": [b"", b"\0", bytes(range(256))],
    "day": [date(1, 1, 1), date(9999, 12, 31), _REFORM.date(), date(1970, 1, 1)],
    "time": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        _REFORM.replace(tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
    ],
    "local": [
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999_999),
        _REFORM,
        datetime(2013, 3, 31, 2, 30),
    ],
    "money": [Decimal(0), Decimal("-1e-10"), Decimal("9" * 28 + "." + "9" * 10), Decimal("1.5")],
    "price": [Decimal("999.99"), Decimal("-1.10"), Decimal("0.00")],
    "share": [Decimal("0." + "9" * 38), Decimal("1e-38")],
    "times": [[], [None], [datetime(2013, 1, 1, tzinfo=UTC), None]],
    "nested": [
        {"a": None, "t": None, "n": None},
        {"a": 1, "t": _FIRST, "n": {"d": Decimal("12345678901234567.891"), "b": b"\xff"}},
        {"a": 1, "t": _REFORM, "n": {"d": None, "b": None}},
    ],
    "structs": [[], [{"f": 0.1, "s": None}, None, {"f": None, "s": ""}]],
    "lists": [[[]], [[0.1, None], None, []]],
    "per%cent": ["%s"],
}


def events() -> pa.RecordBatch:
    """Every value above once, random ones, and in the last event nothing but nulls."""
    values = {name: [*of, *_random_values(name)] for name, of in _VALUES.items()}
    rows = 1 + max(map(len, values.values()))
    columns = {name: of + [None] * (rows - len(of)) for name, of in values.items()}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _random_values(name: str) -> list[Any]:
    chance = random.Random(name)
    make = {
        "float": lambda: struct.unpack("f", struct.pack("I", chance.getrandbits(32)))[0],
        "double": lambda: struct.unpack("d", struct.pack("Q", chance.getrandbits(64)))[0],
        "local": lambda: _FIRST + timedelta(microseconds=chance.randrange(_MICROSECONDS)),
        "day": lambda: date(1, 1, 1) + timedelta(days=chance.randrange(3_652_058)),
        "money": lambda: Decimal(chance.randrange(10**38)).scaleb(-10),
        "text": lambda: "".join(chr(chance.randrange(1, 0xD800)) for _ in range(20)),
    }
    make["time"] = lambda: make["local"]().replace(tzinfo=UTC)
    if name not in make:
        return []
    found = [make[name]() for _ in range(RANDOM)]
    return [one for one in found if not isinstance(one, float) or math.isfinite(one)]
