"""The demo's events and references, against figures taken from the file independently."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ha_engine.demo import flights, reference
from ha_engine.errors import DemoNotInstalled
from ha_engine.query.application import load_application

APPLICATIONS = Path(__file__).parents[1] / "conf" / "applications"


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return flights.departures()


def at(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)  # type: ignore[arg-type,misc]


def event(minute: int, delay: int | None, origin: str = "JFK", hour: int = 9) -> dict[str, Any]:
    return {
        "event_time": at(2013, 1, 1, hour, minute),
        "carrier": "B6",
        "flight": minute,
        "tailnum": None,
        "origin": origin,
        "dest": "BOS",
        "dep_delay": delay,
        "arr_delay": None,
        "distance": 187,
    }


def test_year_is_complete_with_its_cancelled_flights_as_nulls(year: pa.Table) -> None:
    assert year.num_rows == flights.FLIGHTS == 336_776
    assert year["dep_delay"].null_count == flights.CANCELLED == 8_255
    assert year["arr_delay"].null_count == 9_430
    assert year["tailnum"].null_count == 2_512
    assert pc.sum(year["dep_delay"]).as_py() == 4_152_200
    assert year.schema.equals(flights.DEPARTURES, check_metadata=True)
    year.validate(full=True)


def test_event_time_is_the_scheduled_departure_on_the_local_clock(year: pa.Table) -> None:
    first, last = year.slice(0, 1).to_pylist()[0], year.slice(year.num_rows - 1).to_pylist()[0]
    assert first["event_time"] == at(2013, 1, 1, 5, 15)
    assert (first["carrier"], first["flight"], first["tailnum"]) == ("UA", 1545, "N14228")
    assert (first["dep_delay"], first["arr_delay"], first["distance"]) == (2, 11, 1400)
    assert last["event_time"] == at(2013, 12, 31, 23, 59)


def test_order_of_the_flights_is_total(year: pa.Table) -> None:
    keys = ["event_time", "origin", "carrier", "flight"]
    rows = year.select(keys)
    assert rows.equals(rows.sort_by([(key, "ascending") for key in keys]))
    assert rows.group_by(keys).aggregate([]).num_rows == rows.num_rows


def test_weather_has_one_reading_for_each_airport_and_hour() -> None:
    readings = flights.weather()
    assert readings.num_rows == flights.WEATHER_READINGS == 26_112
    assert readings.group_by(["hour", "origin"]).aggregate([]).num_rows == readings.num_rows
    first = readings.slice(0, 1).to_pylist()[0]
    assert (first["hour"], first["origin"], first["temp"]) == (at(2013, 1, 1, 1), "EWR", 39.02)
    assert readings.schema.equals(flights.WEATHER, check_metadata=True)


def test_reference_counts_departed_and_cancelled_flights_separately(year: pa.Table) -> None:
    delays = reference.reference_delays(year)
    assert (delays["departed"].sum(), delays["cancelled"].sum()) == (328_521, 8_255)
    hour = delays[
        (delays["origin"] == "JFK")
        & (delays["carrier"] == "DL")
        & (delays["hour"] == at(2013, 2, 9, 16))
    ]
    # The file has six rows for this hour: delays -2, -5, 2, 38, -4 and one cancelled.
    [row] = hour.to_dict("records")
    assert (row["departed"], row["cancelled"], row["delay_sum"]) == (5, 1, 29)
    assert row["delay_mean"] == 29 / 5


def test_an_hour_of_cancelled_flights_has_no_mean() -> None:
    table = pa.Table.from_pylist([event(0, None), event(1, None)], schema=flights.DEPARTURES)
    delays = reference.reference_delays(table)
    assert delays["cancelled"].tolist() == [2]
    assert delays["delay_mean"].isna().all()
    assert delays["delay_sum"].isna().all()


def test_alerts_are_the_late_hours_closed_by_the_watermark() -> None:
    late, punctual = event(0, 50), event(0, 10, origin="EWR")
    few = event(5, 90, origin="LGA")
    still_open = event(30, 60, hour=11)
    table = pa.Table.from_pylist(
        [late, event(1, 30), punctual, few, still_open], schema=flights.DEPARTURES
    )
    alerts = reference.reference_alerts(
        table, delay_mean_above=39.0, watermark=timedelta(hours=1), departed_min=2
    )
    [row] = alerts.to_dict("records")
    assert (row["origin"], row["hour"]) == ("JFK", at(2013, 1, 1, 9))
    assert (row["departed"], row["delay_mean"]) == (2, 40.0)
    # The watermark, 11:30 less 90 minutes, reaches the end of the hour, 10:00, exactly.
    for minutes, count in ((90, 1), (91, 0)):
        closed = reference.reference_alerts(
            table, delay_mean_above=45.0, watermark=timedelta(minutes=minutes)
        )
        assert len(closed[closed["origin"] == "LGA"]) == count


@pytest.mark.parametrize("name", ["flights", "join", "function"])
def test_sample_applications_accept_the_events_unchanged(name: str) -> None:
    application = load_application(APPLICATIONS / f"{name}.yaml")
    assert application.streams["departures"].arrow_schema.equals(flights.DEPARTURES)
    if "weather" in application.streams:
        assert application.streams["weather"].arrow_schema.equals(flights.WEATHER)


def test_missing_extra_is_reported_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(DemoNotInstalled, match=r"ha-engine\[demo\]"):
        flights.departures()
