"""The query of function.yaml: how many departures were early, on time, late or cancelled."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, udf, window

ON_TIME_MINUTES_MAX = 15


def verdict(delay_minutes: int | None) -> str:
    """A rule that Python says better than SQL; it may use nothing but its argument."""
    if delay_minutes is None:
        return "cancelled"
    if delay_minutes < 0:
        return "early"
    return "on time" if delay_minutes <= ON_TIME_MINUTES_MAX else "late"


JUDGE = udf(verdict, "string", useArrow=False)


def by_airport_and_hour(streams: dict[str, DataFrame]) -> DataFrame:
    """One row per airport, hour and verdict."""
    judged = streams["departures"].withColumn("verdict", JUDGE("dep_delay"))
    hours = judged.groupBy("origin", window("event_time", "1 hour"), "verdict")
    counted = hours.agg(count("*").alias("flights"))
    return counted.select("origin", col("window.start").alias("hour"), "verdict", "flights")
