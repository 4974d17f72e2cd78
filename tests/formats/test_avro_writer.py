"""Rows become Avro that this engine and another library read back, and a row that cannot says
why."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import SinkRefused
from ha_engine.formats.avro_reader import AvroInput, read_of
from ha_engine.formats.avro_schema import Record, parsed, parsed_record
from ha_engine.formats.avro_writer import RowWriter, without_nulls


def of(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, **more}]}


def record(schema: Any) -> Record:
    return parsed_record(json.dumps(schema))


def written(schema: Any, rows: pa.Table, head: bytes = b"") -> list[bytes]:
    return RowWriter(record(schema), rows.schema).values(rows, head)


def column(kind: pa.DataType, values: list[Any], *, nullable: bool = False) -> pa.Table:
    """Return a table with the column ``a``."""
    schema = pa.schema([pa.field("a", kind, nullable=nullable)])
    return pa.table([pa.array(values, kind)], schema=schema)


def read_by_engine(schema: Any, message: bytes) -> Any:
    data = AvroInput(message)
    found = read_of(parsed(schema))(data)
    assert data.left == 0
    return found


def read_by_library(schema: Any, message: bytes) -> Any:
    body = BytesIO(message)
    found = fastavro.schemaless_reader(body, fastavro.parse_schema(schema), None)
    assert not body.read()
    return found


def written_by_library(schema: Any, value: Any) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


# -- values of every pair of types -----------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A type of Avro, a column's type that fits it, and a value in the form of Arrow, of the
    engine's reader and of the library."""

    avro: Any
    arrow: pa.DataType
    value: Any
    as_json: Any
    as_python: Any


def same(value: Any) -> Any:
    return value


Form = Callable[[Any], Any]
Leaf = tuple[Any, pa.DataType, st.SearchStrategy[Any], Form, Form]


def floats(width: Any) -> st.SearchStrategy[float]:
    return st.floats(width=width, allow_nan=False).map(lambda value: value + 0.0)


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def iso(value: Any) -> str:
    return str(value.isoformat())


