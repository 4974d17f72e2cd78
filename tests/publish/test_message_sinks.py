"""Rows become messages with their attributes, and a sink that keeps its ledger is claimed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from pydantic import BaseModel, ConfigDict

from ha_engine.errors import ConfigError, Fenced, SinkRefused
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.message_writers import BYTES_OF_A_MESSAGE, open_writer
from ha_engine.formats.messages import MessageOptions, MessageReader, open_reader
from ha_engine.outbox.batch_file import digest_of_table
from ha_engine.plugins import Claim, Messages, OutputBatch, SinkPlace
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.messages import MessageEncoder
from ha_engine.publish.sinks.plugin import PluginSink
from ha_engine.testing import LedgerSinkContract
from tests.publish.batches import GROUP, QUERY, batch_of, soon

ATTRIBUTES = {"key": pa.binary(), "at": pa.timestamp("ms", tz="UTC"), "headers": pa.string()}
MOMENT = datetime(2013, 1, 1, 5, 15, 0, 123000, UTC)
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "text": ['a "b"\nc', None],
        "price": pa.array([Decimal("1.20"), None], pa.decimal128(9, 2)),
        "at": pa.array([MOMENT, MOMENT], pa.timestamp("us", tz="UTC")),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
    }
)
FIRST = {"id": 1, "text": 'a "b"\nc', "price": "1.20", "at": MOMENT.isoformat(), "raw": "AP8="}
SECOND = {"id": 2, "text": None, "price": None, "at": MOMENT.isoformat(), "raw": None}


def encoder(
    written: Any = "json", columns: Mapping[str, str] | None = None, base: Path = Path()
) -> MessageEncoder:
    options = MessageOptions.model_validate({"format": written})
    return MessageEncoder(open_writer(options.format, base), columns or {}, ATTRIBUTES)


def reader(written: Any, base: Path = Path()) -> MessageReader:
    options = MessageOptions.model_validate({"format": written})
    columns = [CsvColumn(one.name, str(one.type), True) for one in ROWS.schema]
    found = open_reader(options.format, columns, base)
    assert found is not None
    return found


def written(by: MessageEncoder, rows: pa.Table = ROWS) -> Messages:
    by.require_fit(rows.schema)
    return by.messages(rows)


def read_back(by: MessageReader, messages: Messages) -> list[Any]:
    return [json.loads(row) for value in messages.values for row in by.rows(value or b"")]


@pytest.mark.parametrize("form", ["json", "ndjson", "csv", "arrow"])
def test_rows_that_the_nodes_take_as_equal_are_the_same_messages(tmp_path: Path, form: str) -> None:
    """The zeros and the order of a map may differ between the nodes, whose digests are equal."""
    kinds = pa.schema([("x", pa.float64()), ("counts", pa.map_(pa.string(), pa.int64()))])
    pairs = [("a", 1), ("b", 2)]
    first = pa.table([[0.0, 1.0], [pairs, None]], schema=kinds)
    second = pa.table([[1.0, -0.0], [None, pairs[::-1]]], schema=kinds)
    assert digest_of_table(first) == digest_of_table(second)
    found = [delivered(tmp_path / str(n), form, rows) for n, rows in enumerate((first, second))]
    assert found[0] == found[1] != []


def delivered(directory: Path, form: str, rows: pa.Table) -> list[bytes | None]:
    """The values of the messages that a sink delivers for a batch with ``rows``."""
    found = list[bytes | None]()

    class Keeping(Book):
        def deliver(self, batch: OutputBatch) -> None:
            found.extend(batch.messages().values)

    directory.mkdir()
    letters = SinkDeadLetters(directory, QUERY, "book")
    place = SinkPlace("default", QUERY, "book", letters.put_aside)
    options = BookOptions(file=directory / "book.json")
    sink = PluginSink("book", place, lambda: Keeping(options, place), None, letters, encoder(form))
    sink.prepare(rows.schema)
    sink.publish(1, batch_of(directory, rows), 1, soon())
    return found


def test_key_of_a_map_that_is_no_number_is_a_text_in_json() -> None:
    """JSON lacks NaN and the infinities, also as keys."""
    kind = pa.map_(pa.float64(), pa.float64())
    rows = pa.table({"m": pa.array([[(float("nan"), float("inf")), (1.5, 2.0)]], kind)})
    [value] = written(encoder(), rows).values
    assert json.loads(value or b"") == {"m": {"NaN": "Infinity", "1.5": 2.0}}


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_json_message_has_what_a_source_of_another_engine_reads(form: str) -> None:
    assert read_back(reader(form), written(encoder(form))) == [FIRST, SECOND]


@pytest.mark.parametrize("columns", [None, ["raw", "at", "price", "text", "id"]])
def test_csv_message_is_a_row_that_a_source_reads(columns: list[str] | None) -> None:
    """The order of the columns in the application file may be another than that of the query."""
    form = {"type": "csv", "columns": columns}
    found = read_back(reader(form), written(encoder(form)))
    assert [row["id"] for row in found] == [1, 2]
    assert (found[0]["text"], found[0]["raw"]) == (FIRST["text"], "AP8=")
    assert found[1] == SECOND


@pytest.mark.parametrize("text", ["a\nb", "a\n", "a\r", "a\rb", "\r\n", " ", "   ", "a,b", '"'])
def test_text_of_a_csv_message_is_read_back_as_it_was(text: str) -> None:
    form = {"type": "csv", "columns": ["text"]}
    rows = pa.table({"text": [text]})
    assert read_back(reader(form), written(encoder(form), rows)) == [{"text": text}]


def test_csv_message_lacks_no_column() -> None:
    with pytest.raises(SinkRefused, match="name the same columns"):
        encoder({"type": "csv", "columns": ["id"]}).require_fit(ROWS.schema)


def test_arrow_message_has_the_rows_as_they_are() -> None:
    [value] = written(encoder("arrow")).values
    assert pa.ipc.open_stream(value).read_all().equals(ROWS)


@pytest.mark.parametrize("form", ["ndjson", "arrow"])
def test_message_of_several_rows_is_not_too_large_for_a_broker(form: str) -> None:
    """NATS and Kafka refuse more than 1 MiB by default, which would stop the sink for ever."""
    sizes = [1, 700 << 10, *[2_000] * 1_000, *[10] * 1_500, 700 << 10]
    rows = pa.table({"text": ["x" * size for size in sizes]})
    values = [value or b"" for value in written(encoder(form), rows).values]
    if form == "ndjson":
        found = [[json.loads(row) for row in value.splitlines()] for value in values]
    else:
        found = [pa.ipc.open_stream(value).read_all().to_pylist() for value in values]
    assert [row for message in found for row in message] == rows.to_pylist()
    for value, message in zip(values, found, strict=True):
        assert len(value) <= BYTES_OF_A_MESSAGE or len(message) == 1
    assert max(map(len, found)) <= 1_000
    assert len(found) < 30


def test_avro_message_has_what_a_source_of_another_engine_reads(tmp_path: Path) -> None:
    kinds = {
        "id": "long",
        "text": "string",
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "raw": "bytes",
    }
    fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    form = {"type": "avro", "schema_file": "r.avsc"}
    messages = written(encoder(form, base=tmp_path))
    assert read_back(reader(form, tmp_path), messages) == [FIRST, SECOND]
    with pytest.raises(SinkRefused, match="the record R has no field for the column more"):
        written(encoder(form, base=tmp_path), ROWS.append_column("more", ROWS["id"]))
    with pytest.raises(ConfigError, match=r"none\.avsc cannot be read"):
        encoder(form | {"schema_file": "none.avsc"}, base=tmp_path)


def test_protobuf_message_has_the_columns_as_fields(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    kind = file.message_type.add(name="R")
    one = Field.LABEL_OPTIONAL
    for number, (name, type_) in enumerate(
        [("id", Field.TYPE_INT64), ("text", Field.TYPE_STRING), ("raw", Field.TYPE_BYTES)], 1
    ):
        kind.field.add(name=name, number=number, type=type_, label=one)
    found = descriptor_pb2.FileDescriptorSet(file=[file])
    (tmp_path / "r.desc").write_bytes(found.SerializeToString())
    form = {"type": "protobuf", "descriptor_file": "r.desc", "message": "R"}
    messages = written(encoder(form, base=tmp_path), ROWS.select(["id", "text", "raw"]))
    assert read_back(reader(form, tmp_path), messages) == [
        {"id": 1, "text": FIRST["text"], "raw": "AP8="},
        {"id": 2, "text": "", "raw": ""},
    ]
    with pytest.raises(SinkRefused, match="has no field 'price'"):
        written(encoder(form, base=tmp_path))


def protobuf(base: Path, type_: int, *, repeated: bool = False) -> dict[str, str]:
    """The format of a type with the field ``a``."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    inner = file.message_type.add(name="Inner")
    for name, kind in (("x", Field.TYPE_FLOAT), ("y", Field.TYPE_DOUBLE)):
        inner.field.add(name=name, number=len(inner.field) + 1, type=kind)  # type: ignore[arg-type]
    field = file.message_type.add(name="R").field.add(name="a", number=1, label=label)
    field.type = type_  # type: ignore[assignment]
    if type_ == Field.TYPE_MESSAGE:
        field.type_name = ".Inner"
    found = descriptor_pb2.FileDescriptorSet(file=[file])
    (base / "r.desc").write_bytes(found.SerializeToString())
    return {"type": "protobuf", "descriptor_file": "r.desc", "message": "R"}


