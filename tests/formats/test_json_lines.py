"""Rows that are written by columns have the same text as rows that are written one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.formats.json_lines import json_lines, json_rows
from ha_engine.formats.values import json_text, rows_of

_TIMES = st.datetimes()
_VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.binary(): st.binary(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): _TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    pa.timestamp("us", "Europe/Berlin"): st.datetimes(
        datetime(1900, 1, 2), datetime(2100, 1, 1)
    ).map(lambda time: time.replace(tzinfo=UTC)),
    pa.timestamp("us"): _TIMES,
    pa.timestamp("s", "UTC"): _TIMES.map(lambda time: time.replace(microsecond=0, tzinfo=UTC)),
    pa.decimal128(10, 3): st.decimals(-999_999, 999_999, places=3),
    pa.list_(pa.float64()): st.lists(st.floats(), max_size=3),
    pa.struct({"a": pa.string(), "b": pa.int32()}): st.fixed_dictionaries(
        {"a": st.text(st.characters(exclude_categories=["Cs"])), "b": st.integers(0, 9)}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.just("k"), st.integers(0, 9)),
}


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 6))
    columns = {}
    for kind in kinds:
        values = st.lists(st.none() | _VALUES[kind], min_size=rows, max_size=rows)
        name = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
        columns[name] = pa.chunked_array([pa.array(draw(values), kind)])
    return pa.table(columns)


@given(_tables())
def test_rows_have_the_text_that_each_has_alone(table: pa.Table) -> None:
    assert json_rows(table) == [json_text(row) for row in rows_of(table)]


def test_columns_of_several_chunks_and_without_rows_are_written() -> None:
    times = pa.array([datetime(1, 1, 1), datetime(9999, 12, 30, 1, 2, 3, 4)], pa.timestamp("us"))
    table = pa.table({"100%": pa.chunked_array([times[:1], times[1:]])})

    assert json_lines(table) == (
        b'{"100%":"0001-01-01T00:00:00"}\n{"100%":"9999-12-30T01:02:03.000004"}\n'
    )
    assert json_lines(table.slice(0, 0)) == b""
    assert json_rows(pa.table({"d": pa.array([date(2024, 1, 1), None])})) == [
        '{"d":"2024-01-01"}',
        '{"d":null}',
    ]
    assert json_rows(pa.table({"d": pa.array([Decimal("1.50")])})) == ['{"d":"1.50"}']


def test_type_without_a_form_in_json_is_an_error() -> None:
    with pytest.raises(TypeError, match="timedelta"):
        json_rows(pa.table({"d": pa.array([1], pa.duration("us"))}))
