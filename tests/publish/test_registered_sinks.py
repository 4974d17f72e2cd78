"""A sink writes each message with one schema of a registry, whatever is registered later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ha_engine.errors import ConfigError, SinkRefused, SinkUnavailable
from ha_engine.formats.message_writers import open_writer
from ha_engine.formats.messages import MessageOptions, open_reader
from ha_engine.plugins import OutputBatch, SinkPlace
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.messages import MessageEncoder
from ha_engine.publish.sinks.plugin import PluginSink
from tests.client.serving import serving
from tests.publish.batches import QUERY, batch_of, soon

SHOP = pa.field("shop", pa.string())
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), SHOP])
ROWS = pa.table([pa.array([1, 2], pa.int64()), pa.array(["a", None])], schema=SCHEMA)
FIRST = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": ["null", "string"]}],
}
MORE = {"name": "paid", "type": "boolean", "default": False}
SECOND = {**FIRST, "fields": [*FIRST["fields"], MORE]}


class SchemaRegistry:
    """A registry with the versions of one subject. A test can make it answer with a failure."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 200

    def register(self, schema: Any, **more: Any) -> int:
        """Register the next version of the subject, and return its id."""
        self.schemas.append({"schema": json.dumps(schema), **more})
        return 40 + len(self.schemas)

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        routes = [Route("/schemas/ids/{number:int}", self._schema)]
        with serving(Starlette(routes=routes)) as url:
            yield url

    async def _schema(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        index = request.path_params["number"] - 41
        if self.status != 200:
            return JSONResponse({"error_code": self.status}, self.status)
        if not 0 <= index < len(self.schemas):
            return JSONResponse({"error_code": 40403, "message": "Schema not found"}, 404)
        return JSONResponse(self.schemas[index])


@pytest.fixture
def registry() -> SchemaRegistry:
    return SchemaRegistry()


class Topic:
    """A sink of messages that keeps them, by the key of their batch."""

    def __init__(self) -> None:
        self.values: dict[str, list[list[bytes | None]]] = {}

    def prepare(self, schema: pa.Schema) -> None:
        pass

    def deliver(self, batch: OutputBatch) -> None:
        values = list(batch.messages().values)
        self.values.setdefault(batch.key, []).append(values)

    def close(self) -> None:
        pass


class Ledger:
    """A ledger that takes every batch."""

    def claim(self, *_: object) -> int:
        return 0

    def advance(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def encoder(form: dict[str, Any], base: Path = Path()) -> MessageEncoder:
    options = MessageOptions.model_validate({"format": form})
    return MessageEncoder(open_writer(options.format, base), {}, {})


def sink(directory: Path, topic: Topic, form: dict[str, Any]) -> PluginSink:
    """Return the sink of one node."""
    letters = SinkDeadLetters(directory, QUERY, "topic")
    place = SinkPlace("default", QUERY, "topic", letters.put_aside)
    return PluginSink("topic", place, lambda: topic, Ledger(), letters, encoder(form))  # type: ignore[arg-type,return-value]


def avro(url: str, schema_id: int | None, **more: Any) -> dict[str, Any]:
    return {"type": "avro", "registry": {"url": url, **more}, "schema_id": schema_id}


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def records(values: list[bytes | None], number: int, schema: Any = FIRST) -> list[Any]:
    """Return what a consumer reads that finds its schema by the id in each message."""
    found = []
    for value in values:
        assert value is not None
        assert value.startswith(head(number))
        parsed = fastavro.parse_schema(schema)
        found.append(fastavro.schemaless_reader(BytesIO(value[5:]), parsed, None))
    return found


def test_repeated_batch_has_the_same_bytes_though_a_newer_schema_was_registered(
    tmp_path: Path, registry: SchemaRegistry
) -> None:
    """The first active delivers a batch and dies. Its successor starts after the registration."""
    topic, number = Topic(), registry.register(FIRST)
    with registry.running() as url:
        for node in ("first", "second"):
            (tmp_path / node).mkdir()
            active = sink(tmp_path / node, topic, avro(url, number))
            active.prepare(SCHEMA)
            active.publish(7, batch_of(tmp_path / node, ROWS, 7), 3, soon())
            registry.register(SECOND)
            active.publish(8, batch_of(tmp_path / node, ROWS, 8), 3, soon())
            active.close()
        newer = sink(tmp_path / node, topic, avro(url, number + 1))
        newer.publish(9, batch_of(tmp_path / node, ROWS, 9), 3, soon())
    assert registry.asked == ["/schemas/ids/41"] * 2 + ["/schemas/ids/42"], "one call each sink"
    by_batch = {key.rpartition("/")[2]: values for key, values in topic.values.items()}
    for batch in ("7", "8"):
        once, again = by_batch[batch]
        assert once == again
        assert records(once, 41) == ROWS.to_pylist()
    [newest] = by_batch["9"]
    assert records(newest, 42, SECOND) == [row | {"paid": False} for row in ROWS.to_pylist()]


def test_sink_that_has_read_its_schema_needs_no_registry(registry: SchemaRegistry) -> None:
    with registry.running() as url:
        form = encoder(avro(url, registry.register(FIRST)))
        form.require_fit(SCHEMA)
    assert records(list(form.messages(ROWS).values), 41) == ROWS.to_pylist()


def test_query_runs_while_the_registry_is_away_and_its_sink_waits(
    tmp_path: Path, registry: SchemaRegistry
) -> None:
    topic = Topic()
    with registry.running() as url:
        form = avro(url, registry.register(FIRST))
        active, batch = sink(tmp_path, topic, form), batch_of(tmp_path, ROWS)
        for status, told in ((503, "answers 503"), (401, "check user and password")):
            registry.status = status
            with pytest.raises(SinkUnavailable, match=told):
                active.prepare(SCHEMA)
            with pytest.raises(SinkUnavailable, match=told):
                active.publish(1, batch, 3, soon())
        registry.status = 404
        with pytest.raises(SinkUnavailable, match="no schemas at this URL"):
            active.prepare(SCHEMA)
        assert not topic.values
        registry.status = 200
        active.publish(1, batch, 3, soon())
    [[values]] = topic.values.values()
    assert records(values, 41) == ROWS.to_pylist()
    with pytest.raises(SinkUnavailable, match="does not answer"):
        encoder(form).require_fit(SCHEMA)


def test_schema_that_no_query_can_have_is_refused_before_it_runs(registry: SchemaRegistry) -> None:
    registry.register(FIRST)
    registry.register("syntax = proto3", schemaType="PROTOBUF")
    registry.register(FIRST, references=[{"name": "a"}])
    registry.register("string")
    told = (
        (41, "the record shop.Order has no field for the column more"),
        (42, "schema 42 is of the type PROTOBUF, not AVRO"),
        (43, "schema 43 refers to other schemas"),
        (44, "schema 44 of the registry: the Avro schema is not a record"),
        (45, "has no schemas/ids/45"),
    )
    more = SCHEMA.append(pa.field("more", pa.int64(), False))
    with registry.running() as url:
        for number, reason in told:
            with pytest.raises(SinkRefused, match=reason):
                encoder(avro(url, number)).require_fit(more)


def test_row_that_does_not_fit_stops_the_sink(tmp_path: Path) -> None:
    """A query starts unchecked if the registry is away, so a null may come."""
    kinds = [{"name": "id", "type": "long"}, {"name": "shop", "type": "string"}]
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST | {"fields": kinds}))
    form = encoder({"type": "avro", "schema_file": "order.avsc"}, tmp_path)
    with pytest.raises(SinkRefused, match="the column shop may be null"):
        form.require_fit(SCHEMA)
    assert list(form.messages(ROWS.slice(0, 1)).values) == [b"\x02\x02a"]
    with pytest.raises(SinkRefused, match="a row does not fit the Avro schema: the column shop"):
        form.messages(ROWS)


