"""The records of a request: values that the engine itself reads back exactly, keys and headers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from ha_engine.errors import InvalidEvents
from ha_engine.receive.decode import Decoder, Format
from ha_engine.receiver.records import ENVELOPE_BYTES, Records, records_of, require_fit
from ha_engine.types import Submission
from tests.receiver.event_values import SCHEMA, events

ROWS = pa.RecordBatch.from_pydict(
    {"a": ["x", None, 'q"'], "b": pa.array([1, 2, None], pa.int64()), "c": [0.5, -0.0, 1e300]}
)


def test_values_are_read_back_exactly() -> None:
    rows = events()
    written = records_of(rows, None, None)
    assert written.keys is None
    read = Decoder(SCHEMA, len(written.values)).decode(b"\n".join(written.values), Format.NDJSON)
    assert read.equals(rows)
    assert str(read.to_pylist()) == str(rows.to_pylist())  # -0.0 equals 0.0, and is another value


def test_each_value_is_an_object_with_every_column() -> None:
    for value in records_of(events(), None, None).values:
        assert list(json.loads(value)) == SCHEMA.names


def test_the_key_has_the_columns_in_the_order_of_the_option() -> None:
    assert records_of(ROWS, ("a",), None).keys == [b'{"a":"x"}', b'{"a":null}', b'{"a":"q\\""}']
    of_two = records_of(ROWS, ("b", "a"), None).keys
    assert of_two == [b'{"b":1,"a":"x"}', b'{"b":2,"a":null}', b'{"b":null,"a":"q\\""}']


def test_headers_identify_each_event_of_an_idempotent_request() -> None:
    records = records_of(ROWS, None, Submission("till", 7, "digest", 3))
    assert records.headers_of(2) == [
        ("ha-producer", b"till"),
        ("ha-sequence", b"7"),
        ("ha-row", b"2"),
    ]
    assert records_of(ROWS, None, None).headers_of(2) == []


def test_headers_fit_into_their_reserve() -> None:
    records = Records([b"{}"], None, records_of(ROWS, None, _longest()).headers)
    headers = records.headers_of(19_999)
    frame, header = 100, 10  # a batch of one record, and the lengths of a header
    size = sum(len(name) + len(value) + header for name, value in headers)
    assert frame + size <= ENVELOPE_BYTES


def _longest() -> Submission:
    return Submission("p" * 128, (1 << 63) - 1, "digest", 3)


def test_an_event_that_is_too_large_is_named() -> None:
    records = Records([b"x", b"x" * 1_000, b"x" * 2_000], [b"", b"k", b""], [])
    require_fit(records, ENVELOPE_BYTES + 2_000)
    with pytest.raises(InvalidEvents) as caught:
        require_fit(records, ENVELOPE_BYTES + 1_000)
    assert caught.value.row == 1
    assert caught.value.reason.startswith("the event has 1001 bytes as a record")
    assert records.size == 3_002
