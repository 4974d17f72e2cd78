"""The frame of a stream whose events stay in Kafka, read by Spark's own Kafka source.

A record's value is a JSON object with the columns of the stream. A record without a value is no
event. A value that is no such object fails the query, and so does a null in a column that has none:
nothing is left out silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ha_engine.connectors.kafka.log import spark_options
from ha_engine.errors import ApplicationError
from ha_engine.query.application import StreamSpec
from ha_engine.query.plugin_sections import log_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "haengine.kafka.MarkedKafka"
_SYSTEM = {
    "_received_at": "timestamp AS _received_at",
    "_event_id": "concat(partition, '-', offset) AS _event_id",
}


def kafka_frame(
    spark: SparkSession, stream: StreamSpec, base: Path, marks: dict[str, str]
) -> DataFrame:
    """The streaming frame of ``stream``, with its columns and system columns.

    ``marks`` are the options of ``haengine.kafka.Marks``, without their prefix. ``base`` is the
    directory of the application file. Raises ApplicationError, ConfigError.
    """
    assert stream.log is not None
    try:
        found = spark_options(log_options(stream.name, stream.log, base))
    except OSError as error:
        raise ApplicationError(f"stream {stream.name}: log: {error}") from error
    found |= {f"mark.{name}": value for name, value in marks.items()}
    records = spark.readStream.format(FORMAT).options(**found).load()
    schema = ", ".join(column.ddl for column in stream.columns).replace("'", "\\'")
    event = f"from_json(CAST(value AS STRING), '{schema}', map('mode', 'FAILFAST')) AS event"
    events = records.where("value IS NOT NULL").selectExpr("*", event)
    columns = [_column(stream.name, column.name, column.nullable) for column in stream.columns]
    return events.selectExpr(*columns, *(_SYSTEM[name] for name in stream.system_columns))


def _column(stream: str, name: str, nullable: bool) -> str:
    if nullable:
        return f"event.`{name}` AS `{name}`"
    problem = f"stream {stream}: column {name} is null in partition "
    place = f"concat('{problem}', partition, ', offset ', offset)"
    return f"coalesce(event.`{name}`, raise_error({place})) AS `{name}`"
