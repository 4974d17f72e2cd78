"""Messages of a source become events with their attributes, and bad ones become dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.config import ReceiveConfig
from ha_engine.errors import ApplicationError, PayloadTooLarge, SourceRefused
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.messages import ArrowOptions, MessageOptions, open_reader
from ha_engine.plugins import Messages, SourceBatch, source_kind
from ha_engine.query.application import SourceSpec, load_application
from ha_engine.receive.pull.messages import MessageDecoder
from ha_engine.receive.pull.puller import SourceState
from ha_engine.receive.pull.validate import Validated
from ha_engine.testing import SourceContract
from tests.receive.pulling import SCHEMA, Pulling
from tests.waiting import async_wait_until

WITH_KEY = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("key", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
ATTRIBUTES = {
    "key": pa.binary(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "sequence": pa.int64(),
    "headers": pa.string(),
}
KEYED = {"key": "key", "at": "timestamp"}


def decoder(
    written: Any = "json",
    schema: pa.Schema = SCHEMA,
    columns: Mapping[str, str] | None = None,
    rows_max: int = 100,
) -> MessageDecoder:
    options = MessageOptions.model_validate({"format": written})
    mapped = columns or {}
    known = [
        CsvColumn(one.name, str(one.type), one.nullable) for one in schema if one.name not in mapped
    ]
    reader = open_reader(options.format, known, Path())
    is_arrow = isinstance(options.format, ArrowOptions)
    return MessageDecoder(schema, rows_max, reader, mapped, ATTRIBUTES, is_arrow=is_arrow)


def validated(
    by: MessageDecoder, values: Sequence[bytes | None], **attributes: Sequence[Any]
) -> Validated:
    messages = Messages(values, attributes)
    return by.validate(SourceBatch("1", messages, place="orders/0/{}".format), messages)


def letters(found: Validated) -> list[tuple[str, str]]:
    return [(one.place, one.reason) for one in found.dead_letters]


def test_rows_of_all_messages_are_in_their_order() -> None:
    found = validated(decoder(), [b'{"id": 1}', b'[{"id": 2}, {"id": 3}]', b'{"id": 4}'])
    assert found.events.column("id").to_pylist() == [1, 2, 3, 4]
    assert found.dead_letters == ()


def test_message_or_row_that_is_no_event_is_a_dead_letter_with_its_place() -> None:
    values = [b'{"id": 1}', b"{", None, b'[{"id": 2}, {"id": "x"}, {"id": 3}]', b'{"no": 1}']
    found = validated(decoder(), values)
    assert found.events.column("id").to_pylist() == [1, 2, 3]
    assert [place for place, _ in letters(found)] == [
        "orders/0/1",
        "orders/0/2",
        "orders/0/3, row 2",
        "orders/0/4",
    ]
    assert letters(found)[1][1] == "the message has no value"
    assert found.dead_letters[0].raw == b"{"


@pytest.mark.parametrize(
    "message",
    [
        b'{"id": 1} {"id": 2}',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1},{"id": 2}',
        b'{"id": 1}}',
        b'{"text": "}',
        b'{"text": "\xff"}',
    ],
)
def test_message_that_is_not_one_object_spoils_no_other_message(message: bytes) -> None:
    found = validated(decoder(), [b'{"id": 3}', message, b'{"text": "", "id": 4}', message])
    assert found.events.column("id").to_pylist() == [3, 4]
    assert [(one.place, one.raw) for one in found.dead_letters] == [
        ("orders/0/1", message),
        ("orders/0/3", message),
    ]


def test_bad_row_of_csv_is_a_dead_letter() -> None:
    found = validated(decoder("csv"), [b"id,text\n1,a\n2\nx,b\n3,c\n"])
    assert found.events.column("id").to_pylist() == [1, 3]
    assert [place for place, _ in letters(found)] == ["orders/0/0, row 2", "orders/0/0, row 3"]


def test_attributes_of_a_message_go_to_the_columns_of_all_its_rows() -> None:
    found = validated(
        decoder(schema=WITH_KEY, columns=KEYED),
        [b'[{"id": 1}, {"id": "x"}, {"id": 2}]', b'{"id": 3, "text": "c"}'],
        key=[b"a", b"b"],
        timestamp=pa.array([1_000, None], pa.timestamp("ms", tz="UTC")),
    )
    assert found.events.schema == WITH_KEY
    assert found.events.column("key").to_pylist() == ["a", "a", "b"]
    assert [at and at.isoformat() for at in found.events.column("at").to_pylist()] == [
        "1970-01-01T00:00:01+00:00",
        "1970-01-01T00:00:01+00:00",
        None,
    ]
    assert found.events.column("text").to_pylist() == [None, None, "c"]


def test_attribute_that_does_not_fit_its_column_makes_a_dead_letter_of_the_message() -> None:
    found = validated(
        decoder(schema=WITH_KEY, columns={"key": "key"}),
        [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}', b'{"id": 4}'],
        key=[b"a", b"\xff", None, b"\0"],
    )
    assert found.events.column("id").to_pylist() == [1]
    assert [place for place, _ in letters(found)] == [f"orders/0/{n}" for n in (1, 2, 3)]
    assert letters(found)[0][1].startswith("field 'key' is \"b'\\\\xff'\", expected a string")
    assert all("key from key" in reason for _, reason in letters(found))


@pytest.mark.parametrize(
    ("column", "attribute", "values", "kept"),
    [
        (pa.int32(), "sequence", [1, 1 << 40, 2], [1, 2]),
        (pa.int32(), "sequence", [1, 1 << 70, 2], [1, 2]),
        (pa.string(), "header.a", ["x", "\udc80", "y"], ["x", "y"]),
        (pa.string(), "header.a", ["x", 5, "y"], ["x", "y"]),
        (pa.binary(), "header.a", ["1", "\udc80", "2"], [b"1", b"2"]),
        (pa.float64(), "sequence", [1, (1 << 53) + 1, 2], [1.0, 2.0]),
        (pa.string(), "value", ["x", "y"], None),
    ],
)
def test_attribute_that_no_column_can_have_spoils_only_its_message(
    column: pa.DataType, attribute: str, values: list[Any], kept: list[Any] | None
) -> None:
    schema = SCHEMA.append(pa.field("a", column))
    given = {} if attribute == "value" else {attribute: values}
    by = decoder(schema=schema, columns={"a": attribute})
    found = by.validate(
        SourceBatch("1", Messages([b'{"id": 1}'] * len(values), given)),
        Messages([b'{"id": 1}'] * len(values), given),
    )
    assert found.events.column("a").to_pylist() == (kept or ['{"id": 1}'] * len(values))
    assert [one.place for one in found.dead_letters] == (["row 1"] if kept else [])


def test_attribute_whose_type_does_not_fit_its_column_is_refused_at_the_start() -> None:
    schema = SCHEMA.append(pa.field("day", pa.date32()))
    with pytest.raises(ApplicationError, match="timestamp is timestamp"):
        decoder(schema=schema, columns={"day": "timestamp"})
    schema = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))
    with pytest.raises(ApplicationError, match="key is binary, and the column is list"):
        decoder(schema=schema, columns={"tags": "key"})


@pytest.mark.parametrize(
    ("column", "attribute"),
    [
        (pa.int64(), "header.a"),
        (pa.bool_(), "sequence"),
        (pa.string(), "sequence"),
        (pa.decimal128(9, 2), "sequence"),
    ],
)
def test_attribute_that_would_have_to_be_rounded_or_parsed_is_refused(
    column: pa.DataType, attribute: str
) -> None:
    with pytest.raises(ApplicationError, match="declare another type"):
        decoder(schema=SCHEMA.append(pa.field("a", column)), columns={"a": attribute})


def test_column_that_a_raw_message_leaves_null_must_allow_it() -> None:
    with pytest.raises(ApplicationError, match="'id' is not null"):
        decoder("raw", SCHEMA, {"text": "value"})


def test_source_that_leaves_out_an_attribute_is_refused() -> None:
    """It is a fault of the plug-in, so no message may become a dead letter for it."""
    by = decoder(schema=WITH_KEY, columns={"key": "key"})
    with pytest.raises(SourceRefused, match="returned no attribute key"):
        validated(by, [b'{"id": 1}'])


def test_many_bad_attributes_are_found_with_few_calls_of_the_parser() -> None:
    calls: list[bytes] = []

    class Counted:
        def rows(self, message: bytes) -> Iterator[bytes]:
            calls.append(message)
            yield message

    by = MessageDecoder(WITH_KEY, 2_000, Counted(), {"key": "key"}, ATTRIBUTES)
    keys = [b"\xff" if n % 2 else b"k" for n in range(1_000)]
    found = validated(by, [b'{"id": 1}'] * 1_000, key=keys)
    assert (found.events.num_rows, len(found.dead_letters)) == (500, 500)
    assert len(calls) == 500, "a message with a bad attribute is not decoded at all"


def test_rows_that_are_much_larger_than_their_messages_are_read_in_smaller_batches() -> None:
    class Wide:
        def rows(self, message: bytes) -> Iterator[bytes]:
            yield b'{"id": 1, "text": "' + b"x" * (1 << 20) + b'"}'

    by = MessageDecoder(SCHEMA, 2_000, Wide(), {}, {})
    with pytest.raises(PayloadTooLarge, match="bytes"):
        validated(by, [b"m"] * 100)


def test_raw_message_is_the_value_of_a_column() -> None:
    schema = pa.schema([pa.field("text", pa.string()), pa.field("key", pa.string())])
    by = decoder("raw", schema, {"text": "value", "key": "key"})
    found = validated(by, [b"21.5", None, b"\xff", b""], key=[b"a", b"b", b"c", None])
    assert found.events.to_pylist() == [
        {"text": "21.5", "key": "a"},
        {"text": None, "key": "b"},
        {"text": "", "key": None},
    ]
    assert [(one.place, one.raw) for one in found.dead_letters] == [("orders/0/2", b"\xff")]


@pytest.mark.parametrize(
    ("written", "value"), [("json", b"[]"), ("ndjson", b"\n"), ("csv", b"id,text\n"), ("csv", b"")]
)
def test_message_without_rows_is_a_dead_letter(written: str, value: bytes) -> None:
    assert letters(validated(decoder(written), [value])) == [
        ("orders/0/0", "the message has no row")
    ]


def test_unforeseen_error_spoils_only_its_message() -> None:
    class Moody:
        def rows(self, message: bytes) -> Iterator[bytes]:
            if message == b"boom":
                raise MemoryError("no room")
            yield message

    by = MessageDecoder(SCHEMA, 100, Moody(), {}, {})
    values = [b'{"id": 1}', b"boom", b'{"id": 2}', b"boom", b'{"id": 3}']
    found = validated(by, values)
    assert found.events.column("id").to_pylist() == [1, 2, 3]
    assert letters(found) == [(f"orders/0/{n}", "MemoryError: no room") for n in (1, 3)]


def test_bad_rows_count_as_rows_of_a_record() -> None:
    with pytest.raises(PayloadTooLarge, match="more than 100 rows"):
        validated(decoder("csv"), [b"id,text\n" + b"1\n" * 101])


def test_value_cannot_set_the_column_of_an_attribute() -> None:
    found = validated(
        decoder(schema=WITH_KEY, columns=KEYED),
        [b'{"id": 1, "key": "forged"}'],
        key=[b"a"],
        timestamp=[None],
    )
    assert found.events.num_rows == 0
    assert "key" in letters(found)[0][1]


def test_arrow_messages_follow_the_rules_of_http() -> None:
    def message(ids: list[Any], name: str = "id") -> bytes:
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({name: ids})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    some = message([1 << 41, 2, 1 << 42])
    values = [message([1, 2]), b"junk", message([1 << 40]), message([3], "other"), some]
    found = validated(
        decoder("arrow", WITH_KEY, {"key": "key"}), values, key=[b"a", b"b", b"c", b"d", b"e"]
    )
    assert found.events.column("id").to_pylist() == [1, 2, 2]
    assert found.events.column("key").to_pylist() == ["a", "a", "e"]
    assert [place for place, _ in letters(found)] == [
        *(f"orders/0/{n}" for n in (1, 2, 3, 4)),
        "orders/0/4, row 3",
    ]
    assert found.dead_letters[-1].raw == str({"id": 1 << 42}).encode()


def test_messages_with_too_many_rows_are_refused_together() -> None:
    with pytest.raises(PayloadTooLarge, match="more than 2 rows"):
        validated(decoder(rows_max=2), [b'[{"id": 1}, {"id": 2}]', b'{"id": 3}'])


# -- in a source -----------------------------------------------------------------------------------


class TestTheExample(SourceContract):
    @pytest.fixture(autouse=True)
    def _kind(self, plugin_example: None) -> None:
        type(self).kind = source_kind("spool")
        self.count = 0

    def options(self) -> dict[str, Any]:
        return {"directory": str(self.home)}

    def put(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.count += 1
            (self.home / f"{self.count:09}").write_text(json.dumps(row))


class Queue:
    """A source of messages; the offset is the number of the next one."""

    guarantee = "exactly once"

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values, self._at = values, 0

    def open(self, offset: str | None) -> None:
        self._at = int(offset or 0)

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        begin, self._at = self._at, min(self._at + rows_max, len(self._values))
        if begin == self._at:
            return None
        messages = Messages(self._values[begin : self._at])
        return SourceBatch(str(self._at), messages, place=lambda n: f"message {begin + n}")

    def close(self) -> None:
        pass


def several(first: int, count: int) -> bytes:
    return json.dumps([{"id": n} for n in range(first, first + count)]).encode()


@pytest.mark.parametrize("rows_max", [20, 100, 1000])
async def test_messages_are_read_in_smaller_batches_until_their_rows_fit(
    tmp_path: Path, rows_max: int
) -> None:
    """A message with more rows than a record may have is a dead letter, and stops nothing."""
    values = [several(10 * n, 10) for n in range(30)]
    values.insert(7, several(1_000, rows_max + 1))
    values.insert(9, b"{")
    config = ReceiveConfig(max_record_rows=rows_max)
    node = Pulling(tmp_path, config, decoder(rows_max=rows_max), queue=lambda _: Queue(values))
    node.receivers.open()
    await async_wait_until(lambda: node.ids() == list(range(300)), within=60)
    await async_wait_until(lambda: node.status("queue").state is SourceState.IDLE, within=60)
    assert (node.status("queue").known.offset, node.status("queue").known.rejected) == ("32", 2)
    await node.close()


async def test_messages_of_a_source_without_a_format_are_refused(tmp_path: Path) -> None:
    node = Pulling(tmp_path, queue=lambda _: Queue([b"{}"]))
    node.receivers.open()
    await async_wait_until(lambda: node.status("queue").state is SourceState.REFUSED, within=60)
    assert "its class has no attributes" in (node.status("queue").error or "")
    await node.close()


# -- in an application file ------------------------------------------------------------------------

APPLICATION = """
name: orders
streams:
  orders:
    schema: {{id: int not null, file: string}}
    sources:
      - {{name: spool, type: spool, directory: /var/spool/orders, {keys}}}
