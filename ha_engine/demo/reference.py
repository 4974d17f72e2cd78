"""Compute the expected results of the demo's queries with pandas, without code of the engine."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
import pyarrow as pa


def reference_delays(flights: pa.Table) -> pd.DataFrame:
    """The expected result of the delay query for ``flights`` (schema ``DEPARTURES``).

    The result has one row per origin, carrier and hour of the scheduled departure, sorted by these
    three columns. ``departed`` and ``cancelled`` are counts of flights. ``delay_sum`` and
    ``delay_mean`` are minutes over the departed flights, and null if no flight departed.
    """
    return _delays_by(flights, ["origin", "carrier", "hour"])


def reference_alerts(
    flights: pa.Table, *, delay_mean_above: float, watermark: timedelta, departed_min: int = 1
) -> pd.DataFrame:
    """The expected output of the alert query, in append mode, after it has read all of ``flights``.

    The output has one row for each origin and hour with a mean delay above ``delay_mean_above``
    minutes. In each such hour at least ``departed_min`` flights departed from the origin. Spark has
    output an hour only if the watermark has passed the end of the hour. The watermark is the latest
    event_time minus ``watermark``. The columns are those of ``reference_delays`` without carrier.
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
