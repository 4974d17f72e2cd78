"""The application file: its meaning, and the sentence of each refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.errors import ApplicationError
from ha_engine.query.application import (
    OutputMode,
    PluginSinkSpec,
    PythonFunction,
    load_application,
)
from ha_engine.query.columns import parse_column
from ha_engine.query.sql_words import names_in, watermarked_in

GOOD = """
name: flights
streams:
  departures:
    schema:
      event_time: timestamp not null
      carrier: string not null
      delay: int
      price: decimal(10, 2)
      tags: array<string>
      place: "struct<lat: double, lon: double>"
    watermark: {column: event_time, delay: 10m}
    system_columns: [_received_at, _event_id]
  weather:
    schema: {event_time: timestamp not null, origin: string not null}
queries:
  late:
    sql: SELECT carrier, delay FROM departures WHERE delay > 60
    sinks:
      - {name: table, type: postgres, table: public.late, auto_create: true}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "app.yaml"
    path.write_text(text)
    return path


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(ApplicationError) as caught:
        load_application(write(directory, text))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_application_file_defines_streams_queries_and_sinks(tmp_path: Path) -> None:
    app = load_application(write(tmp_path, GOOD))
    stream = app.streams["departures"]
    assert stream.arrow_schema.field("event_time") == pa.field(
        "event_time", pa.timestamp("us", tz="UTC"), nullable=False
    )
    assert stream.arrow_schema.field("price").type == pa.decimal128(10, 2)
    assert stream.spark_schema.endswith(
        "`_received_at` timestamp NOT NULL, `_event_id` string NOT NULL"
    )
    assert stream.watermark is not None
    assert stream.watermark.delay == "10 minutes"
    query = app.queries["late"]
    assert query.streams == ("departures",)
    assert query.output_mode is OutputMode.APPEND
    assert query.sinks[0].table == "public.late"


def test_digest_changes_exactly_with_settings_that_change_the_output(tmp_path: Path) -> None:
    app = load_application(write(tmp_path, GOOD))
    commented = load_application(write(tmp_path, "# a comment\n" + GOOD))
    assert commented.digest == app.digest
    other = load_application(write(tmp_path, GOOD.replace("delay > 60", "delay > 61")))
    assert other.queries["late"].digest != app.queries["late"].digest
    unread = load_application(write(tmp_path, GOOD.replace("origin: string", "station: string")))
    assert unread.queries["late"].digest == app.queries["late"].digest
    assert unread.digest != app.digest
    url = load_application(
        write(tmp_path, GOOD.replace("auto_create: true", "auto_create: true, url: x"))
    )
    assert url.digest == app.digest


def test_buckets_change_the_digest_of_a_warm_application(tmp_path: Path) -> None:
    text = GOOD.replace("    sinks:", "    standby: warm\n    sinks:")
    bucketed = text.replace("auto_create: true", "auto_create: true, buckets: 8")
    without, eight = (load_application(write(tmp_path, one)) for one in (text, bucketed))
    assert eight.queries["late"].sinks[0].buckets == 8
    assert "of each bucket" in eight.queries["late"].sinks[0].guarantee
    four = load_application(write(tmp_path, bucketed.replace("buckets: 8", "buckets: 4")))
    assert len({without.digest, eight.digest, four.digest}) == 3


def test_atomic_batches_need_a_table_with_buckets(tmp_path: Path) -> None:
    text = GOOD.replace("    sinks:", "    standby: warm\n    sinks:", 1)
    each = text.replace("auto_create: true", "auto_create: true, buckets: 8")
    given = each.replace("buckets: 8", "buckets: 8, atomic: batch")
    by_bucket, by_batch = (load_application(write(tmp_path, one)) for one in (each, given))
    assert "all rows of a batch" in by_batch.queries["late"].sinks[0].guarantee
    assert by_bucket.digest != by_batch.digest
    assert "atomic is for a sink with buckets" in refusal(
        tmp_path, given.replace("buckets: 8, ", "")
    )
    assert "should be 'batch'" in refusal(tmp_path, given.replace("atomic: batch", "atomic: all"))
    table = "{name: table, type: postgres, table: public.late, auto_create: true"
    lake = given.replace(table, "{name: lake, type: files, directory: /srv/late")
    assert "only a sink of type postgres has atomic batches" in refusal(tmp_path, lake)


def test_the_digest_of_a_query_covers_its_read_tasks(tmp_path: Path) -> None:
    text = GOOD.replace("    sinks:", "    read_tasks: 8\n    sinks:")
    plain, eight = (load_application(write(tmp_path, one)).queries["late"] for one in (GOOD, text))
    assert (plain.read_tasks, eight.read_tasks) == (None, 8)
    assert plain.digest != eight.digest
    assert "read_tasks" in refusal(tmp_path, text.replace("read_tasks: 8", "read_tasks: 0"))


