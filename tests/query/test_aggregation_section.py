"""A sink of type aggregation in the application file: what it means, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from ha_engine.aggregation import Aggregation, StoredValue, Value
from ha_engine.errors import ApplicationError
from ha_engine.query.aggregation_section import misfits
from ha_engine.query.application import AggregationSinkSpec, StreamApplication, load_application

STREAM = {"schema": {"at": "timestamp not null", "region": "string", "amount": "int"}}
SINK: dict[str, Any] = {
    "name": "sales",
    "type": "aggregation",
    "at": "at",
    "by": ["region"],
    "per": ["month", "second"],
    "values": {"total": "sum(amount)", "n": "count(*)", "mean": "avg( amount )"},
    "keep": {"second": "1 hour", "month": "2 years"},
    "time_zone": "Europe/Berlin",
}


def _loaded(directory: Path, *sinks: dict[str, Any], **query: Any) -> StreamApplication:
    queries = {"q": {"sql": "SELECT * FROM orders", "sinks": list(sinks), **query}}
    tree = {"name": "a", "streams": {"orders": STREAM}, "queries": queries}
    path = directory / "application.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return load_application(path)


def test_section_becomes_an_aggregation_with_ordered_granularities(tmp_path: Path) -> None:
    (sink,) = _loaded(tmp_path, SINK).queries["q"].sinks
    assert isinstance(sink, AggregationSinkSpec)
    assert sink.aggregation == Aggregation(
        "sales",
        "sales",
        "at",
        ("region",),
        ("second", "month"),
        (
            Value("total", "sum", "amount"),
            Value("n", "count", None),
            Value("mean", "avg", "amount"),
        ),
        {"second": 3_600, "month": 2 * 366 * 86_400},
        "Europe/Berlin",
    )
    assert sink.aggregation.stored[2:] == (
        StoredValue("mean_sum", "sum", "amount"),
        StoredValue("mean_count", "count", "amount"),
    )
    assert sink.shown == "sales_second, sales_month"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"values": {"total": "sum(amount * 2)"}}, "compute anything else in the query"),
        ({"values": {"total": "sum(*)"}}, "sum, count, min, max or avg of one column"),
        ({"values": {}}, "at least 1 item"),
        ({"per": ["fortnight"]}, "'second', 'minute'"),
        ({"per": ["second"]}, "keep.month: per lacks month"),
        ({"keep": {"second": "soon"}}, "such as '1 hour' or '90 days'"),
        ({"time_zone": "Berlin"}, "'Berlin' is not a time zone"),
        ({"time_zone": "../etc/passwd"}, "is not a time zone"),
        ({"by": ["limit"]}, "a parameter 'limit' of another meaning"),
        ({"by": ["start"]}, "two columns 'start'"),
        ({"values": {"mean": "avg(amount)", "mean_sum": "sum(amount)"}}, "two columns 'mean_sum'"),
        ({"values": {"region": "avg(amount)"}}, "two columns 'region'"),
        ({"table": "a.b.c"}, "write table or schema.table"),
        ({"buckets": 4}, "buckets is not a known key"),
    ],
)
def test_faulty_section_is_refused_with_what_to_write(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ApplicationError) as refused:
        _loaded(tmp_path, SINK | change)
    assert reason in str(refused.value)


def test_query_that_repeats_a_changed_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="would add it twice; use append"):
        _loaded(tmp_path, SINK, output_mode="update")


def test_aggregations_need_names_and_tables_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="have the table 'sales'"):
        _loaded(tmp_path, SINK, SINK | {"name": "other", "table": "sales"})
    _loaded(tmp_path, SINK, SINK | {"name": "other"})


def test_digest_changes_with_each_part_of_the_definition(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"name": "other", "table": "sales"},
        {"table": "t"},
        {"at": "region"},
        {"by": []},
        {"per": ["month", "second", "year"]},
        {"values": {"total": "sum(amount)"}},
        {"keep": {}},
        {"time_zone": "UTC"},
    ]
    digests = {_loaded(tmp_path, SINK | change).digest for change in changes}
    assert len(digests) == len(changes)
    assert _loaded(tmp_path, SINK | {"url": "postgresql://h/d"}).digest in digests


def test_rows_of_the_query_must_fit_the_definition() -> None:
    values = (Value("total", "sum", "amount"), Value("mean", "avg", "weight"))
    aggregation = Aggregation("a", "a", "at", ("region",), ("day",), values)
    fits = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("region", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("weight", pa.float32()),
        ]
    )
    assert not list(misfits(aggregation, fits))
    wrong = pa.schema([("at", pa.date32()), ("amount", pa.string()), ("weight", pa.int8())])
    assert list(misfits(aggregation, wrong)) == [
        "the query does not yield 'region'; select it",
        "the time 'at' is date32[day]; make it a timestamp with a time zone",
        "sum(amount) needs a number, not string; cast it",
    ]