queries:
  all: {{sql: SELECT id FROM orders, sinks: [{{name: out, type: stdout}}]}}
"""


def source_in(home: Path, keys: str) -> SourceSpec:
    path = home / "application.yaml"
    path.write_text(APPLICATION.format(keys=keys))
    [source] = load_application(path).streams["orders"].sources
    return source


@pytest.mark.usefixtures("plugin_example")
def test_application_file_says_what_a_message_is(tmp_path: Path) -> None:
    source = source_in(tmp_path, "format: {type: csv, columns: [id]}, columns: {file: name}")
    assert dict(source.options) == {"directory": "/var/spool/orders"}
    assert source.messages is not None
    assert source.messages["columns"] == {"file": "name"}
    other = source_in(tmp_path, "format: json")
    assert source.digest != other.digest
    assert source_in(tmp_path, "format: raw, columns: {file: value, id: name}").messages


@pytest.mark.usefixtures("plugin_example")
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("format: xml", "xml"),
        ("columns: {file: name}", "format"),
        ("format: json, columns: {files: name}", "the stream has no column 'files'"),
        ("format: json, columns: {file: nam}", "a message has no attribute 'nam'; known are name"),
        ("format: json, columns: {file: header.a}", "no attribute 'header.a'"),
        ("format: raw, columns: {file: name}", "one column has the attribute 'value'"),
        ("format: json, columns: {file: name, id: name}", "nothing is left of the value"),
        ('format: json, columns: "env:COLUMNS"', "columns must be a mapping"),
        ('format: "env:FORMAT"', "format"),
        ("format: json, colums: {}", "colums is not a known key; did you mean 'columns'"),
    ],
)
def test_wrong_key_of_messages_is_named(tmp_path: Path, keys: str, told: str) -> None:
    with pytest.raises(ApplicationError, match=told) as refused:
        source_in(tmp_path, keys)
    assert ": streams.orders.sources.spool." in str(refused.value)
