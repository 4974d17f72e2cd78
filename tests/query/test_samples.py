"""The sample applications run as they are, those of flights over the demo's own schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.demo.flights import DEPARTURES, WEATHER, departures
from ha_engine.query.application import load_application
from ha_engine.query.check import check_application
from tests.query.local_node import LocalNode, run_command

SAMPLES = Path(__file__).parents[2] / "conf" / "applications"
NAMES = sorted(path.name for path in SAMPLES.glob("*.yaml"))
FLIGHTS = 2_000


def test_streams_of_the_samples_of_flights_are_those_of_the_demo() -> None:
    for name in ("flights.yaml", "function.yaml", "join.yaml"):
        for stream in load_application(SAMPLES / name).streams.values():
            expected = {"departures": DEPARTURES, "weather": WEATHER}[stream.name]
            assert stream.arrow_schema == expected, name


@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_each_sample_application_can_run(spark: Any, name: str) -> None:
    report = check_application(load_application(SAMPLES / name), spark)
    assert report.is_good, report


@pytest.mark.spark
def test_python_function_sample_counts_every_flight_once(node: LocalNode, runner: Any) -> None:
    app = load_application(SAMPLES / "function.yaml")
    runner(app, "function.yaml").run(run_command(app.queries["punctuality"]))
    flights: pa.Table = departures().slice(0, FLIGHTS)
    node.append(app.streams["departures"], *flights.combine_chunks().to_batches())
    node.mark("punctuality")
    rows = node.admitted("punctuality", 1)
    assert sum(rows.column("flights").to_pylist()) == FLIGHTS
    assert set(rows.column("verdict").to_pylist()) == {"early", "on time", "late", "cancelled"}
