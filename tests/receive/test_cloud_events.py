"""CloudEvents as rows of a stream, in each content mode, and the answers to every other body."""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.receive import cloud_events
from ha_engine.receive.cloud_events import EventLines, Head, Mode, head_of
from ha_engine.receive.decode import Decoder
from tests.waiting import SLOW_HOST

ORDERS = pa.schema(
    [
        pa.field("ce_id", pa.string(), nullable=False),
        pa.field("ce_source", pa.string(), nullable=False),
        pa.field("ce_time", pa.timestamp("us", tz="UTC")),
        pa.field("ce_count", pa.string()),
        pa.field("order", pa.int64()),
        pa.field("price", pa.decimal128(9, 2)),
    ]
)
ANY = pa.schema([("ce_type", pa.string()), ("ce_data", pa.string()), ("other", pa.int64())])
BYTES = pa.schema([("ce_datacontenttype", pa.string()), ("ce_data", pa.binary())])
ROWS_MAX = 1_000
BINARY = {
    "ce-specversion": "1.0",
    "ce-id": "7",
    "ce-source": "/shop",
    "ce-type": "order",
    "content-type": "application/json",
}
EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order"}
DATA = {"order": 1, "price": "1.10"}
ROW = {"ce_id": "7", "ce_source": "/shop", "ce_time": None, "ce_count": None, "order": 1}


def head(headers: dict[str, str]) -> Head:
    return head_of({name.encode(): value.encode() for name, value in headers.items()})


def rows(schema: pa.Schema, body: bytes, of: Head) -> list[dict[str, Any]]:
    lines = EventLines(schema, ROWS_MAX).of(body, of)
    if lines is None:
        return []
    batch = Decoder(schema, ROWS_MAX).parse(lines)
    batch.validate(full=True)
    return batch.to_pylist()  # type: ignore[no-any-return]


def binary(schema: pa.Schema, body: bytes, **headers: str) -> list[dict[str, Any]]:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return rows(schema, body, head(BINARY | more))


def structured(schema: pa.Schema, **members: Any) -> list[dict[str, Any]]:
    return rows(schema, json.dumps(EVENT | members).encode(), Head(Mode.STRUCTURED, {}))


def batch(schema: pa.Schema, *events: Any) -> list[dict[str, Any]]:
    return rows(schema, json.dumps(events).encode(), Head(Mode.BATCH, {}))


def refused(schema: pa.Schema, **members: Any) -> str:
    with pytest.raises(InvalidEvents) as refusal:
        structured(schema, **members)
    return str(refusal.value)


# -- modes -----------------------------------------------------------------------------------------


def test_each_mode_gives_the_same_row() -> None:
    at = "2013-01-01T05:15:00Z"
    members = {"data": DATA, "time": at, "count": 3, "traceparent": "00-1"}
    found = structured(ORDERS, **members)
    (row,) = found
    assert row["ce_time"] == dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)
    assert (row["ce_count"], row["order"], str(row["price"])) == ("3", 1, "1.10")
    assert binary(ORDERS, json.dumps(DATA).encode(), ce_time=at, ce_count="3") == found
    assert batch(ORDERS, EVENT | members, EVENT | members) == found * 2


def test_an_array_of_data_gives_a_row_for_each_object() -> None:
    found = structured(ORDERS, data=[DATA, DATA | {"order": 2}])
    assert [(row["ce_id"], row["order"]) for row in found] == [("7", 1), ("7", 2)]


@pytest.mark.parametrize("members", [{}, {"data": None}, {"data_base64": None}, {"data": {}}])
def test_an_event_without_data_has_its_attributes_only(members: dict[str, Any]) -> None:
    assert structured(ORDERS, **members) == [ROW | {"order": None, "price": None}]


def test_a_binary_event_without_a_body_has_its_attributes_only() -> None:
    headers = {name: value for name, value in BINARY.items() if name != "content-type"}
    assert rows(ORDERS, b"", head(headers)) == [ROW | {"order": None, "price": None}]


def test_a_batch_may_be_empty() -> None:
    assert batch(ORDERS) == []


def test_data_in_base64_is_read_as_its_content_type_says() -> None:
    encoded = base64.b64encode(json.dumps(DATA).encode()).decode()
    assert structured(ORDERS, data_base64=encoded) == structured(ORDERS, data=DATA)


