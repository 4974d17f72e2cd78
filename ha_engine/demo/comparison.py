"""Compare the demo's sink tables with the result that pandas computes from the same file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
from sqlalchemy import MetaData, Table, select

from ha_engine.demo.reference import reference_alerts, reference_delays
from ha_engine.postgres.engine import open_engine

ALERT_MEAN_ABOVE = 60.0
ALERT_DEPARTED_MIN = 5
WATERMARK = timedelta(hours=2)
"""The values of the alert query in conf/applications/flights.yaml. A test compares both."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The comparison of one query's table: rows found, rows expected, rows that differ."""

    query: str
    found: int
    expected: int
    differing: int

    @property
    def equal(self) -> bool:
        return self.differing == 0 and self.found == self.expected


def compare(url: str, flights: pa.Table) -> list[Outcome]:
    """Compare the table of each query of the demo; mean delays must be equal to the last bit."""
    references: dict[str, Callable[[], pd.DataFrame]] = {
        "delays": lambda: reference_delays(flights),
        "alerts": lambda: reference_alerts(
            flights,
            delay_mean_above=ALERT_MEAN_ABOVE,
            watermark=WATERMARK,
            departed_min=ALERT_DEPARTED_MIN,
        ),
    }
    return [_outcome(name, _rows_of(url, name), make()) for name, make in references.items()]


def _rows_of(url: str, table_name: str) -> list[dict[str, Any]]:
    # Read the rows without a transaction. PostgreSQL ends a transaction that is idle for ten
    # seconds, and a slow host needs longer to make dictionaries of the rows.
    engine = open_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    table = Table(table_name, MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def _outcome(query: str, found: list[dict[str, Any]], expected: pd.DataFrame) -> Outcome:
    """Compare one table. A duplicate row counts as a difference."""
    columns = list(expected.columns)
    have = pd.Series([_key(row, columns) for row in found], dtype=object).value_counts()
    records = expected.to_dict("records")
    want = pd.Series([_key(row, columns) for row in records], dtype=object).value_counts()
    difference = have.subtract(want, fill_value=0).abs().sum()
    return Outcome(query, len(found), len(expected), int(difference))


def _key(row: dict[Any, Any], columns: list[str]) -> tuple[Any, ...]:
    return tuple(_plain(row[column]) for column in columns)


def _plain(value: Any) -> Any:
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return None
    if hasattr(value, "timestamp"):
        return value.timestamp()
    return value.item() if hasattr(value, "item") else value