def truncated(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def in_zone(zone: tzinfo | None) -> Form:
    return lambda value: value.replace(tzinfo=zone)


AT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
MICROSECOND = datetime.resolution
# The range of a timestamp with nanoseconds is from 1677 to 2262.
NANOS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
TEXT = st.text(st.characters(codec="utf-8"))
SYMBOLS = ["NEW", "PAID", "SENT"]


def in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


LEAVES: list[Leaf] = [
    ("boolean", pa.bool_(), st.booleans(), same, same),
    ("int", pa.int8(), ints(8), same, same),
    ("long", pa.int16(), ints(16), same, same),
    ("int", pa.int32(), ints(32), same, same),
    ("long", pa.int64(), ints(64), same, same),
    ("float", pa.float32(), floats(32), same, same),
    ("double", pa.float32(), floats(32), same, same),
    ("double", pa.float64(), floats(64), same, same),
    ("string", pa.string(), TEXT, same, same),
    ("string", pa.large_string(), TEXT, same, same),
    (logical("string", "uuid"), pa.string(), st.uuids().map(str), same, UUID),
    ("bytes", pa.binary(), st.binary(), in_base64, same),
    (logical("int", "date"), pa.date32(), st.dates(), iso, same),
    (logical("long", "time-micros"), pa.time64("us"), st.times(), iso, same),
    (logical("int", "time-millis"), pa.time64("us"), st.times().map(truncated), iso, same),
    *(
        (
            logical("long", f"{local}timestamp-{unit}"),
            LOCAL if local else AT,
            moments.map(in_zone(zone)),
            iso,
            same,
        )
        for local, zone in (("", UTC), ("local-", None))
        for unit, moments in (("micros", st.datetimes()), ("millis", st.datetimes().map(truncated)))
    ),
]


@st.composite
def leaves(draw: st.DrawFn) -> Pair:
    kind = draw(st.sampled_from(["plain", "enum", "fixed", "uuid", "decimal", "nanos"]))
    name = f"T{draw(st.uuids()).hex}"
    match kind:
        case "enum":
            symbol = draw(st.sampled_from(SYMBOLS))
            avro = {"type": "enum", "name": name, "symbols": SYMBOLS}
            return Pair(avro, pa.string(), symbol, symbol, symbol)
        case "fixed":
            raw = draw(st.binary(max_size=40))
            avro = {"type": "fixed", "name": name, "size": len(raw)}
            return Pair(avro, pa.binary(), raw, in_base64(raw), raw)
        case "uuid":
            uuid = draw(st.uuids())
            avro = {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
            # The library reads a UUID of the type fixed as bytes.
            return Pair(avro, pa.string(), str(uuid), str(uuid), uuid.bytes)
        case "decimal":
            return draw(decimals(name))
        case "nanos":
            at = draw(NANOS).replace(tzinfo=UTC)
            form = logical("long", "timestamp-nanos")
            nanos = (at - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND * 1_000
            return Pair(form, AT, at, iso(at), nanos)
        case _:
            avro, arrow, values, as_json, as_python = draw(st.sampled_from(LEAVES))
            value = draw(values)
            return Pair(avro, arrow, value, as_json(value), as_python(value))


@st.composite
def decimals(draw: st.DrawFn, name: str) -> Pair:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    wider, finer = draw(st.integers(0, 10)), draw(st.integers(0, 5))
    unscaled = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    value = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    digits = scale + finer
    plain = f"{value:f}" + ("." if digits and not scale else "") + "0" * finer
    form: dict[str, Any] = {
        "logicalType": "decimal",
        "precision": precision + finer + wider,
        "scale": digits,
    }
    size = draw(st.none() | st.integers(23, 30))
    where: dict[str, Any] = {"type": "bytes"}
    if size is not None:
        where = {"type": "fixed", "name": name, "size": size}
    return Pair({**where, **form}, pa.decimal128(precision, scale), value, plain, value)


@st.composite
def pairs(draw: st.DrawFn, depth: int = 2, *, nullable: bool = True) -> Pair:
    kinds = ["leaf", "leaf"]
    kinds += ["array", "map", "record"] if depth else []
    kinds += ["union"] if nullable else []
    match draw(st.sampled_from(kinds)):
        case "union":
            part = draw(pairs(depth, nullable=False))
            branches = draw(st.permutations(["null", part.avro]))
            if draw(st.booleans()):
                return Pair(branches, part.arrow, None, None, None)
            return Pair(branches, part.arrow, part.value, part.as_json, part.as_python)
        case "array":
            part, count = draw(pairs(depth - 1)), draw(st.integers(0, 3))
            item = pa.field("element", part.arrow, nullable=is_nullable(part))
            form = {"type": "array", "items": part.avro}
            return Pair(form, pa.list_(item), *([one] * count for one in forms(part)))
        case "map":
            part = draw(pairs(depth - 1))
            keys = sorted(draw(st.sets(TEXT, max_size=3)), key=str.encode)
            item = pa.field("value", part.arrow, nullable=is_nullable(part))
            form = {"type": "map", "values": part.avro}
            pairs_of, *others = ([(key, one) for key in keys] for one in forms(part))
            shuffled = draw(st.permutations(pairs_of))
            return Pair(form, pa.map_(pa.string(), item), shuffled, *map(dict, others))
        case "record":
            parts = draw(st.lists(pairs(depth - 1), min_size=1, max_size=3))
            columns = [
                pa.field(f"f{n}", part.arrow, nullable=is_nullable(part))
                for n, part in enumerate(parts)
            ]
            fields = [{"name": f"f{n}", "type": part.avro} for n, part in enumerate(parts)]
            form = {"type": "record", "name": f"R{draw(st.uuids()).hex}", "fields": fields}
            of_each = zip(*map(forms, parts), strict=True)
            values = ({f"f{n}": one for n, one in enumerate(each)} for each in of_each)
            # The columns of a struct may be in another order than the fields.
            return Pair(form, pa.struct(draw(st.permutations(columns))), *values)
        case _:
            return draw(leaves())


def is_nullable(part: Pair) -> bool:
    return isinstance(part.avro, list)


def forms(part: Pair) -> tuple[Any, Any, Any]:
    return part.value, part.as_json, part.as_python


@given(pairs())
def test_value_is_written_as_the_library_does_and_read_back_as_it_was(part: Pair) -> None:
    schema = of(part.avro)
    [message] = written(schema, column(part.arrow, [part.value], nullable=is_nullable(part)))
    assert message == written_by_library(schema, {"a": part.as_python})
    assert read_by_engine(schema, message) == {"a": part.as_json}
    assert read_by_library(schema, message) == {"a": part.as_python}


def test_rows_are_in_their_order_after_the_head() -> None:
    fields = [{"name": "b", "type": "string"}, {"name": "a", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    names = [pa.field(name, kind, False) for name, kind in (("a", pa.int32()), ("b", pa.string()))]
    rows = pa.table({"a": [1, 2], "b": ["x", "y"]}).cast(pa.schema(names))
    assert written(schema, rows, b"head") == [b"head\x02x\x02", b"head\x02y\x04"]
    chunks = pa.concat_tables([rows, rows.slice(0, 0), rows])
    assert written(schema, chunks) == [b"\x02x\x02", b"\x02y\x04"] * 2


def test_equal_rows_have_equal_bytes() -> None:
    """The nodes compare batches in the canonical form, so a repeated batch may differ in these."""
    kind = pa.float64()
    zeros = written(of("double"), column(kind, [0.0, -0.0]))
    assert zeros[0] == zeros[1]
    nans = written(of("double"), column(kind, [math.nan, -math.nan, math.inf * 0]))
    assert len(set(nans)) == 1
    assert math.isnan(read_by_library(of("double"), nans[0])["a"])
    entries = [("b", 1), ("a", 2)]
    maps = column(
        pa.map_(pa.string(), pa.field("value", pa.int32(), False)), [entries, entries[::-1]]
    )
    first, second = written(of({"type": "map", "values": "int"}), maps)
    assert first == second


def test_times_beyond_the_calendar_of_python_are_written() -> None:
    micros = 1 << 62
    rows = pa.table(
        [pa.array([micros], pa.int64()).cast(AT)], schema=pa.schema([pa.field("a", AT, False)])
    )
    [message] = written(of(logical("long", "timestamp-micros")), rows)
    assert read_by_engine(of("long"), message) == {"a": micros}


# -- fields without a column -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "default", "wanted"),
    [
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["string", "null"], None, None),
        ("boolean", True, True),
        ("int", -3, -3),
        ("double", 1, 1.0),
        ("string", "é", "é"),
        ({"type": "enum", "name": "E", "symbols": SYMBOLS}, "PAID", "PAID"),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "int"}, {}, {}),
        (logical("long", "timestamp-micros"), 0, "1970-01-01T00:00:00+00:00"),
    ],
)
def test_field_without_a_column_gets_its_default(kind: Any, default: Any, wanted: Any) -> None:
    schema = of(kind, default=default)
    rows = pa.table({"x": [1, 2]}).select([])
    assert [read_by_engine(schema, one) for one in written(schema, rows)] == [{"a": wanted}] * 2


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("int", {}, "the field a without a default, and the query has no column for it"),
        (["null", "int"], {}, "the field a without a default"),
        ("int", {"default": 1 << 31}, "the default of the field a of R is not supported"),
        ("int", {"default": True}, "is not supported"),
        ("float", {"default": 1e300}, "is not supported"),
        ("double", {"default": 10**400}, "is not supported"),
        ({"type": "array", "items": "int"}, {"default": [1]}, "is not supported"),
        (of("int") | {"name": "I"}, {"default": {"a": 1}}, "is not supported"),
    ],
)
def test_field_without_a_column_and_a_default_is_refused(
    kind: Any, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(SinkRefused, match=told):
        RowWriter(record(of(kind, **more)), pa.schema([]))


# -- refusals --------------------------------------------------------------------------------------

FIXED = {"type": "fixed", "name": "F", "size": 2}
INNER = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "int"}]}