def test_numbers_stay_as_they_were_written() -> None:
    body = json.dumps(EVENT | {"data": 0}).replace(": 0", ': {"price": 1234567.10}').encode()
    (row,) = rows(ORDERS, body, Head(Mode.STRUCTURED, {}))
    assert str(row["price"]) == "1234567.10"


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (-5, "-5"), ("x", "x"), (None, None)]
)
def test_an_attribute_is_its_canonical_text(value: Any, text: str | None) -> None:
    assert structured(ORDERS, count=value)[0]["ce_count"] == text


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("€", "€"),
        ('"a \\"b\\" %41"', 'a "b" A'),
        ("100%25", "100%"),
        ("a+b", "a+b"),
        ('"open', '"open'),
    ],
)
def test_a_header_is_percent_decoded_once(header: str, text: str) -> None:
    assert binary(ORDERS, b"{}", ce_count=header)[0]["ce_count"] == text


# -- the column ce_data ----------------------------------------------------------------------------


def test_ce_data_keeps_json_as_it_was_written() -> None:
    body = b'{"a": 1.10,\n "b": [null]}'
    (row,) = binary(ANY, body)
    assert row == {"ce_type": "order", "ce_data": body.decode(), "other": None}
    assert structured(ANY, data={"a": [1, None]})[0]["ce_data"] == '{"a": [1, null]}'
    assert structured(ANY)[0]["ce_data"] is None


def test_ce_data_keeps_other_content_types() -> None:
    assert binary(ANY, b"<a/>", content_type="text/xml")[0]["ce_data"] == "<a/>"
    found = structured(ANY, data="<a/>\n", datacontenttype="text/xml")
    assert found[0]["ce_data"] == "<a/>\n"


def test_binary_ce_data_keeps_any_bytes() -> None:
    raw = bytes(range(256))
    (row,) = binary(BYTES, raw, content_type="image/png")
    assert row == {"ce_datacontenttype": "image/png", "ce_data": raw}
    encoded = base64.b64encode(raw).decode()
    assert structured(BYTES, data_base64=encoded, datacontenttype="image/png") == [row]
    assert structured(BYTES, data={"a": 1})[0]["ce_data"] == b'{"a": 1}'


def test_ce_data_that_is_no_text_is_refused_by_a_string_column() -> None:
    with pytest.raises(InvalidEvents, match="declare the column ce_data as binary"):
        binary(ANY, b"\xff", content_type="image/png")


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"specversion": "0.3"}, "its specversion is '0.3', expected '1.0'"),
        ({"id": ""}, "it has no id"),
        ({"source": None}, "it has no source"),
        ({"type": None}, "it has no type"),
        ({"count": [1]}, "its attribute 'count' is [1]"),
        ({"data": 1}, "its data is no JSON object"),
        ({"data": "text"}, "its data is no JSON object"),
        ({"data": []}, "its data is an array without objects"),
        ({"data": {}, "data_base64": ""}, "both data and data_base64"),
        ({"data_base64": "*"}, "its data_base64 is not in base64"),
        ({"data_base64": 7}, "its data_base64 is not in base64"),
        ({"data_base64": "/w=="}, "byte 0 of its data is not UTF-8"),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, "its data is not JSON but 'text/xml'"),
        ({"data": {}, "datacontenttype": "text/xml"}, "its data is no string"),
        ({"data": {"order": "x"}}, "field 'order' is \"x\""),
        ({"data": {"colour": 1}}, "the stream has no field 'colour'"),
        ({"data": {"ce_id": "forged"}}, "the event has field 'ce_id' twice"),
        ({"data": {"ce_time": "2013-01-01"}}, "the event has field 'ce_time' twice"),
        ({"data": DATA, "time": "noon"}, "field 'ce_time' is \"noon\""),
        ({"data": DATA, "count": "a\0"}, "field 'ce_count' is"),
        ({"data": DATA, "count": "\ud800"}, "field 'ce_count' is"),
    ],
)
def test_a_bad_event_is_refused_with_its_reason(members: dict[str, Any], reason: str) -> None:
    assert reason in refused(ORDERS, **members)


