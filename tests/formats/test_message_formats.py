"""Messages of each format become JSON rows, and a message that is none says why."""

from __future__ import annotations

import contextlib
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
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ha_engine.errors import ConfigError, SourceRefused, SourceUnavailable
from ha_engine.formats.avro_reader import AvroInput, compiled
from ha_engine.formats.csv_rows import CsvColumn
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.messages import MessageOptions, MessageReader, open_reader
from tests.client.serving import serving

COLUMNS = (CsvColumn("id", "int32", False), CsvColumn("text", "string", True))


def opened(written: Any, base: Path = Path()) -> MessageReader:
    """Return the format that an application file describes."""
    options = MessageOptions.model_validate({"format": written}).format
    found = open_reader(options, COLUMNS, base)
    assert found is not None
    return found


def rows(form: MessageReader, message: bytes) -> list[Any]:
    """Return the rows of a message, and the reasons of its bad parts."""
    found = form.rows(message)
    return [str(row) if isinstance(row, BadRow) else json.loads(row) for row in found]


def refusal(form: MessageReader, message: bytes) -> str:
    with pytest.raises(BadRow) as refused:
        list(form.rows(message))
    return str(refused.value)


# -- text ------------------------------------------------------------------------------------------


def test_json_is_an_object_or_an_array_of_objects() -> None:
    form = opened("json")
    assert rows(form, b'{"id":\n 1}') == [{"id": 1}]
    assert rows(form, b' [{"id": 1}, {"id": 2}] ') == [{"id": 1}, {"id": 2}]
    assert rows(form, b"[]") == []  # the decoder makes a dead letter of a message without rows


def test_value_of_json_is_not_changed() -> None:
    number = b'{"id": 123456789012345678901234567890.10}'
    assert list(opened("json").rows(number)) == [number]


@pytest.mark.parametrize("message", [b"", b"1", b"null", b'{"id": 1', b"[1]", b'[{"id": 1}] {}'])
def test_message_that_is_no_json_object_is_refused(message: bytes) -> None:
    assert "at line 1 column" in refusal(opened("json"), message)


def test_json_that_is_not_utf8_or_too_deep_is_refused() -> None:
    assert refusal(opened("json"), b'[{"text": "\xff"}]') == "byte 11 of the message is not UTF-8"
    assert refusal(opened("json"), b'{"a":' * 200_000) == "the message is nested too deep"


def test_ndjson_has_a_row_on_each_line() -> None:
    assert rows(opened("ndjson"), b'{"id": 1}\r\n\n{"id": 2}\n') == [{"id": 1}, {"id": 2}]
    assert rows(opened("ndjson"), b"\n") == []


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
    assert rows(opened("csv"), b"") == rows(opened("csv"), b"id,text\n") == []
    assert "twice" in refusal(opened("csv"), b"id,id\n1,2")


def test_column_that_the_stream_lacks_spoils_a_csv_message_at_once() -> None:
    """Each row would repeat its name, so that one message could become gigabytes."""
    long = b"x" * 500_000
    told = refusal(opened("csv"), b"id," + long + b"\n" + b"1,1\n" * 100)
    assert told.startswith("the stream takes no column 'xxx")
    assert len(told) < 300


