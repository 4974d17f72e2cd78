"""Read the keys of a sink of type ``aggregation``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pydantic import AfterValidator, Field

from ha_engine.aggregation import (
    GRANULARITIES,
    START,
    Aggregation,
    Granularity,
    Value,
    ValueFunction,
)
from ha_engine.errors import ApplicationError
from ha_engine.query.file_words import Name, Section

RESERVED = frozenset({"per", "from", "to", "by", "order", "limit"})
"""The parameters of a request for an aggregation, besides those with the names of its keys."""

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,55}(\.[A-Za-z_][A-Za-z0-9_]{0,55})?")
_VALUE = re.compile(r"(sum|count|min|max|avg)\(\s*(\*|[A-Za-z_][A-Za-z0-9_]{0,62})\s*\)")
_KEEP = re.compile(r"(\d{1,6})\s*(minute|hour|day|week|year)s?")
_DAYS_OF_A_YEAR = 366


def _table(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise ValueError(
            f"{value!r} is not the first part of a table's name; write table or schema.table, with "
            "at most 56 letters, digits and _ each"
        )
    return value


def _value(text: str) -> str:
    found = _VALUE.fullmatch(text)
    if found is None or (found[2] == "*" and found[1] != "count"):
        raise ValueError(
            f"{text!r} is not a value; write sum, count, min, max or avg of one column, such as "
            "sum(amount), or count(*), and compute anything else in the query"
        )
    return text


def _keep(text: str) -> str:
    if not _KEEP.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write one such as '1 hour' or '90 days'")
    return text


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone; write one such as Europe/Berlin") from None
    return name


class AggregationSection(Section):
    table: Annotated[str, AfterValidator(_table)] | None = None
    at: Name
    by: list[Name] = Field(default_factory=list)
    per: list[Granularity] = Field(min_length=1)
    values: dict[Name, Annotated[str, AfterValidator(_value)]] = Field(min_length=1)
    keep: dict[Granularity, Annotated[str, AfterValidator(_keep)]] = Field(default_factory=dict)
    time_zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    url: str | None = None


def aggregation_of(where: str, name: str, raw: AggregationSection) -> Aggregation:
    """The aggregation of a sink's section. Raises ApplicationError."""
    for key in raw.by:
        if key in RESERVED:
            raise ApplicationError(
                f"{where}.by: a request has a parameter {key!r} of another meaning; rename the "
                "column in the query"
            )
    for granularity in raw.keep:
        if granularity not in raw.per:
            raise ApplicationError(
                f"{where}.keep.{granularity}: per lacks {granularity}; add it, or remove it here"
            )
    aggregation = Aggregation(
        name,
        raw.table or name,
        raw.at,
        tuple(raw.by),
        tuple(one for one in GRANULARITIES if one in raw.per),
        tuple(_value_of(column, text) for column, text in raw.values.items()),
        MappingProxyType({one: _seconds(text) for one, text in raw.keep.items()}),
        raw.time_zone,
    )
    _refuse_twins(where, aggregation)
    return aggregation


def _refuse_twins(where: str, aggregation: Aggregation) -> None:
    """Refuse a definition whose tables or answers would have two columns of one name."""
    for names in (
        [value.name for value in aggregation.values],
        [stored.column for stored in aggregation.stored],
    ):
        columns = [START, *aggregation.by, *names]
        if twins := [column for column in columns if columns.count(column) > 1]:
            raise ApplicationError(
                f"{where}: there would be two columns {twins[0]!r}; rename a value, or a column "
                "in the query"
            )


def _value_of(name: str, text: str) -> Value:
    found = _VALUE.fullmatch(text)
    assert found is not None, "the section has been checked"
    function, source = cast(ValueFunction, found[1]), found[2]
    return Value(name, function, None if source == "*" else source)


def _seconds(text: str) -> int:
    found = _KEEP.fullmatch(text)
    assert found is not None, "the section has been checked"
    number, unit = int(found[1]), found[2]
    if unit == "year":
        number, unit = number * _DAYS_OF_A_YEAR, "day"
    return int(timedelta(**{f"{unit}s": number}).total_seconds())


def refuse_same_names(aggregations: Iterable[Aggregation]) -> None:
    """Refuse aggregations that a request could not tell apart, or that share a table.

    Raises ApplicationError.
    """
    names, tables = set[str](), set[str]()
    for one in aggregations:
        if one.name in names:
            raise ApplicationError(
                f"two sinks of type aggregation are named {one.name!r}; rename one, since requests "
                "name an aggregation by its sink"
            )
        if one.table in tables:
            raise ApplicationError(
                f"two aggregations have the table {one.table!r}; give one of them another table"
            )
        names.add(one.name)
        tables.add(one.table)


def misfits(aggregation: Aggregation, schema: pa.Schema) -> Iterator[str]:
    """Yield each reason why rows with the schema ``schema`` cannot be added, and what to do."""
    for column in aggregation.sources:
        if column not in schema.names:
            yield f"the query does not yield {column!r}; select it"
    if aggregation.at in schema.names:
        kind = schema.field(aggregation.at).type
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            yield f"the time {aggregation.at!r} is {kind}; make it a timestamp with a time zone"
    for value in aggregation.values:
        if value.function in ("sum", "avg") and value.source in schema.names:
            kind = schema.field(value.source).type
            if not _is_number(kind):
                yield f"{value.function}({value.source}) needs a number, not {kind}; cast it"


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