def decimal(precision: int, scale: int, **more: Any) -> dict[str, Any]:
    form = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return {**form, **more}


@pytest.mark.parametrize(
    ("kind", "arrow", "told"),
    [
        ("int", pa.int64(), "column a is int64, and its field is int; cast"),
        ("long", pa.uint64(), "is uint64"),
        ("long", pa.float64(), "is double, and its field is long"),
        ("double", pa.int32(), "is int32, and its field is double"),
        ("float", pa.float64(), "is double, and its field is float"),
        ("string", pa.int32(), "its field is string"),
        ("string", pa.binary(), "its field is string"),
        ("bytes", pa.string(), "its field is bytes"),
        ("boolean", pa.string(), "its field is boolean"),
        ("long", AT, "timestamp.*its field is long"),
        (logical("long", "timestamp-micros"), pa.int64(), "the logical type timestamp-micros"),
        (logical("long", "timestamp-micros"), LOCAL, "the logical type timestamp-micros"),
        (logical("long", "local-timestamp-micros"), AT, "local-timestamp-micros"),
        (logical("long", "timestamp-micros"), pa.timestamp("ns", "UTC"), "timestamp.ns"),
        (logical("int", "date"), AT, "the logical type date"),
        (decimal(9, 2), pa.decimal128(9, 3), "a decimal of 9 digits, 2 after the point"),
        (decimal(9, 2), pa.decimal128(10, 2), "a decimal of 9 digits"),
        (decimal(9, 2), pa.decimal128(9, 1), "a decimal of 9 digits"),
        (decimal(9, 2), pa.float64(), "is double"),
        (decimal(9, 2, type="fixed", name="F", size=3), pa.decimal128(9, 2), "too few for its"),
        (FIXED, pa.string(), "its field is the fixed F"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.int32(), "the enum E"),
        ({"type": "array", "items": "int"}, pa.string(), "its field is array"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), r"column a\[\] may be null"),
        ({"type": "map", "values": "int"}, pa.map_(pa.int32(), pa.int32()), "is map<int32"),
        (INNER, pa.struct([pa.field("c", pa.int32())]), r"no field for the column a\.c"),
        (INNER, pa.struct([]), r"record I has the field a\.b without a default"),
        (INNER, pa.struct([pa.field("b", pa.int32())]), r"the column a\.b may be null"),
        (INNER, pa.struct([pa.field("b", pa.int64(), False)]), r"column a\.b is int64"),
        (["null", "int"], pa.string(), "column a is string, and its field is int"),
        (["null"], pa.string(), "the field of the column a has only null"),
    ],
)
def test_column_that_does_not_fit_its_field_is_refused_before_the_query_runs(
    kind: Any, arrow: pa.DataType, told: str
) -> None:
    with pytest.raises(SinkRefused, match=told):
        RowWriter(record(of(kind)), pa.schema([pa.field("a", arrow, False)]))


