"""The journal source gives Spark the rows of a small batch with its plan, those of others not."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths, read_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as planner
from pyspark.sql.types import StructType

from ha_engine.errors import DiskFailed
from ha_engine.query.application import StreamApplication, StreamSpec, load_application
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.runner import QueryRunner
from ha_engine.query.source_reader import SMALL_BYTES, SMALL_ROWS, JournalReader, SourceOptions
from tests.query.local_node import LocalNode, run_command
from tests.waiting import wait_until

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
    "fine": "decimal(38,10)",
}
NESTED = {**FLAT, "many": "array<int>", "pair": "struct<a: int, b: array<string>>"}
NOT_NULL = ("at", "text", "long")
APPLICATION = """
name: types
streams:
  events:
    schema: {schema}
    system_columns: [_received_at, _event_id]
  others:
    schema: {{flag: boolean}}
queries:
  all:
    sql: SELECT * FROM events
"""


def row(number: int, text: str) -> dict[str, Any]:
    """Return a row; every fifth has only its required fields."""
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
        "fine": Decimal(f"{number}234567890123456789012345.0123456789"),
        "many": [number, None],
        "pair": {"a": number, "b": [text, None]},
    }
    return {k: v for k, v in whole.items() if number % 5 or k in NOT_NULL}


def stream_of(types: dict[str, str], node: LocalNode) -> StreamApplication:
    path = node.directory / "application.yaml"
    path.write_text(APPLICATION.format(schema=types))
    return load_application(path)


def reader_of(stream: StreamSpec, node: LocalNode, tasks: int | None = None) -> JournalReader:
    options = SourceOptions(
        socket=str(node.socket),
        incarnation=node.incarnation,
        query="all",
        stream=stream.name,
        schema=stream.arrow_schema,
        driver=ProcessId.of_this(),
        lineage="j:1",
        tasks=tasks,
    )
    schema = StructType.fromDDL(stream.spark_schema)
    return JournalReader(SourceOptions.from_text(options.to_text()), schema)


def offset(sequence: int) -> dict[str, int]:
    return {"mark": sequence, "sequence": sequence}


def planned(
    application: StreamApplication, node: LocalNode, first: int, last: int, name: str = "events"
) -> tuple[int, list[dict[str, Any]] | None]:
    """Return the answer of Spark's planning worker for the records first..last of a stream: the
    number of partitions, and the rows if they come with the plan."""
    stream = application.streams[name]
    schema = StructType.fromDDL(stream.spark_schema)
    reader, asked, answer = reader_of(stream, node), io.BytesIO(), io.BytesIO()
    for sequence in (first - 1, last):
        write_with_length(json.dumps(offset(sequence)).encode(), asked)
    asked.seek(0)
    planner.partitions_func(reader, None, schema, 10_000, asked, answer)
    answer.seek(0)
    partitions = [answer.read(read_int(answer)) for _ in range(read_int(answer))]
    match read_int(answer):
        case planner.NON_EMPTY_PYARROW_RECORD_BATCHES:
            assert read_int(answer) == SpecialLengths.START_ARROW_STREAM
            return len(partitions), pa.ipc.open_stream(answer).read_all().to_pylist()
        case planner.EMPTY_PYARROW_RECORD_BATCHES:
            return len(partitions), []
    return len(partitions), None


def test_only_the_rows_of_a_small_batch_come_with_its_plan(node: LocalNode) -> None:
    application = stream_of(FLAT, node)
    events, others = application.streams["events"], application.streams["others"]
    node.append(events, [row(1, "small"), row(2, "too")], [row(3, "x" * SMALL_BYTES)])
    node.append(others, [{"flag": True}] * SMALL_ROWS, [{"flag": False}])
    partitions, rows = planned(application, node, 1, 1)
    assert partitions == 1
    assert [(one["text"], one["_event_id"]) for one in rows or ()] == [
        ("small", "1-0"),
        ("too", "1-1"),
    ]
    assert planned(application, node, 2, 2) == (1, None)
    assert planned(application, node, 3, 4) == (1, [])
    assert planned(application, node, 5, 4) == (0, None)
    assert len(planned(application, node, 3, 3, "others")[1] or ()) == SMALL_ROWS
    assert planned(application, node, 3, 4, "others") == (1, None)


def test_a_query_that_names_its_tasks_divides_each_record_among_them(node: LocalNode) -> None:
    stream = stream_of(FLAT, node).streams["events"]
    numbers = [range(7), range(7, 8), range(8, 5_000)]
    node.append(stream, *([row(n, "x" * 999) for n in one] for one in numbers))
    reader = reader_of(stream, node, tasks=3)
    for first, last in ((0, 1), (1, 2), (1, 3), (0, 3)):
        parts = reader.partitions(offset(first), offset(last))
        read = [
            [n for rows in reader.read(one) for n in rows["whole"].to_pylist()] for one in parts
        ]
        wanted = [n for one in numbers[first:last] for n in one if n % 5]
        assert len(parts) >= 3
        assert sorted(n for one in read for n in one if n is not None) == wanted
        assert max(map(len, read)) - min(map(len, read)) <= last - first
    assert reader.partitions(offset(3), offset(3)) == []
    assert reader.getCache(offset(0), offset(1)) is None


def test_rows_with_arrays_or_structs_do_not_come_with_the_plan(node: LocalNode) -> None:
    application = stream_of(NESTED, node)
    node.append(application.streams["events"], [row(1, "small")])
    assert planned(application, node, 1, 1) == (1, None)


@pytest.mark.parametrize("text", ["small", "x" * SMALL_BYTES], ids=["small", "large"])
def test_unreadable_journal_ends_the_process_without_blaming_a_batch(
    text: str,
    node: LocalNode,
    runner: Callable[[StreamApplication], QueryRunner],
    ended: list[BaseException],
) -> None:
    application = stream_of(FLAT, node)
    node.append(application.streams["events"], [row(1, text)])
    node.mark("all")
    (extent,) = node.journal.locate(1, 1)
    with Path(extent.path).open("r+b") as segment:
        segment.seek(extent.offset + extent.length - 9)
        segment.write(b"otherwise")
    runner(application).run(run_command(application.queries["all"]))
    wait_until(lambda: ended, within=60)
    assert isinstance(ended[0], DiskFailed)
    assert f"{extent.path} is damaged" in str(ended[0])
    assert not node.seen.failed


@pytest.mark.parametrize("types", [FLAT, NESTED], ids=["flat", "nested"])
def test_rows_of_every_type_are_equal_in_small_and_large_batches(
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
    small, large = (_rows(node.admitted("all", number)) for number in (1, 2))
    for name in types:
        assert [one[name] for one in small[1:]] == [row(n, "").get(name) for n in range(1, 11)]
    assert (small[0].pop("text"), len(large[0].pop("text"))) == ("short", SMALL_BYTES)
    assert small == large


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.drop_columns(["_event_id"]).to_pylist()
    return rows
