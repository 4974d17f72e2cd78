"""An aggregation: sums, counts and extremes of a query's rows for each second, hour, month or year.

A sink of type ``aggregation`` adds the rows to one table for each granularity, and the HTTP
interface reads these tables. This module has the definition, and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal, get_args

Granularity = Literal["second", "minute", "hour", "day", "week", "month", "year"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
START = "start"
"""The column with the start of a period."""

Function = Literal["sum", "count", "min", "max"]
ValueFunction = Literal["sum", "count", "min", "max", "avg"]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A column of the tables, which ``function`` computes of ``source``, or of whole rows if that
    is None."""

    column: str
    function: Function
    source: str | None


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an aggregation, such as ``total: sum(amount)``."""

    name: str
    function: ValueFunction
    source: str | None

    @property
    def stored(self) -> tuple[StoredValue, ...]:
        """The columns that the tables have. An average is not exact when averages are averaged, so
        the tables have its sum and its count."""
        if self.function == "avg":
            return (
                StoredValue(f"{self.name}_sum", "sum", self.source),
                StoredValue(f"{self.name}_count", "count", self.source),
            )
        return (StoredValue(self.name, self.function, self.source),)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The definition of an aggregation.

    ``table`` is the first part of the names of the tables. ``at`` is the column with the time of a
    row, and periods begin in ``time_zone``. ``keep`` has the seconds for which the tables keep the
    periods of a granularity; a granularity that it lacks keeps all.
    """

    name: str
    table: str
    at: str
    by: tuple[str, ...]
    per: tuple[str, ...]
    values: tuple[Value, ...]
    keep: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    time_zone: str = "UTC"

    @property
    def stored(self) -> tuple[StoredValue, ...]:
        return tuple(stored for value in self.values for stored in value.stored)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that the query must yield."""
        values = (value.source for value in self.values if value.source is not None)
        return tuple(dict.fromkeys((self.at, *self.by, *values)))

    def table_of(self, granularity: str) -> str:
        return f"{self.table}_{granularity}"


@dataclass(frozen=True, slots=True)
class Question:
    """Which rows of an aggregation a request wants.

    Each row has a period that begins at ``since`` or later and before ``until``, and values over
    all rows of the query with equal values of ``by``. ``where`` has the value, as text, that a key
    must have.
    """

    per: str
    by: tuple[str, ...]
    where: Mapping[str, str]
    since: datetime | None = None
    until: datetime | None = None
    descending: bool = False
    rows_max: int = 1_000