def test_a_bad_event_of_a_batch_is_named_by_its_row() -> None:
    good = EVENT | {"data": DATA}
    for bad in (good | {"id": None}, EVENT | {"data": {"order": "x"}}):
        with pytest.raises(InvalidEvents) as refusal:
            batch(ORDERS, good, good, bad)
        assert refusal.value.row == 2


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        (b"", Mode.STRUCTURED),
        (b"[]", Mode.STRUCTURED),
        (b"{}", Mode.BATCH),
        (b"[1]", Mode.BATCH),
        (b'{"a": 1, "a": 2}', Mode.STRUCTURED),
        (b"\xff", Mode.BATCH),
        (b'{"a":' * 100_000, Mode.STRUCTURED),
        (b"[{}", Mode.BATCH),
        (b"[]]", Mode.BATCH),
    ],
)
def test_a_body_that_is_no_event_is_refused(body: bytes, mode: Mode) -> None:
    with pytest.raises(InvalidEvents):
        rows(ORDERS, body, Head(mode, {}))


@pytest.mark.parametrize("missing", ["ce-specversion", "ce-id", "ce-source", "ce-type"])
def test_headers_without_a_required_attribute_are_refused(missing: str) -> None:
    with pytest.raises(InvalidEvents, match=missing.removeprefix("ce-")):
        head({name: value for name, value in BINARY.items() if name != missing})


def test_a_header_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidEvents, match="not UTF-8"):
        head(BINARY | {"ce-count": "%ff"})


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents+avro",
        "application/cloudevents+json; charset=latin-1",
        "application/json; charset=latin-1",
    ],
)
def test_other_formats_are_not_supported(content_type: str) -> None:
    with pytest.raises(UnsupportedFormat):
        head(BINARY | {"content-type": content_type})


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        ("application/cloudevents+json; charset=UTF-8", Mode.STRUCTURED),
        ("Application/CloudEvents-Batch+JSON", Mode.BATCH),
        ("application/vnd.shop+json", Mode.BINARY),
    ],
)
def test_content_type_decides_the_mode(content_type: str, mode: Mode) -> None:
    assert head(BINARY | {"content-type": content_type}).mode is mode


def test_the_headers_of_a_binary_event_are_part_of_its_payload() -> None:
    ordered = dict(sorted(BINARY.items(), reverse=True))
    assert head(BINARY).signed == head(ordered).signed != b""
    assert head(BINARY | {"ce-id": "8"}).signed != head(BINARY).signed


def test_rows_of_a_request_are_limited() -> None:
    with pytest.raises(PayloadTooLarge):
        structured(ORDERS, data=[{}] * (ROWS_MAX + 1))
    with pytest.raises(PayloadTooLarge):
        batch(ORDERS, *[EVENT] * (ROWS_MAX + 1))


def test_rows_that_repeat_long_attributes_are_limited() -> None:
    long = "x" * (cloud_events.ROWS_BYTES_MAX // ROWS_MAX)
    with pytest.raises(PayloadTooLarge):
        structured(ORDERS, count=long, data=[{}] * ROWS_MAX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | st.sampled_from([*EVENT, "data", "time"]), JSON, max_size=6))
def test_any_object_is_decoded_or_refused(members: dict[str, Any]) -> None:
    for schema in (ORDERS, ANY, BYTES):
        try:
            found = structured(schema, **members)
        except (InvalidEvents, PayloadTooLarge):
            continue
        assert found


@given(st.binary(max_size=40), st.sampled_from([Mode.STRUCTURED, Mode.BATCH]))
def test_any_bytes_are_decoded_or_refused(body: bytes, mode: Mode) -> None:
    for candidate in (body, b"{" + body, b"[{" + body, b'{"data":' + body):
        try:
            rows(ORDERS, candidate, Head(mode, {}))
        except (InvalidEvents, PayloadTooLarge):
            continue


@given(JSON)
def test_ce_data_is_the_value_that_was_sent(value: Any) -> None:
    (row,) = structured(ANY, data=value)
    if value is None:
        assert row["ce_data"] is None
    else:
        assert json.loads(row["ce_data"]) == value


def test_a_long_quoted_header_takes_no_long_time() -> None:
    started = time.perf_counter()
    head(BINARY | {"ce-count": '"' + "\\" * 60_001})
    assert time.perf_counter() - started < 0.5 * SLOW_HOST