def test_buckets_of_a_plugin_divide_by_the_key_of_a_message(tmp_path: Path) -> None:
    kafka = "{name: out, type: kafka, brokers: ['k:9092'], topic: t, format: json"
    kafka += ", columns: {carrier: key}, buckets: 8}"
    text = GOOD.replace("    sinks:", "    standby: warm\n    sinks:", 1)
    table = "{name: table, type: postgres, table: public.late, auto_create: true}"
    given = text.replace(table, kafka)
    eight = load_application(write(tmp_path, given))
    (sink,) = eight.queries["late"].sinks
    assert isinstance(sink, PluginSinkSpec)
    assert (sink.buckets, sink.key) == (8, ("carrier",))
    assert "buckets" not in sink.options
    assert sink.guarantee.endswith("each bucket by itself")
    four = load_application(write(tmp_path, given.replace("buckets: 8", "buckets: 4")))
    without = load_application(write(tmp_path, given.replace(", buckets: 8", "")))
    assert len({eight.digest, four.digest, without.digest}) == 3
    stdout = given.replace(kafka, "{name: out, type: stdout, buckets: 8}")
    assert "type stdout has no buckets" in refusal(tmp_path, stdout)


def test_state_partitions_are_a_part_of_the_application_only(
    tmp_path: Path,
) -> None:
    text = GOOD.replace("    sinks:", "    state_partitions: 8\n    sinks:")
    without, eight = (load_application(write(tmp_path, one)) for one in (GOOD, text))
    assert (without.queries["late"].state_partitions, eight.queries["late"].state_partitions) == (
        None,
        8,
    )
    assert without.queries["late"].digest == eight.queries["late"].digest
    assert without.digest != eight.digest


def test_digest_of_a_function_query_covers_its_file(tmp_path: Path) -> None:
    text = GOOD.replace(
        "sql: SELECT carrier, delay FROM departures WHERE delay > 60", "function: mine:late"
    )
    assert "put mine.py beside" in refusal(tmp_path, text)
    (tmp_path / "mine.py").write_text("def late(streams): ...\n")
    first = load_application(write(tmp_path, text)).queries["late"]
    assert isinstance(first.text, PythonFunction)
    assert first.streams == ("departures", "weather")
    (tmp_path / "mine.py").write_text("def late(streams): return 1\n")
    assert load_application(write(tmp_path, text)).queries["late"].digest != first.digest


@pytest.mark.parametrize(
    "form", ["{type: avro, schema_file: f}", "{type: protobuf, descriptor_file: f, message: M}"]
)
def test_digest_covers_the_files_that_a_format_names(tmp_path: Path, form: str) -> None:
    """Nodes with different files would write different bytes for the same rows."""
    nats = f"type: nats, servers: [nats://n], stream: S, format: {form}"
    source, sink = f"    sources: [{{name: s, {nats}}}]", f"      - {{name: m, {nats}, subject: s}}"
    for text in (
        GOOD.replace("    watermark:", f"{source}\n    watermark:", 1),
        GOOD.replace("    sinks:\n", f"    sinks:\n{sink}\n", 1),
    ):
        assert text != GOOD
        (tmp_path / "f").unlink(missing_ok=True)
        digests = {load_application(write(tmp_path, text)).digest}
        for content in (b"", b"one", b"two", b"one"):
            (tmp_path / "f").write_bytes(content)
            digests.add(load_application(write(tmp_path, text)).digest)
        assert len(digests) == 4


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("watermark:", "watermerk:", "did you mean 'watermark'?"),
        ("sinks:", "sink:", "did you mean 'sinks'?"),
        ("auto_create: true", "auto_crate: true", "did you mean 'auto_create'?"),
        ("carrier: string not null", "carrier: strng", "did you mean 'string'?"),
        ("decimal(10, 2)", "decimal(40, 2)", "p <= 38"),
        ("column: event_time, delay: 10m", "column: carrier, delay: 10m", "not a timestamp column"),
        ("delay: 10m", "delay: soon", "'10 minutes'"),
        ("type: postgres", "type: mysql", "postgres"),
        ("FROM departures WHERE delay > 60", "FROM arrivals", "reads no stream"),
        (
            "FROM departures WHERE",
            "FROM departures WATERMARK event_time DELAY OF INTERVAL 1 MINUTE WHERE",
            "keep one",
        ),
        ("  late:", "  2late:", "is not a name"),
        ("auto_create: true", "mode: upsert", "needs key"),
        ("auto_create: true", "key: [carrier]", "only for mode upsert"),
        ("auto_create: true", "buckets: 0", "greater than or equal to 1"),
        ("auto_create: true", "buckets: 8", "set standby: warm"),
        (
            "    sinks:\n      - {name: table, type: postgres, table: public.late,",
            "    standby: warm\n    deterministic: false\n"
            "    sinks:\n      - {name: table, type: postgres, table: public.late, buckets: 8,",
            "remove deterministic: false",
        ),
        (
            "    sinks:\n      - {name: table, type: postgres, table: public.late,",
            "    standby: warm\n    sinks:\n      - {name: out, type: stdout}\n"
            "      - {name: table, type: postgres, table: public.late, buckets: 8,",
            "move the other sinks to a second query",
        ),
        ("[_received_at, _event_id]", "[_now]", "_received_at"),
        ("carrier: string not null", "_event_id: string", "engine's own column"),
        ("  weather:", "  Departures:", "only in case"),
        ("name: flights", "name: flights\nquery: {}", "did you mean 'queries'?"),
        ("    sinks:", "    function: a:b\n    sinks:", "and no other"),
        ("    sinks:", "    output_mode: complete\n    sinks:", "use mode: upsert"),
        ("name: flights", "name: [", "is not YAML"),
        ("name: flights", "name: flights\nname: other", "key 'name' is written twice, in line"),
        ("name: flights", "name: " + "[" * 5000, "is not YAML: it contains characters"),
    ],
)
def test_invalid_application_file_is_refused_with_advice(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert old in GOOD
    assert sentence in refusal(tmp_path, GOOD.replace(old, new, 1))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="cannot be read"):
        load_application(tmp_path / "none.yaml")


