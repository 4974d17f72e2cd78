"""A pair joins two streams, of which one is silent, over restarts and failovers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ha_engine.client import Producer
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.e2e.pair import Pair, running_pair
from tests.faults.active import fail_over, in_random_order
from tests.programs import needs

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("test_restarted_watermarks.py restarts such a query after each batch"),
    pytest.mark.spark,
]

FAILOVERS, EVENTS = 10, 200
START = datetime(2013, 1, 1, tzinfo=UTC)
APPLICATION = """
name: silent
streams:
  orders:
    schema: {at: timestamp not null, id: int not null}
    watermark: {column: at, delay: 0s}
  payments:
    schema: {at: timestamp not null, id: int not null}
    watermark: {column: at, delay: 0s}
queries:
  unpaid:
    sql: >
      SELECT o.id FROM orders o LEFT JOIN payments p
      ON o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE
      WHERE p.id IS NULL
    sinks:
      - {name: table, type: postgres, table: unpaid, mode: insert, auto_create: true}
"""


def events(ids: range) -> pa.RecordBatch:
    schema = pa.schema({"at": pa.timestamp("us", "UTC"), "id": pa.int32()})
    found = [{"at": START + timedelta(hours=one), "id": one} for one in ids]
    return pa.RecordBatch.from_pylist(found, schema=schema)


def test_failovers_lose_and_double_no_row_while_a_stream_is_silent(
    tmp_path: Path, node_database: str
) -> None:
    pair, sent = Pair(tmp_path, APPLICATION, node_database), 0
    with running_pair(pair), Producer(pair.urls, deadline=SPARK_SECONDS) as producer:
        pair.wait_protected()
        producer.send("payments", events(range(1_000_000, 1_000_001)))
        for fault in in_random_order(FAILOVERS, seed=30):
            for _ in range(2):
                producer.send("orders", events(range(sent, sent := sent + EVENTS)))
                producer.flush()
                pair.wait_settled()
            fail_over(fault, pair)
        pair.wait_protected()
        pair.wait_settled()
        for node in pair.nodes.values():
            assert node.require_status()["queries"]["unpaid"]["differs"] is None
        found = sorted(rows(node_database, "SELECT id FROM unpaid"))
        assert found == [(one,) for one in range(len(found))]
        assert sent - EVENTS <= len(found) < sent
