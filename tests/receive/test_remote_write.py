"""The decoding of Prometheus remote write, and the answers to every other body."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.receive import remote_write
from ha_engine.receive.remote_write import FIELDS_MAX, Message, RemoteWriteDecoder, message_of
from tests.receive.remote_write import Series, of_bytes, varint, version_1, version_2
from tests.waiting import SLOW_HOST

SCHEMA = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.string(), nullable=False),
        pa.field("label_job", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("non_finite", pa.string()),
        pa.field("comment", pa.string()),
    ]
)
ROWS_MAX = 1_000
DECODER = RemoteWriteDecoder(SCHEMA, ROWS_MAX)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UP = [("__name__", "up"), ("instance", "a:1"), ("job", "node")]
(STALE,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))
ENCODERS: dict[Message, Callable[[Iterable[Series]], bytes]] = {
    Message.WRITE_REQUEST: version_1,
    Message.REQUEST_2: version_2,
}
BOTH = pytest.mark.parametrize("message", list(Message))


def rows(
    series: Iterable[Series], message: Message = Message.WRITE_REQUEST
) -> list[dict[str, Any]]:
    batch = DECODER.decode(ENCODERS[message](series), message)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    return batch.to_pylist()  # type: ignore[no-any-return]


def refused(body: bytes, message: Message = Message.WRITE_REQUEST) -> InvalidEvents:
    with pytest.raises(InvalidEvents) as refusal:
        DECODER.decode(body, message)
    return refusal.value


def too_large(body: bytes, message: Message = Message.WRITE_REQUEST) -> str:
    with pytest.raises(PayloadTooLarge) as refusal:
        DECODER.decode(body, message)
    return str(refusal.value)


@BOTH
def test_each_sample_is_a_row_with_the_labels_of_its_series(message: Message) -> None:
    ours = Series(UP, [(1.0, 1_500), (0.0, -1)])
    other = Series([("__name__", "x"), ("z", "ä"), ("a", '"')], [(2.5, 0)])
    found = rows([ours, other], message)
    up = {"metric": "up", "labels": '{"instance":"a:1","job":"node"}', "label_job": "node"}
    empty = {"non_finite": None, "comment": None}
    assert found == [
        up | empty | {"time": EPOCH + dt.timedelta(milliseconds=1_500), "value": 1.0},
        up | empty | {"time": EPOCH - dt.timedelta(milliseconds=1), "value": 0.0},
        empty
        | {
            "metric": "x",
            "labels": '{"a":"\\"","z":"ä"}',
            "label_job": None,
            "time": EPOCH,
            "value": 2.5,
        },
    ]


@BOTH
def test_a_value_that_is_no_finite_number_is_null_and_named(message: Message) -> None:
    values = [math.nan, math.inf, -math.inf, STALE, 1.0]
    found = rows([Series(UP, [(value, 0) for value in values])], message)
    assert [row["value"] for row in found] == [None, None, None, None, 1.0]
    assert [row["non_finite"] for row in found] == ["NaN", "Infinity", "-Infinity", "stale", None]


@BOTH
def test_a_label_with_an_empty_value_counts_as_absent(message: Message) -> None:
    (row,) = rows([Series([*UP[:2], ("job", "")], [(1.0, 0)])], message)
    assert (row["label_job"], row["labels"]) == (None, '{"instance":"a:1"}')


@BOTH
def test_unsorted_labels_give_the_same_text(message: Message) -> None:
    assert rows([Series(UP[::-1], [(1.0, 0)])], message) == rows([Series(UP, [(1.0, 0)])], message)


def test_a_request_without_samples_has_no_rows() -> None:
    assert rows([]) == rows([Series(UP)]) == []
    assert DECODER.decode(version_1([], metadata=True), Message.WRITE_REQUEST).num_rows == 0


@BOTH
def test_unknown_fields_exemplars_and_metadata_are_not_stored(message: Message) -> None:
    exemplar = 3 if message is Message.WRITE_REQUEST else 4
    other = (
        of_bytes(exemplar, b"\x11\0\0\0\0\0\0\0\0") + of_bytes(9, b"x") + varint(77 << 3) + b"\1"
    )
    assert len(rows([Series(UP, [(1.0, 0)], other=other)], message)) == 1


@BOTH
def test_native_histograms_are_refused_by_name(message: Message) -> None:
    series = [Series(UP, [(1.0, 0)]), Series(UP, histograms=1)]
    refusal = refused(ENCODERS[message](series), message)
    assert refusal.row == 1
    assert "send_native_histograms" in refusal.reason


# -- streams ---------------------------------------------------------------------------------------


def with_column(name: str, kind: pa.DataType | None, *, nullable: bool = True) -> pa.Schema:
    """The schema with this column; without it if ``kind`` is None."""
    others = [one for one in SCHEMA if one.name != name]
    return pa.schema(others if kind is None else [*others, pa.field(name, kind, nullable)])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (with_column("time", None), "has no column 'time'"),
        (with_column("value", None), "has no column 'value'"),
        (with_column("value", pa.float64(), nullable=False), "'value' is null for some"),
        (with_column("non_finite", pa.string(), nullable=False), "'non_finite' is null for some"),
        (with_column("value", pa.int64()), "'value' is int64, and samples have double"),
        (with_column("time", pa.timestamp("us")), "'time' is timestamp[us], and samples have"),
        (with_column("labels", pa.int64()), "'labels' is int64, and samples have string"),
        (with_column("host", pa.string(), nullable=False), "no sample of Prometheus has"),
    ],
)
def test_a_stream_of_another_shape_takes_no_request_at_all(schema: pa.Schema, reason: str) -> None:
    with pytest.raises(InvalidEvents, match=reason.replace("[", r"\[").replace("]", r"\]")):
        RemoteWriteDecoder(schema, ROWS_MAX).decode(b"", Message.WRITE_REQUEST)


def test_a_stream_may_have_no_more_than_time_and_value() -> None:
    schema = pa.schema([("value", pa.float32()), ("time", pa.timestamp("us", tz="UTC"))])
    decoder = RemoteWriteDecoder(schema, ROWS_MAX)
    batch = decoder.decode(version_1([Series(UP, [(1.5, 0)])]), Message.WRITE_REQUEST)
    assert batch.to_pylist() == [{"value": 1.5, "time": EPOCH}]


# -- content types ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        ("application/x-protobuf", Message.WRITE_REQUEST),
        ("Application/X-Protobuf; proto=prometheus.WriteRequest", Message.WRITE_REQUEST),
        ('application/x-protobuf;proto="io.prometheus.write.v2.Request"', Message.REQUEST_2),
    ],
)
def test_content_type_names_the_message(content_type: str, message: Message) -> None:
    assert message_of(content_type) is message


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "application/x-protobuf;proto=io.prometheus.write.v3"]
)
def test_other_content_types_are_not_supported(content_type: str) -> None:
    with pytest.raises(UnsupportedFormat, match="send application/x-protobuf with proto="):
        message_of(content_type)


# -- hostile bodies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "reason", "row"),
    [
        (Series([*UP, UP[1]], [(1.0, 0)]), "label 'instance' twice", 1),
        (Series([*UP, ("", "x")], [(1.0, 0)]), "label without a name", 1),
        (Series(UP[1:], [(1.0, 0)]), "'metric' is null", 1),
        (Series(UP, [(1.0, 0), (1.0, 1 << 62)]), "field 'time' is", 2),
        (Series([*UP[:2], ("job", "a\0")], [(1.0, 0)]), "field 'label_job' is", 1),
    ],
)
@BOTH
def test_a_bad_series_is_refused_with_row_and_reason(
    message: Message, series: Series, reason: str, row: int
) -> None:
    refusal = refused(ENCODERS[message]([Series(UP, [(1.0, 0)]), series]), message)
    assert reason in refusal.reason
    assert refusal.row == row


def test_a_message_of_the_other_version_is_refused() -> None:
    series = [Series(UP, [(1.0, 0)])]
    assert "neither series nor metadata" in refused(version_2(series)).reason
    assert "neither" in refused(version_1(series), Message.REQUEST_2).reason


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a" + b"\xff" * 10,
        b"\x0b",
        b"\x02\x00",
        b"\x09abc",
        of_bytes(1, b"\x0a\x04\x0a\x02\xff\xfe"),
        of_bytes(1, b"\x12\x05abc"),
    ],
)
def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    assert refused(body).reason


@pytest.mark.parametrize("refs", [[1], [1, 2, 3], [0, 9], [1, 1 << 31]])
def test_wrong_references_to_symbols_are_refused(refs: list[int]) -> None:
    packed = b"".join(map(varint, refs))
    body = of_bytes(4, b"") + of_bytes(4, b"a") + of_bytes(5, of_bytes(1, packed))
    assert "label" in refused(body, Message.REQUEST_2).reason


def test_requests_above_the_limit_of_rows_are_refused() -> None:
    many = Series(UP, [(1.0, 0)] * (ROWS_MAX + 1))
    assert f"at most {ROWS_MAX}" in too_large(version_1([many]))
    assert f"at most {ROWS_MAX}" in too_large(version_1([Series(UP)] * (ROWS_MAX + 1)))


def test_an_allocation_of_memory_is_bounded_before_it_is_made() -> None:
    """Each body has 16 MiB or less, and would take up to terabytes without a limit."""
    long, most = "x" * (1 << 19), 16 << 20
    several = [
        (b"\x0a\x00" * (most // 2), Message.WRITE_REQUEST),
        (b"\x22\x00" * FIELDS_MAX + b"\x22\x00", Message.REQUEST_2),
        (of_bytes(1, b"\x0a\x00" * (most // 2)), Message.WRITE_REQUEST),
        (version_1([Series([("a", long)], [(0.0, 0)] * ROWS_MAX)]), Message.WRITE_REQUEST),
        (version_2([Series([("a", long)], [(0.0, 0)])] * ROWS_MAX), Message.REQUEST_2),
        (
            version_2([Series([(str(n), long) for n in range(90)], [(0.0, 0)])]),
            Message.REQUEST_2,
        ),
    ]
    for body, message in several:
        tracemalloc.start()
        too_large(body, message)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 << 20


def test_a_request_has_a_limited_number_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write, "LABELS_MAX", 5)
    assert len(rows([Series(UP, [(1.0, 0)])])) == 1
    assert "at most 5 labels" in too_large(version_1([Series(UP, [(1.0, 0)])] * 2))


@pytest.mark.parametrize("message", list(Message))
@given(st.data())
def test_any_bytes_are_decoded_or_refused(message: Message, data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=60))
    with_symbols = of_bytes(4, b"") + of_bytes(4, b"job") + of_bytes(5, body) + body
    for candidate in (body, of_bytes(1, body), with_symbols):
        try:
            batch = DECODER.decode(candidate, message)
        except (InvalidEvents, PayloadTooLarge):
            continue
        batch.validate(full=True)
        assert batch.schema == SCHEMA


@given(
    st.lists(
        st.builds(
            Series,
            st.dictionaries(
                st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
                st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
                max_size=4,
            ).map(lambda labels: [("__name__", "m"), *labels.items()]),
            st.lists(
                st.tuples(st.floats(), st.integers(-62_135_596_800_000, 253_402_300_799_999)),
                max_size=4,
            ),
        ),
        max_size=5,
    )
)
def test_both_versions_give_what_was_sent(series: list[Series]) -> None:
    given = [one for one in series if len({name for name, _ in one.labels}) == len(one.labels)]
    sent = [
        (dict(one.labels[1:]), EPOCH + dt.timedelta(milliseconds=at), value)
        for one in given
        for value, at in one.samples
    ]
    for message in Message:
        found = [(json.loads(r["labels"]), r["time"], r["value"]) for r in rows(given, message)]
        assert found == [(a, b, c if math.isfinite(c) else None) for a, b, c in sent]


def test_a_usual_request_is_decoded_fast() -> None:
    labels = [("__name__", "http_requests_total"), *((f"label{n}", "value") for n in range(10))]
    decoder = RemoteWriteDecoder(SCHEMA, 10_000)
    body = version_1([Series([*labels, ("n", str(n))], [(1.0, 0)]) for n in range(2_000)])
    started = time.perf_counter()
    assert decoder.decode(body, Message.WRITE_REQUEST).num_rows == 2_000
    assert time.perf_counter() - started < 0.5 * SLOW_HOST