def test_column_that_may_be_null_needs_a_union_with_null() -> None:
    nullable = pa.schema([pa.field("a", pa.int32())])
    for kind in ("int", ["int", "string"]):
        with pytest.raises(SinkRefused, match=r"the column a may be null.*coalesce"):
            RowWriter(record(of(kind)), nullable)
        RowWriter(record(of(kind)), without_nulls(nullable))
    RowWriter(record(of(["int", "null"])), nullable)
    RowWriter(record(of(["null", "int"])), pa.schema([pa.field("a", pa.null())]))


def test_column_that_the_record_lacks_is_refused() -> None:
    fields = [pa.field("a", pa.int32(), False), pa.field("b", pa.int32(), False)]
    with pytest.raises(SinkRefused, match="the record R has no field for the column b"):
        RowWriter(record(of("int")), pa.schema(fields))
    with pytest.raises(SinkRefused, match="two columns are named a"):
        RowWriter(record(of("int")), pa.schema(fields[:1] * 2))


def test_first_branch_of_a_union_that_fits_is_taken() -> None:
    kind = ["null", "string", "int", "long"]
    assert written(of(kind), column(pa.int16(), [1])) == [b"\x04\x02"]
    assert written(of(kind), column(pa.int64(), [1])) == [b"\x06\x02"]


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "told"),
    [
        ("int", pa.int32(), None, "the column a is null, and its field may not be"),
        (["int"], pa.int32(), None, "the column a is null"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [None], r"a\[\] is null"),
        (INNER, pa.struct([pa.field("b", pa.int32())]), {"b": None}, r"the column a\.b is null"),
        (FIXED, pa.binary(), b"123", "has 3 bytes, and the fixed type F 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string(), "B", "is 'B', no symbol"),
        (logical("string", "uuid"), pa.string(), "1", "is '1', which is no UUID"),
        (
            logical("long", "timestamp-millis"),
            AT,
            datetime(2013, 1, 1, 0, 0, 0, 1, UTC),
            "only milliseconds; truncate",
        ),
        (logical("int", "time-millis"), pa.time64("us"), time(0, 0, 0, 1), "only milliseconds"),
        (logical("long", "timestamp-nanos"), AT, datetime(2500, 1, 1), "out of range"),
        (
            {"type": "map", "values": "int"},
            pa.map_(pa.string(), pa.int32()),
            [("a", 1), ("a", 2)],
            "the map a has a key twice",
        ),
    ],
)
def test_row_that_does_not_fit_is_refused(
    kind: Any, arrow: pa.DataType, value: Any, told: str
) -> None:
    rows = column(arrow, [value], nullable=True)
    writer = RowWriter(record(of(kind)), without_nulls(rows.schema))
    with pytest.raises(SinkRefused, match=f"a row does not fit the Avro schema: .*{told}"):
        writer.values(rows, b"")


def test_date_before_the_epoch_is_written() -> None:
    [message] = written(of(logical("int", "date")), column(pa.date32(), [date(1969, 12, 31)]))
    assert message == b"\x01"