INNER = pa.struct([("x", pa.float32()), ("y", pa.float64())])


@pytest.mark.parametrize(
    ("type_", "kind", "value", "read"),
    [
        (Field.TYPE_FLOAT, pa.float32(), 0.5, 0.5),
        (Field.TYPE_FLOAT, pa.int16(), -5, -5.0),
        (Field.TYPE_DOUBLE, pa.float64(), 0.1, 0.1),
        (Field.TYPE_DOUBLE, pa.int32(), (1 << 31) - 1, (1 << 31) - 1.0),
        (Field.TYPE_UINT64, pa.int64(), (1 << 63) - 1, (1 << 63) - 1),
        (Field.TYPE_SINT32, pa.int64(), -5, -5),
        (Field.TYPE_BOOL, pa.bool_(), True, True),
        (Field.TYPE_STRING, pa.string(), "a", "a"),
        (Field.TYPE_STRING, pa.decimal128(9, 2), Decimal("1.20"), "1.20"),
        (Field.TYPE_BYTES, pa.binary(), b"\0\xff", "AP8="),
        (Field.TYPE_MESSAGE, INNER, {"x": 0.5, "y": 0.1}, {"x": 0.5, "y": 0.1}),
        (Field.TYPE_MESSAGE, pa.null(), None, None),
    ],
)
def test_protobuf_field_has_the_value_of_its_column(
    tmp_path: Path, type_: int, kind: pa.DataType, value: Any, read: Any
) -> None:
    rows = pa.table({"a": pa.array([value], kind)})
    for repeated in (False, True):
        if repeated:
            rows = pa.table({"a": pa.array([[] if value is None else [value]], pa.list_(kind))})
        form = protobuf(tmp_path, type_, repeated=repeated)
        [found] = read_back(reader(form, tmp_path), written(encoder(form, base=tmp_path), rows))
        wanted = read if not repeated else [] if read is None else [read]
        assert found == ({} if wanted is None else {"a": wanted})


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (Field.TYPE_FLOAT, pa.float64()),  # 0.1 would become 0.10000000149011612
        (Field.TYPE_FLOAT, pa.int32()),
        (Field.TYPE_DOUBLE, pa.int64()),
        (Field.TYPE_DOUBLE, pa.decimal128(9, 2)),
        (Field.TYPE_DOUBLE, pa.string()),
        (Field.TYPE_BYTES, pa.string()),  # the text would be taken for base64
        (Field.TYPE_BOOL, pa.int32()),
        (Field.TYPE_INT32, pa.bool_()),
        (Field.TYPE_STRING, pa.int64()),
        (Field.TYPE_STRING, pa.list_(pa.int64())),
        (Field.TYPE_MESSAGE, pa.string()),
        (Field.TYPE_MESSAGE, pa.struct([("x", pa.float64())])),
        (Field.TYPE_MESSAGE, pa.struct([("z", pa.float64())])),
    ],
)
@pytest.mark.parametrize("repeated", [False, True])
def test_column_that_a_protobuf_field_would_change_is_refused(
    tmp_path: Path, type_: int, kind: pa.DataType, repeated: bool
) -> None:
    form = protobuf(tmp_path, type_, repeated=repeated)
    for one in (pa.list_(kind) if repeated else kind, kind if repeated else pa.list_(kind)):
        with pytest.raises(SinkRefused, match=r"the column a(\[\])?(\.[xz])?( is|; rename)"):
            encoder(form, base=tmp_path).require_fit(pa.schema([("a", one)]))


