"""Bodies in Arrow's stream format: the same rules as for JSON; no body ends the process or fills
its memory."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.errors import InvalidEvents, PayloadTooLarge
from ha_engine.receive.decode import Decoder, Format, format_of

ELEMENT = pa.struct([("x", pa.int32()), ("raw", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("small", pa.int16()),
        pa.field("f", pa.float64()),
        pa.field("f32", pa.float32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("days", pa.list_(pa.field("element", pa.date32()))),
        pa.field("places", pa.list_(pa.field("element", ELEMENT))),
    ]
)
DECODER = Decoder(SCHEMA, 1_000)
AT = dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)


def body_of(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=settings) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def batch_of(**columns: Any) -> pa.RecordBatch:
    """Return a batch of the columns, with a default ``k``."""
    length = len(next(iter(columns.values()))) if columns else 1
    return pa.RecordBatch.from_pydict({"k": ["a"] * length} | columns)


def read(*batches: pa.RecordBatch) -> list[dict[str, Any]]:
    batch = DECODER.decode(body_of(*batches), Format.ARROW)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    return batch.to_pylist()  # type: ignore[no-any-return]


def refused(body: bytes | pa.RecordBatch) -> InvalidEvents:
    body = body if isinstance(body, bytes) else body_of(body)
    with pytest.raises(InvalidEvents) as refusal:
        DECODER.decode(body, Format.ARROW)
    return refusal.value


def test_content_type_selects_the_arrow_format() -> None:
    assert format_of("application/vnd.apache.arrow.stream") is Format.ARROW


def test_rows_of_several_batches_keep_their_order() -> None:
    seen = read(batch_of(n=[1, 2]), batch_of(n=[3]))
    assert [row["n"] for row in seen] == [1, 2, 3]


def test_columns_match_by_name_and_a_missing_one_is_null() -> None:
    assert read(pa.RecordBatch.from_pydict({"n": [1], "k": ["a"]})) == [
        dict.fromkeys(SCHEMA.names) | {"k": "a", "n": 1}
    ]


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("n", pa.array([1, None], pa.uint8()), [1, None]),
        ("small", pa.array([-(2**15), 2**15 - 1], pa.int64()), [-(2**15), 2**15 - 1]),
        ("f", pa.array([1, 2], pa.int32()), [1.0, 2.0]),
        ("f32", pa.array([0.5, None], pa.float64()), [0.5, None]),
        ("k", pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        ("at", pa.array([AT.replace(tzinfo=None)], pa.timestamp("ns")), [AT]),
        ("at", pa.array([AT], pa.timestamp("s", tz="America/New_York")), [AT]),
        ("day", pa.array([AT.date()], pa.date64()), [AT.date()]),
        ("price", pa.array([Decimal("1.1")], pa.decimal128(38, 1)), [Decimal("1.10")]),
        ("n", pa.nulls(2), [None, None]),
        ("days", pa.array([None, [AT.date(), None]], pa.large_list(pa.date32())), None),
        ("places", pa.array([None, [None, {"x": 1, "raw": b"hi"}]]), None),
    ],
)
def test_column_of_another_type_is_accepted_when_no_value_is_lost(
    name: str, given: pa.Array, stored: list[Any] | None
) -> None:
    seen = [row[name] for row in read(batch_of(**{name: given}))]
    assert seen == (given.to_pylist() if stored is None else stored)


def test_fields_of_a_struct_match_by_name() -> None:
    given = pa.array([[{"raw": b"hi"}]], pa.list_(pa.struct([("raw", pa.binary())])))
    assert read(batch_of(places=given))[0]["places"] == [{"x": None, "raw": b"hi"}]


BAD_COLUMNS = [
    ({"n": ["1"]}, "column 'n' is string, and the stream declares int64"),
    ({"n": [1.0]}, "column 'n' is double, and the stream declares int64"),
    ({"n": [True]}, "column 'n' is bool"),
    ({"k": pa.array(["a"]).dictionary_encode()}, "column 'k' is dictionary<"),
    ({"k": pa.array(["a"], pa.string_view())}, "column 'k' is string_view"),
    ({"f": pa.array([1], pa.decimal128(5, 2))}, "column 'f' is decimal128(5, 2)"),
    (
        {"at": ["2013-01-01"]},
        "column 'at' is string, and the stream declares timestamp[us, tz=UTC]",
    ),
    ({"local": pa.array([AT])}, "column 'local' is timestamp[us, tz=UTC]"),
    ({"days": [AT.date()]}, "column 'days' is date32[day], and the stream declares list<"),
    ({"places": [[{"y": 1}]]}, "column 'places' is list<"),
    ({"nn": [1]}, "the stream has no field 'nn'; did you mean 'n'?"),
]


@pytest.mark.parametrize(("columns", "reason"), BAD_COLUMNS)
def test_column_of_an_incompatible_type_is_refused(columns: dict[str, Any], reason: str) -> None:
    refusal = refused(batch_of(**columns))
    assert refusal.row is None
    assert reason in refusal.reason


def test_missing_or_repeated_column_is_refused() -> None:
    missing = refused(pa.RecordBatch.from_pydict({"n": [1]}))
    assert missing.reason == "field 'k' is missing, but the stream declares it not null"
    twice = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["k", "k"])
    assert "two columns have the same name: k, k" in refused(twice).reason


BAD_VALUES = [
    ("k", None, "field 'k' is null, but the stream declares it not null"),
    ("k", "a\0", "U+0000 and lone surrogates cannot be stored"),
    ("small", 2**15, "field 'small' is 32768, expected a whole number of 16 bits"),
    ("f", float("nan"), "field 'f' is NaN, expected a finite number"),
    ("f", float("-inf"), "field 'f' is -Infinity, expected a finite number"),
    ("f32", 1e39, "expected a finite number of 32 bits"),
    ("price", Decimal("1.234"), "a number with at most 8 digits before and 2 after the point"),
    ("price", Decimal("123456789"), "a number with at most 8 digits before and 2 after"),
    ("at", pa.scalar(1, pa.timestamp("ns")), "with at most 6 fractional digits"),
    ("at", pa.scalar(2**60, pa.timestamp("us")), "field 'at' is"),
    ("day", pa.scalar(2**30, pa.date32()), "field 'day' is"),
    ("days", [pa.scalar(2**30, pa.date32())], "expected an array, each element a date"),
]


@pytest.mark.parametrize(("name", "value", "reason"), BAD_VALUES)
def test_a_bad_value_is_refused_with_its_row_and_a_reason(
    name: str, value: Any, reason: str
) -> None:
    match value:
        case pa.Scalar():
            column = pa.concat_arrays([pa.nulls(3, value.type), pa.repeat(value, 2)])
        case [pa.Scalar() as element]:
            values = pa.repeat(element, 2)
            column = pa.ListArray.from_arrays(pa.array([0, 0, 0, 0, 1, 2]), values)
        case _:
            good = "a" if isinstance(value, str | None) else type(value)(1)
            column = pa.array([good, good, good, value, value])
    refusal = refused(batch_of(**{name: column}))
    assert refusal.row == 3
    assert reason in refusal.reason


def test_more_rows_than_a_record_holds_are_refused() -> None:
    half = batch_of(n=[1] * 501)
    with pytest.raises(PayloadTooLarge, match="at most 1000 events"):
        DECODER.decode(body_of(half, half), Format.ARROW)


@pytest.mark.parametrize("body", [b"", body_of(batch_of(n=pa.array([], pa.int64())))])
def test_an_empty_body_is_refused(body: bytes) -> None:
    assert "the body is empty" in refused(body).reason


@pytest.mark.parametrize(
    "body", [b"abc", b'{"k":"a"}', b"\xff\xff\xff\xff\0\0\0\0", body_of(batch_of())[:-20]]
)
def test_body_that_is_no_arrow_stream_is_refused(body: bytes) -> None:
    assert "not in Arrow's stream format" in refused(body).reason


def test_bytes_behind_the_end_are_refused() -> None:
    assert "bytes after the end" in refused(body_of(batch_of()) + b"x").reason


# -- bodies that would take more memory than they have bytes ---------------------------------------


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_are_read(codec: str) -> None:
    packed = body_of(batch_of(k=["a" * 10_000]), compression=codec)
    assert "are compressed" in refused(packed).reason


@pytest.mark.parametrize("element", [pa.struct([]), pa.null()])
def test_a_list_of_elements_without_bytes_is_refused(element: pa.DataType) -> None:
    bare = pa.Array.from_buffers(element, 1 << 30, [None])
    bomb = pa.ListArray.from_arrays(pa.array([0, 1 << 30], pa.int32()), bare)
    assert "more than 1000000 elements" in refused(batch_of(places=bomb)).reason


def test_elements_without_bytes_count_over_all_batches_of_a_body() -> None:
    bare = pa.Array.from_buffers(pa.null(), 400_000, [None])
    places = pa.ListArray.from_arrays(pa.array([0, 400_000], pa.int32()), bare)
    body = body_of(*[batch_of(places=places)] * 3)
    assert "more than 1000000 elements" in refused(body).reason


def test_damaged_body_is_refused_and_does_no_harm() -> None:
    places = pa.array([None, [None, {"x": 1, "raw": b"hi"}]], SCHEMA.field("places").type)
    good = body_of(
        batch_of(
            f=pa.array([1, None], pa.int32()),
            at=pa.array([AT, None], pa.timestamp("ns", tz="Europe/Vienna")),
            price=[Decimal("1.10")] * 2,
            days=pa.array([None, [AT.date()]], pa.large_list(pa.date64())),
            places=places,
        )
    )
    chance = random.Random(1)
    for _ in range(3_000):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(good))] = chance.choice(
                [0, 1, 127, 255, chance.randrange(256)]
            )
        try:
            DECODER.decode(bytes(damaged), Format.ARROW).validate(full=True)
        except (InvalidEvents, PayloadTooLarge) as refusal:
            assert str(refusal)  # noqa: PT017