def test_sink_and_source_say_which_keys_they_need(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"format\.schema_id: a sink needs the id"):
        encoder(avro("http://r", None))
    protobuf = {"type": "protobuf", "descriptor_file": "shop.desc", "message": "shop.Line"}
    with pytest.raises(ConfigError, match=r"format\.schema_id: a sink needs the id"):
        encoder(protobuf | {"registered": True})
    for form in (avro("http://r", 1), protobuf | {"registered": True, "schema_id": 1}):
        options = MessageOptions.model_validate({"format": form}).format
        with pytest.raises(ConfigError, match="schema_id is only for a sink"):
            open_reader(options, [], tmp_path)
    wrong = ({"type": "avro", "schema_file": "a", "schema_id": 1}, protobuf | {"schema_id": 1})
    for form in (*wrong, avro("http://r", -1), avro("http://r", 1 << 31)):
        with pytest.raises(ValidationError):
            MessageOptions.model_validate({"format": form})


# -- Protobuf --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("shop.Order", b"\0"),
        ("shop.Line", b"\x02\x02"),
        ("shop.Line.Part", b"\x04\x02\x00"),
        ("shop.Last", b"\x02\x80\x02"),
    ],
)
def test_protobuf_message_begins_with_its_schema_and_its_place_in_it(
    tmp_path: Path, name: str, position: bytes
) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order, line = file.message_type.add(name="Order"), file.message_type.add(name="Line")
    for number in range(2, 128):
        file.message_type.add(name=f"M{number}")
    for kind in (
        order,
        line,
        line.nested_type.add(name="Part"),
        file.message_type.add(name="Last"),
    ):
        for number, (field, type_) in enumerate(
            [("id", FieldDescriptorProto.TYPE_INT64), ("shop", FieldDescriptorProto.TYPE_STRING)], 1
        ):
            kind.field.add(
                name=field, number=number, type=type_, label=FieldDescriptorProto.LABEL_OPTIONAL
            )
    found = descriptor_pb2.FileDescriptorSet(file=[file])
    (tmp_path / "shop.desc").write_bytes(found.SerializeToString())
    form = {
        "type": "protobuf",
        "descriptor_file": "shop.desc",
        "message": name,
        "registered": True,
    }
    written = encoder(form | {"schema_id": 300}, tmp_path)
    written.require_fit(SCHEMA)
    values = list(written.messages(ROWS).values)
    assert values == [
        head(300) + position + b"\x08\x01\x12\x01a",
        head(300) + position + b"\x08\x02",
    ]
    reader = open_reader(MessageOptions.model_validate({"format": form}).format, [], tmp_path)
    assert reader is not None
    read = [json.loads(bytes(row)) for value in values for row in reader.rows(value or b"")]  # type: ignore[arg-type]
    assert read == [{"id": 1, "shop": "a"}, {"id": 2, "shop": ""}]
