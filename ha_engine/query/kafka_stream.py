"""The frame of a stream whose events stay in Kafka, read by Spark's own Kafka source.

A record's value is a JSON object with the columns of the stream. A record without a value is no
event. A record with another value is invalid, and so is one with a null in a column that has none.
An invalid record fails the query, or is left out and counted, as the log's option ``invalid`` says.
Only the record decides, so the rows of a batch are the same on every node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ha_engine.connectors.kafka.log import spark_options
from ha_engine.errors import ApplicationError
from ha_engine.query.application import StreamSpec
from ha_engine.query.plugin_sections import log_options
from ha_engine.query.source_reader import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = "haengine.kafka.MarkedKafka"
OBSERVED = "invalid records of "
"""Begins the name under which Spark reports the invalid records of a stream."""
_UNDECODABLE = "_ha_engine_undecodable"
IDENTITY = "_ha_engine_identity"
_HEADERS = ("ha-producer", "ha-sequence", "ha-row")


def kafka_frame(
    spark: SparkSession, stream: StreamSpec, base: Path, source: SourceOptions, socket: Path
) -> DataFrame:
    """The streaming frame of ``stream``, with its columns, its system columns, and IDENTITY if its
    queries drop duplicates.

    ``base`` is the directory of the application file, and ``socket`` that of ``kafka_marks``.
    Raises ApplicationError, ConfigError.
    """
    assert stream.log is not None
    options = log_options(stream.name, stream.log, base)
    try:
        found = spark_options(options)
    except OSError as error:
        raise ApplicationError(f"stream {stream.name}: log: {error}") from error
    found |= {f"mark.{name}": value for name, value in source.marks(socket).items()}
    # Spark reads a partition with one task, unless that makes fewer tasks than this.
    found |= {"minPartitions": str(source.tasks)} if source.tasks else {}
    found |= {"includeHeaders": "true"} if stream.drops_duplicates else {}
    records = spark.readStream.format(FORMAT).options(**found).load()
    schema = ", ".join([*(column.ddl for column in stream.columns), f"{_UNDECODABLE} STRING"])
    modes = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_UNDECODABLE}')"
    event = f"from_json(CAST(value AS STRING), {_literal(schema)}, {modes}) AS event"
    events = records.where("value IS NOT NULL").selectExpr("*", event)
    events = events.selectExpr("*", f"{_problem(stream)} AS problem")
    if options.invalid == "fail":
        events = events.withColumn("problem", _raised(stream))
    # Spark evaluates what it observes for every record, whatever the query selects, and moves no
    # condition below it. So each problem is noticed, and no value is decoded twice.
    events = events.observe(f"{OBSERVED}{stream.name}", *_observed()).where("problem IS NULL")
    columns = [f"event.`{column.name}`" for column in stream.columns]
    system = {"_received_at": "timestamp", "_event_id": _event_id(stream)}
    columns += [f"{system[name]} AS {name}" for name in stream.system_columns]
    columns += [f"{_identity(stream)} AS {IDENTITY}"] if stream.drops_duplicates else []
    return events.selectExpr(*columns)


def without_duplicates(frame: DataFrame) -> DataFrame:
    """Drop the events of a stream that are there twice within its watermark."""
    return frame.dropDuplicatesWithinWatermark([IDENTITY]).drop(IDENTITY)


def _event_id(stream: StreamSpec) -> str:
    """The expression of the place of a record. An event of the journal has an id of two numbers
    too, so the id of a record has the topic if the stream has both."""
    topic = "topic, '-', " if stream.is_in_both else ""
    return f"concat({topic}partition, '-', offset)"


def _identity(stream: StreamSpec) -> str:
    """The expression of what identifies an event: producer, sequence and row as a receiver writes
    them, or else the place of the record."""
    found = (f"get(filter(headers, h -> h.key = '{name}'), 0).value" for name in _HEADERS)
    texts = ", '/', ".join(f"CAST({value} AS STRING)" for value in found)
    return f"coalesce(concat({texts}), {_event_id(stream)})"


def _observed() -> list[Column]:
    """The number of invalid records in a batch, and the first of them, for ``progress``."""
    from pyspark.sql.functions import expr

    first = "min(if(problem IS NULL, NULL, struct(partition, offset, problem)))"
    return [expr("count(problem) AS records"), expr(f"{first} AS first")]


def _raised(stream: StreamSpec) -> Column:
    """The problem of a record, which fails the query."""
    from pyspark.sql.functions import expr

    text = _literal(f"stream {stream.name}: partition %d, offset %d: %s")
    error = f"raise_error(format_string({text}, partition, offset, problem))"
    return expr(f"if(problem IS NULL, problem, {error})")


def _problem(stream: StreamSpec) -> str:
    """The expression of what is wrong with a record, or null."""
    wanted = "the value is no JSON object with the columns of the stream"
    cases = [f"WHEN event IS NULL OR event.{_UNDECODABLE} IS NOT NULL THEN '{wanted}'"]
    cases += [
        f"WHEN event.`{column.name}` IS NULL THEN {_literal(f'column {column.name} is null')}"
        for column in stream.columns
        if not column.nullable
    ]
    return f"CASE {' '.join(cases)} END"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