@pytest.mark.parametrize(
    ("columns", "told"), [(["id", "id"], "twice"), (["id", "no"], "takes no column 'no'")]
)
def test_csv_columns_of_the_application_are_checked_when_it_is_loaded(
    columns: list[str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        opened({"type": "csv", "columns": columns})


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
def order(tmp_path: Path) -> MessageReader:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    return opened({"type": "avro", "schema_file": "order.avsc"}, tmp_path)


def test_avro_record_becomes_a_row_with_the_values_that_http_takes(order: MessageReader) -> None:
    assert rows(order, avro(RECORD)) == [AS_JSON]


def test_message_that_is_no_record_of_the_schema_is_refused(order: MessageReader) -> None:
    whole = avro(RECORD)
    for length in range(len(whole)):
        assert refusal(order, whole[:length]).startswith("the message ")
    assert refusal(order, whole + b"x") == "the message has 1 bytes after its Avro record"
    assert "no whole number" in refusal(order, b"\xff" * 40)
    assert "without a form in JSON" in refusal(order, avro(RECORD | {"ratio": float("nan")}))


def test_schema_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    written = {"type": "avro", "schema_file": "order.avsc"}
    with pytest.raises(ConfigError, match=r"order\.avsc cannot be read"):
        opened(written, tmp_path)
    for schema, told in BAD_SCHEMAS:
        (tmp_path / "order.avsc").write_text(schema)
        with pytest.raises(ConfigError, match=told):
            opened(written, tmp_path)


ITSELF = {
    "type": "record",
    "name": "shop.Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def of(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


BAD_SCHEMAS = (
    ('{"type": "array", "items": "int"}', r"order\.avsc: the Avro schema is not a record"),
    ("{", "is not valid JSON"),
    ("[" * 100_000, "is not valid JSON|nested more than"),
    (json.dumps(ITSELF), r"shop\.Node contains itself"),
    (json.dumps(of("recor")), "has no type 'recor'"),
    (json.dumps(of({"type": "array"})), "has no type at None"),
    (json.dumps(of({"type": "enum", "name": "E", "symbols": [1]})), "has no symbols"),
    (json.dumps(of({"type": "fixed", "name": "F", "size": -1})), "has no size"),
    ('{"type": "record", "name": "R"}', "has no fields"),
    *(
        (json.dumps(of({"type": "bytes", "logicalType": "decimal"} | digits)), "precision")
        for digits in ({"precision": 2, "scale": 3}, {"precision": 100_000_000}, {})
    ),
)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (ENUM, b"\x01", "symbol -1 of the enum E"),
        (ENUM, b"\x04", "symbol 2 of the enum E"),
        (["null", "int"], b"\x01", "branch -1 of a union"),
        ("int", b"\x80\x80\x80\x80\x80\x80\x01", "out of range"),
        ("long", b"\x80" * 10 + b"\x00", "no whole number"),
        ("long", b"\xff" * 9 + b"\x7f", "out of range"),
        ("boolean", b"\x02", "the byte 2 for a boolean"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\x01", "ends within a value"),
        (DECIMAL, b"\x04\x03\xe8", "a decimal of more than 3 digits"),
        (DECIMAL, b"\x80\x92\x18" + b"\x11" * 200_000, "a decimal of 197760 bytes"),
        (
            {"type": "array", "items": "null"},
            b"\xfe\xff\xff\xff\x0f\x00",
            "more than 200000 values",
        ),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", "the key 'a' twice"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, b"\x02", "fractional digits"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "out of range"),
    ],
)
def test_avro_value_that_no_correct_producer_writes_is_refused(
    tmp_path: Path, kind: Any, body: bytes, told: str
) -> None:
    (tmp_path / "r.avsc").write_text(json.dumps(of(kind)))
    form = opened({"type": "avro", "schema_file": "r.avsc"}, tmp_path)
    assert told in refusal(form, body)


def test_avro_message_that_repeats_long_names_is_refused(tmp_path: Path) -> None:
    """A message of four bytes would be 100 MB of JSON."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "n" * 1_000, "type": "null"}]}
    (tmp_path / "r.avsc").write_text(json.dumps(of({"type": "array", "items": inner})))
    form = opened({"type": "avro", "schema_file": "r.avsc"}, tmp_path)
    assert "repeats the names" in refusal(form, b"\xbe\x9a\x0c\x00")


def test_avro_names_are_found_in_their_namespace(tmp_path: Path) -> None:
    inner = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
    schema = {
        "type": "record",
        "name": "shop.orders.Order",
        "fields": [{"name": "a", "type": inner}, {"name": "b", "type": "shop.orders.Id"}],
    }
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    form = opened({"type": "avro", "schema_file": "r.avsc"}, tmp_path)
    wanted = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert rows(form, bytes(range(16)) * 2) == [{"a": wanted, "b": wanted}]


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(),
}


@st.composite
def schemas_and_values(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:
    """Draw a schema and a value of it in JSON, which the library writes as Avro."""
    kinds = [*PRIMITIVES, *(["array", "map", "union", "record"] if depth else [])]
    match kind := draw(st.sampled_from(kinds)):
        case "array" | "map":
            items, value = draw(schemas_and_values(depth - 1))
            count = draw(st.integers(0, 3))
            found: Any = [value] * count
            if kind == "map":
                found = {str(n): value for n in range(count)}
            return {"type": kind, "items" if kind == "array" else "values": items}, found
        case "union":
            branch, value = draw(schemas_and_values(0))
            return ["null", branch], draw(st.sampled_from([None, value]))
        case "record":
            fields = draw(st.lists(schemas_and_values(depth - 1), min_size=1, max_size=3))
            name = f"R{draw(st.uuids()).hex}"
            parts = [{"name": f"f{n}", "type": part} for n, (part, _) in enumerate(fields)]
            value = {f"f{n}": each for n, (_, each) in enumerate(fields)}
            return {"type": "record", "name": name, "fields": parts}, value
        case _:
            return kind, draw(PRIMITIVES[kind])


@given(schemas_and_values())
def test_avro_of_any_schema_is_read_as_the_library_wrote_it(found: tuple[Any, Any]) -> None:
    schema, value = of(found[0]), {"a": found[1]}
    data = AvroInput(avro(value, schema))
    assert compiled(schema)(data) == value
    assert data.left == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(body: bytes) -> None:
    with contextlib.suppress(BadRow):
        compiled(ORDER)(AvroInput(body))


# -- the registry ----------------------------------------------------------------------------------


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def registry(asked: list[str]) -> Starlette:
    """Serve schema 7 to those who know the password, as a schema registry does."""

    async def schema(request: Request) -> Response:
        asked.append(request.url.path)
        if request.headers.get("authorization") != "Basic YTpi":
            return JSONResponse({"error_code": 401}, 401)
        match request.path_params["number"]:
            case 7:
                return JSONResponse({"schema": json.dumps(ORDER)})
            case 8:
                return JSONResponse({"schema": json.dumps(ITSELF)})
            case 9:
                return JSONResponse({"schema": json.dumps(ORDER), "references": [{"name": "a"}]})
            case 10:
                return PlainTextResponse("gone fishing", 503)
            case 13:
                broken = {"content-type": "application/json; charset=undefined"}
                return Response(b"{", 500, broken)
            case 11:
                return PlainTextResponse("<html>", 404)
            case 12:
                return PlainTextResponse("<html>")
            case _:
                return JSONResponse({"error_code": 40403, "message": "Schema not found"}, 404)

    return Starlette(routes=[Route("/schemas/ids/{number:int}", schema)])


def test_message_names_its_schema_which_is_read_once() -> None:
    asked: list[str] = []
    with serving(registry(asked)) as url:
        form = opened({"type": "avro", "registry": {"url": url, "user": "a", "password": "b"}})
        assert rows(form, framed(7, avro(RECORD))) == [AS_JSON]
        assert rows(form, framed(7, avro(RECORD))) == [AS_JSON]
        assert asked == ["/schemas/ids/7"]
        for _ in range(3):
            refusal(form, framed(6, avro(RECORD)))
        assert asked[1:] == ["/schemas/ids/6"], "a missing schema is remembered for some seconds"
        assert refusal(form, framed(6, avro(RECORD))).endswith(" has no schemas/ids/6")
        for _ in range(3):
            assert "contains itself" in refusal(form, framed(8, avro(RECORD)))
        assert asked[2:] == ["/schemas/ids/8"], "a schema that cannot be read is asked for once"
        assert "refers to other schemas" in refusal(form, framed(9, avro(RECORD)))
        wanted = "the message does not begin with the id of a registered schema"
        assert refusal(form, avro(RECORD)) == wanted
        assert refusal(form, b"\0\0\0") == wanted


def test_registry_that_refuses_or_does_not_answer_stops_the_source_and_loses_no_message() -> None:
    message = framed(7, avro(RECORD))
    with serving(registry([])) as url:
        form = opened({"type": "avro", "registry": {"url": url, "user": "a", "password": "c"}})
        with pytest.raises(SourceRefused, match="refuses the user"):
            list(form.rows(message))
        form = opened({"type": "avro", "registry": {"url": url, "user": "a", "password": "b"}})
        with pytest.raises(SourceUnavailable, match="answers 503: gone fishing"):
            list(form.rows(framed(10, b"")))
        with pytest.raises(SourceUnavailable):
            list(form.rows(framed(13, b"")))
        with pytest.raises(SourceRefused, match="no schemas at this URL"):
            list(form.rows(framed(11, b"")))
        with pytest.raises(SourceRefused, match="without schema 12; check its URL"):
            list(form.rows(framed(12, b"")))
    form = opened({"type": "avro", "registry": {"url": url}})
    with pytest.raises(SourceUnavailable, match="does not answer"):
        list(form.rows(message))


def test_address_of_a_registry_is_checked_when_the_application_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as refused:
        opened({"type": "avro", "registry": {"url": "http://me:secret@registry"}})
    assert "write them in the keys user and password" in str(refused.value)
    for url in ("registry:8081", "http://a..b", f"http://{'a' * 64}.b", "http://r/?token=secret"):
        with pytest.raises(ValidationError):
            opened({"type": "avro", "registry": {"url": url}})
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca_file: .*ca\.pem cannot be loaded"):
        opened({"type": "avro", "registry": {"url": "https://r", "ca_file": "ca.pem"}}, tmp_path)


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
    for number, (name, type_, label, type_name) in enumerate(fields, 1):
        order.field.add(
            name=name, number=number, type=type_, label=label, type_name=type_name or None
        )
    entry = order.nested_type.add(name="FlagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_BOOL, label=one)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=one)
    order.field.add(
        name="flags",
        number=8,
        type=Field.TYPE_MESSAGE,
        label=many,
        type_name=".shop.Order.FlagsEntry",
    )
    order.field.add(
        name="parts", number=9, type=Field.TYPE_MESSAGE, label=many, type_name=".shop.Order"
    )
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


EMPTY = {"id": 0, "raw": "", "kind": "NEW", "tags": [], "flags": {}, "parts": []}
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
        flags={True: 3},
    )
    assert rows(opened(PROTOBUF, desc), body) == [
        {
            "id": 1 << 60,
            "at": "2013-01-01T05:15:00.123456Z",
            "raw": "AP8=",
            "kind": "PAID",
            "tags": ["a", "b"],
            "price": 12.5,
            "inner": EMPTY | {"id": 2},
            "flags": {"true": 3},
            "parts": [],
        }
    ]


def test_message_of_a_registered_type_begins_with_its_schema_and_its_place_in_it(
    desc: Path,
) -> None:
    form, body = opened(PROTOBUF | {"registered": True}, desc), message(id=5)
    wanted = [EMPTY | {"id": 5}]
    assert rows(form, framed(9, b"\0" + body)) == wanted  # short for the first type
    assert rows(form, framed(9, b"\x02\x00" + body)) == wanted  # a list of one position, 0
    assert "type [1, 0] of its schema" in refusal(form, framed(9, b"\x04\x02\x00" + body))
    assert "does not name its type" in refusal(form, framed(9, b"\x04\x02"))
    assert "does not name its type" in refusal(form, framed(9, b"\x01"))
    assert "does not begin with the id" in refusal(form, body)


def test_message_that_protobuf_cannot_read_is_refused(desc: Path) -> None:
    assert "is no shop.Order" in refusal(opened(PROTOBUF, desc), b"\xff")
    unknown = b"\xa0\x06\x01"  # field 100
    assert "that the descriptors lack: 100" in refusal(opened(PROTOBUF, desc), unknown)
    many = message(parts=[{}] * 40_000)  # 80 KB, with 240,000 values
    assert "more than 200000 values" in refusal(opened(PROTOBUF, desc), many)
    within = b"\x12\x03\xa0\x06\x01"  # field 100 of a timestamp
    assert "Timestamp that the descriptors lack: 100" in refusal(opened(PROTOBUF, desc), within)
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
