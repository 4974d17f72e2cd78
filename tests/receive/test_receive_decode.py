"""The decoding of events, and the answers to every other body."""

from __future__ import annotations

import datetime as dt
import json
import time
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import ApplicationError, InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.receive.decode import Decoder, Format, format_of
from tests.waiting import SLOW_HOST

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
        pa.field("yes", pa.bool_()),
        pa.field("raw", pa.binary()),
        pa.field("days", pa.list_(pa.field("element", pa.date32()))),
        pa.field("place", pa.struct([("x", pa.int32()), ("raw", pa.binary())])),
    ]
)
DECODER = Decoder(SCHEMA, 1_000)
TEXTS = (Format.NDJSON, Format.JSON)
UTC = dt.UTC


def rows(body: bytes, form: Format = Format.NDJSON) -> list[dict[str, Any]]:
    batch = DECODER.decode(body, form)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    return batch.to_pylist()  # type: ignore[no-any-return]


def one(**fields: Any) -> bytes:
    return json.dumps({"k": "a", **fields}).encode()


def refused(body: bytes, form: Format = Format.NDJSON) -> InvalidEvents:
    with pytest.raises(InvalidEvents) as refusal:
        DECODER.decode(body, form)
    return refusal.value


def test_every_type_of_a_stream_is_read() -> None:
    body = one(
        n=-(2**63),
        small=1,
        f=1,
        f32=0.5,
        at="2013-01-01T05:15:00+01:00",
        local="2013-01-01 05:15:00.123456",
        day="2013-01-01",
        price="1.10",
        yes=True,
        raw="aGk=",
        days=["2013-01-02", None],
        place={"x": 1, "raw": "aGk="},
    )
    assert rows(body) == [
        {
            "k": "a",
            "n": -(2**63),
            "small": 1,
            "f": 1.0,
            "f32": 0.5,
            "at": dt.datetime(2013, 1, 1, 4, 15, tzinfo=UTC),
            "local": dt.datetime(2013, 1, 1, 5, 15, 0, 123456),
            "day": dt.date(2013, 1, 1),
            "price": Decimal("1.10"),
            "yes": True,
            "raw": b"hi",
            "days": [dt.date(2013, 1, 2), None],
            "place": {"x": 1, "raw": b"hi"},
        }
    ]


def test_a_missing_field_and_a_null_are_the_same() -> None:
    assert rows(b'{"k":"a"}') == rows(json.dumps(dict.fromkeys(SCHEMA.names) | {"k": "a"}).encode())


def test_the_order_of_fields_does_not_matter() -> None:
    assert rows(b'{"n":1,"k":"a"}') == rows(b'{"k":"a","n":1}')


def test_a_timestamp_without_a_zone_is_utc() -> None:
    assert rows(one(at="2013-01-01T05:15:00"))[0]["at"] == dt.datetime(
        2013, 1, 1, 5, 15, tzinfo=UTC
    )


@pytest.mark.parametrize("written", ["12.30", '"12.30"', "12.3", "1.23e1", '"12.300"'])
def test_a_decimal_is_exact(written: str) -> None:
    assert rows(b'{"k":"a","price":%s}' % written.encode())[0]["price"] == Decimal("12.30")


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=12, min_value=-(10**30), max_value=10**30
    )
)
def test_a_decimal_is_stored_as_written_or_refused(value: Decimal) -> None:
    schema = pa.schema([("wide", pa.decimal128(38, 10))])
    try:
        batch = Decoder(schema, 1).decode(b'{"wide":"%s"}' % str(value).encode(), Format.NDJSON)
    except InvalidEvents:
        with localcontext(prec=80):
            assert value % Decimal("1e-10") != 0 or abs(value) >= 10**28
    else:
        batch.validate(full=True)
        assert batch.to_pylist() == [{"wide": value}]


def test_ndjson_may_have_blank_lines_and_windows_line_ends() -> None:
    assert [row["k"] for row in rows(b'\n{"k":"a"}\r\n\r\n {"k":"b"} \n\n')] == ["a", "b"]


@pytest.mark.parametrize(
    "body", [b'{"k":"a"}', b' [ {"k":"a"} ] ', b'[{"k":\n"a"}\n]', b'{\r\n"k":"a"\r\n}\n']
)
def test_json_is_an_array_of_objects_or_one_object(body: bytes) -> None:
    assert [row["k"] for row in rows(body, Format.JSON)] == ["a"]


def test_numbers_in_a_json_array_keep_their_exact_form() -> None:
    body = b'[{"k":"a","n":9223372036854775807,"price":12345678.90},{"k":"b","f":1e-7}]'
    first, second = rows(body, Format.JSON)
    assert (first["n"], first["price"]) == (2**63 - 1, Decimal("12345678.90"))
    assert second["f"] == 1e-7


