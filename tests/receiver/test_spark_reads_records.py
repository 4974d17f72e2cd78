"""Spark reads from a record exactly the value that the event had, for each type of a column.

The journal has the Arrow values of the events, so a query sees the same rows from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.query.session import SparkSettings, start_spark
from ha_engine.receiver.records import records_of
from tests.receiver.event_values import COLUMNS, SCHEMA, events

pytestmark = [pytest.mark.nightly("a Spark of its own takes ten seconds"), pytest.mark.spark]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    scratch = tmp_path_factory.mktemp("spark") / "scratch"
    session = start_spark(SparkSettings(master="local[1]", heap=1 << 30, scratch=scratch, spark={}))
    yield session
    session.stop()


def from_the_topic(spark: Any, rows: pa.RecordBatch) -> pa.Table:
    values = enumerate(records_of(rows, None, None).values)
    records = spark.createDataFrame(list(values), "row long, value binary")
    schema = ", ".join(column.ddl for column in COLUMNS)
    event = f"from_json(CAST(value AS STRING), '{schema}', map('mode', 'FAILFAST')) AS event"
    return records.selectExpr("row", event).orderBy("row").select("event.*").toArrow()


def test_spark_reads_the_values_of_the_events(spark: Any) -> None:
    rows = events()
    read = from_the_topic(spark, rows)
    assert [field.type for field in read.schema] == [field.type for field in SCHEMA]
    for name in SCHEMA.names:
        found, wanted = read[name].to_pylist(), rows[name].to_pylist()
        # The texts differ where two values are equal and yet not the same, as 0.0 and -0.0 are.
        assert list(map(str, found)) == list(map(str, wanted)), name