def test_column_of_an_attribute_is_not_in_the_value() -> None:
    columns = {"text": "key", "at": "at", "shop": "header.shop"}
    rows = ROWS.select(["text", "at", "raw"]).append_column("shop", pa.array(["x", "y"]))
    messages = written(encoder(columns=columns), rows)
    assert list(messages.values) == [b'{"raw":"AP8="}', b'{"raw":null}']
    assert messages.attributes == {
        "key": [b'a "b"\nc', None],
        "at": [MOMENT, MOMENT],
        "header.shop": ["x", "y"],
    }


def test_raw_message_is_the_value_of_a_column() -> None:
    messages = written(
        encoder("raw", {"raw": "value", "text": "key"}), ROWS.select(["raw", "text"])
    )
    assert list(messages.values) == [b"\x00\xff", None]
    assert messages.attributes == {"key": [b'a "b"\nc', None]}


@pytest.mark.parametrize(
    ("form", "columns", "told"),
    [
        ("json", {"no": "key"}, "the query has no column 'no'"),
        ("json", {"price": "at"}, "the column is decimal128.* and at is timestamp"),
        ("json", {"id": "header.id"}, "the column is int64, and header.id is string"),
        ("json", {"text": "key", "raw": "key"}, "two columns are the key"),
        ("json", {"raw": "value"}, "the attribute 'value' is for the format raw"),
        ("raw", {"raw": "value"}, "map id, text, price, at"),
        ("arrow", {"text": "key"}, "a message has several rows"),
    ],
)
def test_query_whose_rows_make_no_messages_is_refused_before_it_runs(
    form: str, columns: dict[str, str], told: str
) -> None:
    with pytest.raises(SinkRefused, match=told):
        encoder(form, columns).require_fit(ROWS.schema)