BAD_EVENTS = {
    "null": "an event must be a JSON object",
    "1": "an event must be a JSON object",
    '["a"]': "an event must be a JSON object",
    "{}": "field 'k' is missing, but the stream declares it not null",
    '{"k":null}': "field 'k' is null, but the stream declares it not null",
    '{"k":1}': "field 'k' is 1, expected a string",
    '{"k":true}': "field 'k' is true, expected a string",
    '{"k":"a","n":"1"}': "field 'n' is \"1\", expected a whole number of 64 bits",
    '{"k":"a","n":1.0}': "field 'n' is 1.0, expected a whole number",
    '{"k":"a","n":1e2}': "field 'n' is 1e2, expected a whole number",
    '{"k":"a","n":true}': "field 'n' is true, expected a whole number",
    '{"k":"a","n":9223372036854775808}': "field 'n' is 9223372036854775808, expected",
    '{"k":"a","n":%s}' % ("9" * 5000): "field 'n' is 9999",
    '{"k":"a","small":32768}': "field 'small' is 32768, expected a whole number of 16 bits",
    '{"k":"a","nn":1}': "the stream has no field 'nn'; did you mean 'n'?",
    '{"k":"a","zzzzz":1}': "the stream has no field 'zzzzz'; it has k, n",
    '{"k":"a","place":{"y":1}}': "the stream has no field 'place.y'; it has x, raw",
    '{"k":"a","k":"b"}': "the event has field 'k' twice",
    '{"k":"a","f":NaN}': "field 'f' is NaN, expected a finite number",
    '{"k":"a","f":Infinity}': "field 'f' is Infinity, expected a finite number",
    '{"k":"a","f":-Infinity}': "field 'f' is -Infinity, expected a finite number",
    '{"k":"a","f":"1"}': "field 'f' is \"1\", expected a finite number",
    '{"k":"a","f":1e999}': "field 'f' is 1e999, expected a finite number",
    '{"k":"a","f32":1e39}': "field 'f32' is 1e39, expected a finite number of 32 bits",
    '{"k":"a","at":"2013-02-30T00:00:00Z"}': "field 'at' is",
    '{"k":"a","at":"2013-01-01T00:00:00.1234567Z"}': "at most 6 fractional digits",
    '{"k":"a","at":"0000-06-01T00:00:00Z"}': "a year from 1 to 9999",
    '{"k":"a","at":"0001-01-01T00:00:00+01:00"}': "a year from 1 to 9999",
    '{"k":"a","at":"9999-12-31T23:59:59-01:00"}': "a year from 1 to 9999",
    '{"k":"a","day":"0000-01-01"}': "a year from 1 to 9999",
    '{"k":"a","days":["0000-01-01"]}': "a year from 1 to 9999",
    '{"k":"a","at":1357016400}': "field 'at' is 1357016400, expected a timestamp such as",
    '{"k":"a","day":"2013-02-30"}': "field 'day' is \"2013-02-30\", expected a date such as",
    '{"k":"a","day":15706}': "field 'day' is 15706, expected a date such as",
    '{"k":"a","price":1.234}': "a number with at most 8 digits before and 2 after the point",
    '{"k":"a","price":123456789}': "field 'price' is 123456789, expected a number with at most",
    '{"k":"a","yes":1}': "field 'yes' is 1, expected true or false",
    '{"k":"a","raw":"?"}': "field 'raw' is \"?\", expected a string in base64",
    '{"k":"a","days":["x"]}': "expected an array, each element a date such as",
    '{"k":"a","place":{"x":"1"}}': "expected an object with the fields x, raw",
    '{"k":"a\\u0000"}': "U+0000 and lone surrogates cannot be stored",
    '{"k":"\\ud800"}': "field 'k' is \"\\ud800\", expected a string",
    '{"k":"a","n":1,"raw":"\\udfff"}': "field 'raw' is \"\\udfff\", expected a string in base64",
    '{"k":"a","n":1,"days":["2013-01-01","\\ud800"]}': "field 'days' is [\"2013-01-01\", ",
    '{"k":"a","n":1,"place":{"x":1e999}}': "field 'place' is {\"x\": ",
    '{"k":"a"} {"k":"b"}': "not valid JSON: Extra data at column 11",
    '{"k":"a"}null': "not valid JSON: Extra data",
    '{"k":"a"': "not valid JSON: Expecting ',' delimiter",
    '{"k":"a",}': "not valid JSON",
    "{'k':'a'}": "not valid JSON",
    '\ufeff{"k":"a"}': "not valid JSON: Unexpected UTF-8 BOM",
}


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_a_bad_event_is_refused_with_its_row_and_a_reason(event: str) -> None:
    body = b"\n".join([b'{"k":"ok"}', b"", b'{"k":"ok"}', event.encode(), b'{"k":"ok"}'])
    refusal = refused(body)
    assert refusal.row == 2
    assert BAD_EVENTS[event] in refusal.reason
    assert refused(event.encode()).row == 0


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_a_bad_event_in_an_array_is_refused_with_its_row(event: str) -> None:
    after = 2 if "Extra data" in BAD_EVENTS[event] else 1  # a comma is missing before the next row
    assert refused(f'[{{"k":"ok"}},{event}]'.encode(), Format.JSON).row == after


