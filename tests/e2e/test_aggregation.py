"""An aggregation of a pair counts each event once when the active dies, and both nodes answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.client import Producer
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair

pytestmark = [
    pytest.mark.nightly(
        "a pair with Spark loses its active; tests/publish/test_aggregation_sink.py has the tables"
    ),
    pytest.mark.spark,
]

APPLICATION = """
name: shop
streams:
  orders:
    schema: {at: timestamp not null, region: string not null, amount: "decimal(10, 2) not null"}
queries:
  paid:
    sql: SELECT at, region, amount FROM orders WHERE amount > 0
    sinks:
      - name: sales
        type: aggregation
        at: at
        by: [region]
        per: [minute, day]
        values: {total: sum(amount), n: count(*)}
"""
START = datetime(2026, 3, 1, tzinfo=UTC)
EVENTS = 3_000


@pytest.fixture
def pair(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Pair]:
    with fresh_database(postgres, "aggregated") as url:
        pair = Pair(tmp_path, APPLICATION, url)
        with running_pair(pair):
            pair.wait_protected()
            yield pair


def _send(pair: Pair, begin: int, end: int) -> None:
    schema = pa.schema(
        [
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("region", pa.string(), nullable=False),
            pa.field("amount", pa.decimal128(10, 2), nullable=False),
        ]
    )
    rows = [
        {"at": START + timedelta(seconds=n), "region": "ns"[n % 2], "amount": n % 7}
        for n in range(begin, end)
    ]
    with Producer(pair.urls) as producer:
        for batch in pa.Table.from_pylist(rows, schema=schema).to_batches(max_chunksize=100):
            producer.send("orders", batch)


def _answer(node: NodeUnderTest, parameters: str) -> list[tuple[object, ...]]:
    answer = node.http.get(f"/v1/aggregations/sales?{parameters}")
    assert answer.status_code == 200, answer.text
    return [tuple(row.values()) for row in answer.json()["rows"]]


def _expected(numbers: range) -> list[tuple[str, int, int]]:
    amounts = {
        region: [n % 7 for n in numbers if "ns"[n % 2] == region and n % 7] for region in "ns"
    }
    return [(region, sum(paid), len(paid)) for region, paid in amounts.items()]


def test_both_nodes_answer_with_each_event_counted_once_after_the_active_died(pair: Pair) -> None:
    _send(pair, 0, 1_000)
    first = pair.active()
    assert first is not None
    first.kill_everything()
    _send(pair, 1_000, EVENTS)
    pair.wait_settled()
    first.start()
    pair.wait_protected()
    day, minute = START.isoformat(), (START + timedelta(minutes=5)).isoformat()
    for node in (pair.a, pair.b):
        assert _answer(node, "per=day") == [(day, *one) for one in _expected(range(EVENTS))]
        wanted = [(minute, *one) for one in _expected(range(300, 360))]
        until = "from=2026-03-01T00:05:00Z&to=2026-03-01T00:06:00Z"
        assert _answer(node, f"per=minute&{until}") == wanted
