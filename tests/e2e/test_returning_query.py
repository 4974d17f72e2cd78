"""A query leaves the application with a batch that it never ran, and returns after the trim of that
batch's events (RULES.md#r23, RULES.md#r28)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.e2e.test_restore import ON_DEMAND, base_of, snapshot_now
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly("test_every_history has it for the core")]

SQL = {"copies": "SELECT n AS v FROM events", "tenths": "SELECT 10 DIV n AS v FROM events"}


def application(sinks: dict[str, str]) -> str:
    """Return the queries that ``sinks`` names; each writes its ``v`` into a table named as its
    sink."""
    queries = {
        query: {
            "sql": SQL[query],
            "sinks": [{"name": sink, "type": "postgres", "table": sink, "auto_create": True}],
        }
        for query, sink in sinks.items()
    }
    streams = {"events": {"schema": {"n": "bigint not null"}}}
    return json.dumps({"name": "returning", "streams": streams, "queries": queries})


def test_returning_query_begins_with_the_events_behind_its_return(
    node_database: str, tmp_path: Path
) -> None:
    both = {"copies": "copies", "tenths": "tenths"}
    node = NodeUnderTest(tmp_path, application(both), node_database, **ON_DEMAND)

    def send(*numbers: int) -> None:
        assert node.send("events", [{"n": n} for n in numbers]).status_code == 200

    def wait_table(table: str, *values: int) -> None:
        query, wanted = f"SELECT v FROM {table} ORDER BY v", [(v,) for v in values]
        wait_until(lambda: rows(node_database, query) == wanted, within=SPARK_SECONDS, every=0.2)

    def tenths() -> dict[str, Any]:
        status = node.status()
        return status["queries"]["tenths"] if status else {"state": "unknown", "sinks": {}}

    def restart_with(sinks: dict[str, str]) -> None:
        assert node.stop() == 0
        node.application_path.write_text(application(sinks))
        node.start()
        node.wait_running()

    with running(node):
        node.wait_running()
        send(1)
        wait_table("tenths", 10)
        send(0)
        wait_until(lambda: tenths()["state"] == "failed", within=SPARK_SECONDS, every=0.2)
        restart_with({"copies": "copies"})
        for _ in range(2):
            send(*range(2, 10_000))
            node.wait_settled()
            stands_on = snapshot_now(node)["sequence"]
        wait_until(lambda: base_of(node) == stands_on, within=60, every=0.2)

        restart_with(both | {"tenths": "again"})
        send(5)
        wait_table("again", 2)
        restart_with(both)
        refused = "give the sink a new name to let it begin there"
        wait_until(
            lambda: refused in (tenths()["sinks"]["tenths"]["error"] or ""),
            within=SPARK_SECONDS,
            every=0.2,
        )
        assert tenths()["state"] == "running"
        assert "does not follow batch" not in node.log_text()