def test_column_without_a_form_in_json_is_refused_before_the_query_runs() -> None:
    rows = pa.table({"x": pa.array([1], pa.duration("us"))})
    with pytest.raises(SinkRefused, match="has no form in JSON"):
        encoder().require_fit(rows.schema)


# -- a ledger at the destination -------------------------------------------------------------------


class BookOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    file: Path


class Book:
    """A sink whose rows and ledger are in one file, which each delivery replaces."""

    Options = BookOptions
    guarantee = "exactly once"

    def __init__(self, options: BookOptions, place: SinkPlace) -> None:
        self._file, self._epoch = options.file, 0

    def prepare(self, schema: pa.Schema) -> None:
        pass

    def claim(self, claim: Claim) -> int:
        empty = {"epoch": 0, "group": claim.group_id, "batch": claim.start_after, "rows": []}
        book = self.read() or empty
        self._require_epoch(book, claim.epoch)
        if book["group"] != claim.group_id:
            raise SinkRefused(f"{book['group']} has the ledger, not {claim.group_id}")
        self._epoch = claim.epoch
        self._write(book | {"epoch": claim.epoch})
        return int(book["batch"])

    def deliver(self, batch: OutputBatch) -> None:
        book = self.read()
        assert book is not None
        self._require_epoch(book, self._epoch)
        if batch.number <= book["batch"]:
            return
        if batch.number > book["batch"] + 1:
            raise SinkRefused(f"batch {batch.number} leaves a gap after {book['batch']}")
        rows = book["rows"] + batch.read().to_pylist()
        self._write(book | {"batch": batch.number, "rows": rows})

    def close(self) -> None:
        pass

    def read(self) -> dict[str, Any] | None:
        return json.loads(self._file.read_text()) if self._file.exists() else None

    def _require_epoch(self, book: dict[str, Any], epoch: int) -> None:
        if book["epoch"] > epoch:
            raise Fenced(book["epoch"], "book")

    def _write(self, book: dict[str, Any]) -> None:
        self._file.with_suffix(".new").write_text(json.dumps(book))
        self._file.with_suffix(".new").replace(self._file)


class TestBook(LedgerSinkContract):
    kind = Book

    def options(self) -> dict[str, Any]:
        return {"file": str(self.home / "book.json")}

    def delivered(self) -> list[dict[str, Any]]:
        book = json.loads((self.home / "book.json").read_text())
        return list(book["rows"])


def book_sink(directory: Path) -> PluginSink:
    letters = SinkDeadLetters(directory, QUERY, "book")
    place = SinkPlace("default", QUERY, "book", letters.put_aside)
    options = BookOptions(file=directory / "book.json")
    return PluginSink("book", place, lambda: Book(options, place), None, letters)


def test_sink_with_a_ledger_of_its_own_says_where_it_continues(tmp_path: Path) -> None:
    sink = book_sink(tmp_path)
    assert sink.claim(3, 5, GROUP, soon()) == 5
    sink.publish(6, batch_of(tmp_path, pa.table({"n": [6]}), 6), 3, soon())
    sink.publish(7, batch_of(tmp_path, pa.table({"n": pa.array([], pa.int64())}), 7), 3, soon())
    sink.close()
    other = book_sink(tmp_path)
    assert other.claim(4, 0, GROUP, soon()) == 7, "the ledger names a batch without rows too"
    book = json.loads((tmp_path / "book.json").read_text())
    assert (book["epoch"], book["group"], book["rows"]) == (4, GROUP, [{"n": 6}])
    with pytest.raises(Fenced):
        sink.publish(8, batch_of(tmp_path, pa.table({"n": [8]}), 8), 3, soon())
    with pytest.raises(Fenced):
        sink.claim(3, 0, GROUP, soon())
    assert json.loads((tmp_path / "book.json").read_text()) == book
