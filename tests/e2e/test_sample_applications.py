"""The other sample applications on a real node: two joined streams, and a Python function."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ha_engine.client import Producer
from ha_engine.demo.flights import departures, weather
from ha_engine.demo.nodes import sample_application
from tests.e2e.databases import rows
from tests.e2e.node_under_test import NodeUnderTest, running

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("test_samples runs the same applications over one Spark session"),
]

DAYS = [pd.Timestamp(2013, 1, day, tz="UTC") for day in range(1, 6)]
ON_TIME_MINUTES_MAX = 15


@contextmanager
def node_with(sample: str, url: str, directory: Path) -> Iterator[NodeUnderTest]:
    node = NodeUnderTest(directory, sample_application(sample), url)
    (directory / "punctuality.py").write_text(sample_application("punctuality.py"))
    with running(node):
        node.wait_running()
        yield node


def day_of(table: pa.Table, column: str, day: pd.Timestamp) -> pa.Table:
    moments = table[column]
    end = day + pd.Timedelta(days=1)
    return table.filter(pc.and_(pc.greater_equal(moments, day), pc.less(moments, end)))


def test_join_of_two_streams_equals_that_of_pandas(node_database: str, tmp_path: Path) -> None:
    flights = [day_of(departures(), "event_time", day) for day in DAYS]
    readings = [day_of(weather(), "hour", day) for day in DAYS]
    with node_with("join.yaml", node_database, tmp_path) as node:
        with Producer([node.url]) as producer:
            for flown, read in zip(flights, readings, strict=True):
                for stream, table in (("departures", flown), ("weather", read)):
                    for batch in table.to_batches():
                        producer.send(stream, batch)
                producer.flush()
        node.wait_settled()
        found = rows(node_database, f"SELECT {JOINED} FROM departures_in_weather")
        assert sorted(map(plain, found)) == sorted(
            map(plain, joined(pa.concat_tables(flights), pa.concat_tables(readings)))
        )
        assert len(found) > 3_000
        marks = marks_of_batches(node.data_dir / "checkpoints" / "departures_in_weather")
        assert len(marks) > 1
        assert {len(sources) for sources in marks} == {2}
        assert [sources for sources in marks if sources[0] != sources[1]] == []


def test_counts_of_a_python_function_equal_those_of_pandas(
    node_database: str, tmp_path: Path
) -> None:
    flights = departures().slice(0, 5_000)
    with node_with("function.yaml", node_database, tmp_path) as node:
        with Producer([node.url]) as producer:
            for batch in flights.to_batches():
                producer.send("departures", batch)
        node.wait_settled()
        found = rows(node_database, "SELECT origin, hour, verdict, flights FROM punctuality")
        assert sorted(map(plain, found)) == sorted(map(plain, verdicts(flights)))


# -- references ------------------------------------------------------------------------------------

JOINED = "event_time, origin, carrier, flight, dep_delay, wind_speed, precip, visib"


def joined(flights: pa.Table, readings: pa.Table) -> list[tuple[Any, ...]]:
    left, right = flights.to_pandas(), readings.to_pandas()
    left["hour"] = left["event_time"].dt.floor("h")
    merged = left.merge(right, on=["origin", "hour"])
    return list(merged[JOINED.split(", ")].itertuples(index=False, name=None))


def verdicts(flights: pa.Table) -> list[tuple[Any, ...]]:
    frame = flights.to_pandas()
    frame["hour"] = frame["event_time"].dt.floor("h")
    frame["verdict"] = pd.cut(
        frame["dep_delay"],
        [-10_000, -1, ON_TIME_MINUTES_MAX, 10_000],
        labels=["early", "on time", "late"],
    ).astype(object)
    frame["verdict"] = frame["verdict"].where(frame["dep_delay"].notna(), "cancelled")
    counted = frame.groupby(["origin", "hour", "verdict"]).size().reset_index()
    return list(counted.itertuples(index=False, name=None))


def plain(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Return one form for a timestamp, a number and a null of either side."""
    return tuple("" if pd.isna(value) else _text(value) for value in row)


def _text(value: Any) -> str:
    if hasattr(value, "timestamp"):
        return str(value.timestamp())
    return value if isinstance(value, str) else str(float(value))


def marks_of_batches(checkpoint: Path) -> list[list[tuple[int, int]]]:
    """Return (mark, sequence) of each source, for every batch that Spark has kept."""
    batches = []
    for log in (checkpoint / "offsets").iterdir():
        if log.name.isdigit():
            offsets = [json.loads(line) for line in log.read_text().splitlines()[2:]]
            batches.append([(offset["mark"], offset["sequence"]) for offset in offsets])
    return batches