def test_stream_names_in_comments_and_literals_are_ignored() -> None:
    sql = "SELECT 'weather' -- weather\n FROM `Departures` /* weather */ d"
    assert "weather" not in names_in(sql)
    assert "departures" in names_in(sql)
    assert not watermarked_in(sql, "departures")
    assert watermarked_in(
        "from Departures AS d WATERMARK t DELAY OF INTERVAL 1 MINUTE", "departures"
    )


COLUMN_TYPES = st.recursive(
    st.sampled_from(["int", "string", "timestamp", "decimal(5,1)", "boolean"]),
    lambda inner: (
        inner.map("array<{}>".format)
        | st.tuples(inner, inner).map(lambda pair: f"struct<a: {pair[0]}, b: {pair[1]}>")
    ),
    max_leaves=6,
)


@given(COLUMN_TYPES, st.booleans())
def test_nested_column_types_are_read_at_any_depth(sql: str, nullable: bool) -> None:
    column = parse_column("c", sql.upper() if nullable else f"{sql} NOT  NULL")
    assert column.nullable is nullable
    assert column.arrow.nullable is nullable
    assert pa.types.is_nested(column.arrow.type) == ("<" in sql)


def test_reading_an_application_needs_no_spark() -> None:
    code = "import sys, ha_engine.query.application_file; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- logs ------------------------------------------------------------------------------------------

LOG = "    log: {type: kafka, brokers: [b:9092], topic: departures}\n"
IN_BOTH = LOG.replace("}", ", journal: true}")
AT = "    watermark: {column: event_time, delay: 10m}\n"


def test_events_of_a_stream_may_stay_in_kafka(tmp_path: Path) -> None:
    plain = load_application(write(tmp_path, GOOD))
    logged = load_application(write(tmp_path, GOOD.replace(AT, AT + LOG)))
    stream = logged.streams["departures"]
    assert stream.log is not None
    assert [one.name for one in stream.pulled] == ["log"]
    assert logged.digest != plain.digest
    # Spark cannot continue the checkpoint, so the application must say what happens to the state.
    assert logged.queries["late"].digest != plain.queries["late"].digest


def test_stream_in_both_places_is_another_one_to_its_queries(tmp_path: Path) -> None:
    both = load_application(write(tmp_path, GOOD.replace(AT, AT + IN_BOTH)))
    logged = load_application(write(tmp_path, GOOD.replace(AT, AT + LOG)))
    assert [one.streams["departures"].is_in_both for one in (both, logged)] == [True, False]
    assert both.queries["late"].digest != logged.queries["late"].digest


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("log: {type: pulsar}", "streams.departures.log.type"),
        ("log: {type: kafka, topic: t}", "streams.departures.log.brokers"),
        ("log: {type: kafka, brokers: [b:1], topic: t, lag: 5}", "lag"),
        (
            "log: {type: kafka, brokers: [b:1], topic: t}\n    sources: [{name: in, type: file, "
            "directory: /tmp, format: ndjson}]",
            "a stream with a log of its own has no sources",
        ),
        (
            "sources: [{name: Log, type: file, directory: /tmp, format: ndjson}]",
            "or one is named log",
        ),
    ],
)
def test_a_wrong_log_is_refused_with_the_reason(tmp_path: Path, log: str, reason: str) -> None:
    assert reason in refusal(tmp_path, GOOD.replace(AT, f"{AT}    {log}\n"))