def test_text_that_looks_like_a_bad_number_is_accepted_in_a_string() -> None:
    assert rows(b'{"k":"NaN null Infinity"}')[0]["k"] == "NaN null Infinity"


@pytest.mark.parametrize("body", [b"", b" ", b"\r\n\n"])
@pytest.mark.parametrize("form", TEXTS)
def test_an_empty_body_is_refused(body: bytes, form: Format) -> None:
    assert "the body is empty" in refused(body, form).reason


@pytest.mark.parametrize(
    "body",
    [b"[]", b"[", b'[{"k":"a"}', b'[{"k":"a"},]', b'[{"k":"a"}] x', b'{"k":"a"}{', b"1"],
)
def test_body_that_is_not_json_events_is_refused(body: bytes) -> None:
    refused(body, Format.JSON)


def test_invalid_utf8_is_refused_with_its_row() -> None:
    refusal = refused(b'{"k":"a"}\n{"k":"\xff"}')
    assert (refusal.row, refusal.reason) == (1, "not valid UTF-8")
    assert "byte 7" in refused(b'[{"k":"\xff"}]', Format.JSON).reason


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("start", [b"[", b'{"k":', b'{"k":"a","days":[', b'{"k":"a","x":['])
def test_two_mebibytes_of_nesting_are_refused_at_once(start: bytes, form: Format) -> None:
    started = time.thread_time()
    refused(start * ((2 << 20) // len(start)), form)
    assert time.thread_time() - started < SLOW_HOST


def test_more_rows_than_a_record_holds_are_refused() -> None:
    body = b'{"k":"a"}\n' * 1_001
    with pytest.raises(PayloadTooLarge, match="at most 1000 events"):
        DECODER.decode(body, Format.NDJSON)
    with pytest.raises(PayloadTooLarge, match="at most 1000 events"):
        DECODER.decode(b"[" + b",".join([b'{"k":"a"}'] * 1_001) + b"]", Format.JSON)


def test_several_bodies_parsed_together_equal_each_parsed_alone() -> None:
    bodies = [b'{"k":"a"}', b'{"k":"b","n":1}\n{"k":"c"}', b'{"k":"d"}\n']
    lines = [DECODER.lines(body, Format.NDJSON) for body in bodies]
    together = DECODER.parse_together(lines)
    assert together == [DECODER.decode(body, Format.NDJSON) for body in bodies]


@pytest.mark.parametrize("bad", [b'{"k":1}', b'{"k":"a"}{"k":"b"}', b"null", b'{"k":"a"'])
def test_bad_body_does_not_affect_the_others(bad: bytes) -> None:
    bodies = [b'{"k":"a"}', bad, b'{"k":"b"}']
    assert DECODER.parse_together([DECODER.lines(body, Format.NDJSON) for body in bodies]) is None


def test_stream_type_without_a_json_form_is_refused_at_start() -> None:
    with pytest.raises(ApplicationError, match="column 'm' of type map"):
        Decoder(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]), 1)


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("application/x-ndjson", Format.NDJSON),
        ("Application/JSON; charset=UTF-8", Format.JSON),
        ("application/jsonl", Format.NDJSON),
    ],
)
def test_the_content_type_names_the_format(content_type: str, form: Format) -> None:
    assert format_of(content_type) is form


@pytest.mark.parametrize(
    "content_type", ["", "text/csv", "application/json; charset=latin-1", "application/xml"]
)
def test_another_content_type_is_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedFormat):
        format_of(content_type)


EVENTS = st.fixed_dictionaries(
    {"k": st.text().filter(lambda text: "\0" not in text)},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "yes": st.none() | st.booleans(),
        "place": st.none() | st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1)}),
    },
)


@given(st.lists(EVENTS, min_size=1), st.sampled_from(TEXTS), st.booleans())
def test_events_survive_a_round_trip(
    events: list[dict[str, Any]], form: Format, ascii_only: bool
) -> None:
    texts = [json.dumps(event, ensure_ascii=ascii_only) for event in events]
    body = "\n".join(texts) if form is Format.NDJSON else json.dumps(events)
    for event, row in zip(events, rows(body.encode(), form), strict=True):
        place = event.get("place")
        expected = event | ({"place": place | {"raw": None}} if place else {})
        assert row == {name: expected.get(name) for name in SCHEMA.names}


@given(st.binary() | st.text(alphabet='{}[]":,\n knul1').map(str.encode), st.sampled_from(TEXTS))
def test_any_bytes_are_decoded_or_refused(body: bytes, form: Format) -> None:
    try:
        rows(body, form)
    except InvalidEvents as refusal:
        assert refusal.reason  # noqa: PT017
