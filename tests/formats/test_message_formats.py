"""Messages of each format become JSON rows, and a message that is none says why."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ha_engine.errors import ConfigError, SourceRefused, SourceUnavailable
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.messages import MessageFormat, MessageOptions, open_format
from tests.client.serving import serving

COLUMNS = (CsvColumn("id", "int32", False), CsvColumn("text", "string", True))


def opened(written: Any, base: Path = Path()) -> MessageFormat:
    """Return the format that an application file describes."""
    options = MessageOptions.model_validate({"format": written}).format
    found = open_format(options, COLUMNS, base)
    assert found is not None
    return found


def rows(form: MessageFormat, message: bytes) -> list[Any]:
    """Return the rows of a message, and the reasons of its bad parts."""
    found = form.rows(message)
    return [str(row) if isinstance(row, BadRow) else json.loads(row) for row in found]


def refusal(form: MessageFormat, message: bytes) -> str:
    with pytest.raises(BadRow) as refused:
        list(form.rows(message))
    return str(refused.value)


# -- text ------------------------------------------------------------------------------------------


def test_json_is_an_object_or_an_array_of_objects() -> None:
    form = opened("json")
    assert rows(form, b'{"id":\n 1}') == [{"id": 1}]
    assert rows(form, b' [{"id": 1}, {"id": 2}] ') == [{"id": 1}, {"id": 2}]
    assert rows(form, b"[]") == []


def test_value_of_json_is_not_changed() -> None:
    number = b'{"id": 123456789012345678901234567890.10}'
    assert list(opened("json").rows(number)) == [number]


@pytest.mark.parametrize("message", [b"", b"1", b"null", b'{"id": 1', b"[1]", b'{"id": 1} {}'])
def test_message_that_is_no_json_object_is_refused(message: bytes) -> None:
    assert "at line 1 column" in refusal(opened("json"), message)


def test_json_that_is_not_utf8_or_too_deep_is_refused() -> None:
    assert refusal(opened("json"), b'{"text": "\xff"}') == "byte 10 of the message is not UTF-8"
    assert refusal(opened("json"), b'{"a":' * 200_000) == "the message is nested too deep"


def test_ndjson_has_a_row_on_each_line() -> None:
    assert rows(opened("ndjson"), b'{"id": 1}\r\n\n{"id": 2}\n') == [{"id": 1}, {"id": 2}]
    assert refusal(opened("ndjson"), b"\n") == "the message is empty"


def test_csv_has_its_columns_in_the_first_line_or_in_the_application() -> None:
    wanted = [{"id": 1, "text": 'a "quoted"\ntext'}, {"id": 2, "text": None}]
    body = b'1,"a ""quoted""\ntext"\n2,\n'
    assert rows(opened("csv"), b"id,text\n" + body) == wanted
    assert rows(opened({"type": "csv", "columns": ["id", "text"]}), body) == wanted
    semicolons = {"type": "csv", "columns": ["text", "id"], "delimiter": ";"}
    assert rows(opened(semicolons), b"a;1") == [{"text": "a", "id": 1}]


def test_bad_row_of_csv_does_not_spoil_the_others() -> None:
    found = rows(opened("csv"), b"id,text\n1,a\n2\n3,c\n")
    assert found == [
        {"id": 1, "text": "a"},
        "the row has 1 fields, but the header has 2",
        {"id": 3, "text": "c"},
    ]
    assert refusal(opened("csv"), b"") == "the message is empty"
    assert "twice" in refusal(opened("csv"), b"id,id\n1,2")


# -- Avro ------------------------------------------------------------------------------------------

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": "bytes"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "ratio", "type": "double"},
    ],
}
RECORD = {
    "id": 1 << 60,
    "at": datetime(2013, 1, 1, 5, 15, 0, 123456, UTC),
    "day": date(2013, 1, 1),
    "price": Decimal("12.30"),
    "raw": b"\x00\xff",
    "note": None,
    "kind": "PAID",
    "tags": ["a", "b"],
    "ratio": 0.5,
}
AS_JSON = {
    **RECORD,
    "at": "2013-01-01T05:15:00.123456+00:00",
    "day": "2013-01-01",
    "price": "12.30",
    "raw": "AP8=",
}


def avro(record: dict[str, Any], schema: dict[str, Any] = ORDER) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return body.getvalue()


@pytest.fixture
def order(tmp_path: Path) -> MessageFormat:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    return opened({"type": "avro", "schema_file": "order.avsc"}, tmp_path)


def test_avro_record_becomes_a_row_with_the_values_that_http_takes(order: MessageFormat) -> None:
    assert rows(order, avro(RECORD)) == [AS_JSON]


def test_message_that_is_no_record_of_the_schema_is_refused(order: MessageFormat) -> None:
    whole = avro(RECORD)
    for length in range(len(whole)):
        assert "no Avro record" in refusal(order, whole[:length])
    assert refusal(order, whole + b"x") == "the message has 1 bytes after its Avro record"
    assert "no Avro record" in refusal(order, b"\xff" * 40)
    assert "NaN" not in refusal(order, avro(RECORD | {"ratio": float("nan")}))


def test_schema_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    written = {"type": "avro", "schema_file": "order.avsc"}
    with pytest.raises(ConfigError, match=r"order\.avsc cannot be read"):
        opened(written, tmp_path)
    (tmp_path / "order.avsc").write_text('{"type": "recor"}')
    with pytest.raises(ConfigError, match=r"order\.avsc: the Avro schema cannot be read"):
        opened(written, tmp_path)


# -- the registry ----------------------------------------------------------------------------------


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def registry(asked: list[str]) -> Starlette:
    """Serve schema 7 to those who know the password, as a schema registry does."""

    async def schema(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        if request.headers.get("authorization") != "Basic YTpi":
            return JSONResponse({"error_code": 401}, 401)
        if request.path_params["number"] != 7:
            return JSONResponse({"error_code": 40403, "message": "Schema not found"}, 404)
        return JSONResponse({"schema": json.dumps(ORDER)})

    return Starlette(routes=[Route("/schemas/ids/{number:int}", schema)])


def test_message_names_its_schema_which_is_read_once() -> None:
    asked: list[str] = []
    with serving(registry(asked)) as url:
        form = opened({"type": "avro", "registry": {"url": url, "user": "a", "password": "b"}})
        assert rows(form, framed(7, avro(RECORD))) == [AS_JSON]
        assert rows(form, framed(7, avro(RECORD))) == [AS_JSON]
        assert asked == ["/schemas/ids/7"]
        assert refusal(form, framed(8, avro(RECORD))).startswith("schema 8 is not in ")
        wanted = "the message does not begin with the id of a registered schema"
        assert refusal(form, avro(RECORD)) == wanted
        assert refusal(form, b"\0\0\0") == wanted


def test_registry_that_refuses_or_does_not_answer_stops_the_source_and_loses_no_message() -> None:
    message = framed(7, avro(RECORD))
    with serving(registry([])) as url:
        form = opened({"type": "avro", "registry": {"url": url, "user": "a", "password": "c"}})
        with pytest.raises(SourceRefused, match="refuses the user"):
            list(form.rows(message))
    form = opened({"type": "avro", "registry": {"url": url}})
    with pytest.raises(SourceUnavailable, match="does not answer"):
        list(form.rows(message))


# -- Protobuf --------------------------------------------------------------------------------------


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Return what ``protoc --include_imports --descriptor_set_out`` writes for a message type."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    imports = (timestamp_pb2, wrappers_pb2, duration_pb2)
    file.dependency.extend(module.DESCRIPTOR.name for module in imports)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    one, many = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    fields = (
        ("id", Field.TYPE_INT64, one, ""),
        ("at", Field.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("raw", Field.TYPE_BYTES, one, ""),
        ("kind", Field.TYPE_ENUM, one, ".shop.Kind"),
        ("tags", Field.TYPE_STRING, many, ""),
        ("price", Field.TYPE_MESSAGE, one, ".google.protobuf.DoubleValue"),
        ("inner", Field.TYPE_MESSAGE, one, ".shop.Order"),
    )
    for number, (name, type_, label, of) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=type_, label=label, type_name=of or None)
    found = descriptor_pb2.FileDescriptorSet()
    for module in imports:
        module.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


@pytest.fixture
def desc(tmp_path: Path) -> Path:
    (tmp_path / "shop.desc").write_bytes(descriptors().SerializeToString())
    return tmp_path


def message(**fields: Any) -> bytes:
    pool = DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    built = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)
    return built.SerializeToString()


PROTOBUF = {"type": "protobuf", "descriptor_file": "shop.desc", "message": "shop.Order"}


def test_protobuf_message_becomes_a_row_with_the_values_that_http_takes(desc: Path) -> None:
    body = message(
        id=1 << 60,
        at={"seconds": 1_357_017_300, "nanos": 123_456_000},
        raw=b"\x00\xff",
        kind=1,
        tags=["a", "b"],
        price={"value": 12.5},
        inner={"id": 2},
    )
    assert rows(opened(PROTOBUF, desc), body) == [
        {
            "id": 1 << 60,
            "at": "2013-01-01T05:15:00.123456Z",
            "raw": "AP8=",
            "kind": "PAID",
            "tags": ["a", "b"],
            "price": 12.5,
            "inner": {"id": 2, "raw": "", "kind": "NEW", "tags": []},
        }
    ]


def test_message_of_a_registered_type_begins_with_its_schema_and_its_place_in_it(
    desc: Path,
) -> None:
    form, body = opened(PROTOBUF | {"registered": True}, desc), message(id=5)
    wanted = [{"id": 5, "raw": "", "kind": "NEW", "tags": []}]
    assert rows(form, framed(9, b"\0" + body)) == wanted  # short for the first type
    assert rows(form, framed(9, b"\x04\x02\x00" + body)) == wanted  # the places 1 and 0
    assert "does not name its type" in refusal(form, framed(9, b"\x04\x02"))
    assert "does not begin with the id" in refusal(form, body)


def test_message_that_protobuf_cannot_read_is_refused(desc: Path) -> None:
    assert "is no shop.Order" in refusal(opened(PROTOBUF, desc), b"\xff")
    digits = message(at={"seconds": 1, "nanos": 1})
    assert "more than 6 fractional digits" in refusal(opened(PROTOBUF, desc), digits)


def test_descriptors_that_cannot_be_used_are_named(desc: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no message type shop\.Parcel"):
        opened(PROTOBUF | {"message": "shop.Parcel"}, desc)
    with pytest.raises(ConfigError, match="cannot be read"):
        opened(PROTOBUF | {"descriptor_file": "none.desc"}, desc)
    (desc / "shop.desc").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="--include_imports"):
        opened(PROTOBUF, desc)


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        "xml",
        {"type": "avro"},
        {"type": "avro", "schema_file": "a", "registry": {"url": "http://r"}},
        {"type": "json", "columns": ["a"]},
        {"type": "protobuf", "message": "shop.Order"},
    ],
)
def test_options_that_do_not_fit_together_are_refused(written: Any) -> None:
    with pytest.raises(ValidationError):
        MessageOptions.model_validate({"format": written})
