"""What the journal source gives to Spark: the rows of a small batch with its plan, others not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.lifeline import ProcessId
from ha_engine.query.runner import QueryRunner
from ha_engine.query.source import SMALL_BYTES, JournalReader, SourceOptions
from tests.query.local_node import LocalNode, run_command

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

START = datetime(2013, 1, 1, tzinfo=UTC)
FLAT = {
    "at": "timestamp not null",
    "wall": "timestamp_ntz",
    "day": "date",
    "text": "string not null",
    "raw": "binary",
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "long": "bigint not null",
    "single": "float",
    "ratio": "double",
    "price": "decimal(12,2)",
}
NESTED = {**FLAT, "many": "array<int>", "pair": "struct<a: int, b: array<string>>"}
NOT_NULL = ("at", "text", "long")
APPLICATION = """
name: types
streams:
  events:
    schema: {schema}
    system_columns: [_received_at, _event_id]
queries:
  all:
    sql: SELECT * FROM events
"""


def row(number: int, text: str) -> dict[str, Any]:
    """Every fifth has nothing but what it must have."""
    whole = {
        "at": START + timedelta(seconds=number),
        "wall": datetime(2013, 6, 1) + timedelta(microseconds=number),
        "day": date(2013, 1, 1) + timedelta(days=number),
        "text": text,
        "raw": bytes([number % 256, 0]),
        "flag": number % 2 == 0,
        "tiny": number % 128,
        "small": -number,
        "whole": number,
        "long": number << 40,
        "single": number / 8,
        "ratio": number / 7,
        "price": Decimal(number).scaleb(-2),
        "many": [number, None],
        "pair": {"a": number, "b": [text, None]},
    }
    return {k: v for k, v in whole.items() if number % 5 or k in NOT_NULL}


def stream_of(types: dict[str, str], node: LocalNode) -> StreamApplication:
    path = node.directory / "application.yaml"
    path.write_text(APPLICATION.format(schema=types))
    return load_application(path)


def reader_of(application: StreamApplication, node: LocalNode) -> JournalReader:
    stream, me = application.streams["events"], ProcessId.of_this()
    options = SourceOptions(
        str(node.socket), node.incarnation, "all", stream.name, stream.arrow_schema, me
    )
    return JournalReader(options, StructType.fromDDL(stream.spark_schema))


def test_the_rows_of_a_small_batch_come_with_its_plan_those_of_a_large_or_empty_one_do_not(
    node: LocalNode,
) -> None:
    application = stream_of(FLAT, node)
    node.append(application.streams["events"], [row(1, "small"), row(2, "too")])
    node.append(application.streams["events"], [row(3, "x" * SMALL_BYTES)])
    reader = reader_of(application, node)
    nothing, small, large = ({"mark": n, "sequence": n} for n in range(3))
    (plan,) = reader.partitions(nothing, small)
    came = pa.Table.from_batches(reader.getCache(nothing, small))
    assert came.column("text").to_pylist() == ["small", "too"]
    assert came.equals(pa.Table.from_batches(reader.read(plan)))
    assert len(reader.partitions(small, large)) == 1
    assert reader.getCache(small, large) is None
    reader.partitions(nothing, small)
    assert reader.partitions(small, small) == []
    assert reader.getCache(small, small) is None


def test_rows_with_arrays_or_structs_do_not_come_with_the_plan(node: LocalNode) -> None:
    application = stream_of(NESTED, node)
    node.append(application.streams["events"], [row(1, "small")])
    reader = reader_of(application, node)
    begin, end = {"mark": 0, "sequence": 0}, {"mark": 1, "sequence": 1}
    assert len(reader.partitions(begin, end)) == 1
    assert reader.getCache(begin, end) is None


@pytest.mark.parametrize("types", [FLAT, NESTED], ids=["flat", "nested"])
def test_rows_of_every_type_are_the_same_in_a_small_and_in_a_large_batch(
    types: dict[str, str],
    node: LocalNode,
    runner: Callable[[StreamApplication], QueryRunner],
) -> None:
    application = stream_of(types, node)
    for text in ("short", "x" * SMALL_BYTES):
        rows = [row(n, text if n == 0 else "") for n in range(11)]
        node.append(application.streams["events"], rows)
        node.mark("all")
    runner(application).run(run_command(application.queries["all"]))
    small, large = (_told(node.admitted("all", number)) for number in (1, 2))
    for name in types:
        assert [one[name] for one in small[1:]] == [row(n, "").get(name) for n in range(1, 11)]
    assert (small[0].pop("text"), len(large[0].pop("text"))) == ("short", SMALL_BYTES)
    assert small == large


def _told(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.drop_columns(["_event_id"]).to_pylist()
    return rows
