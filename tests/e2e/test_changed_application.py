"""A query changes, and keeps its state or makes it again from the journal (RULES.md#r23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.demo.nodes import sample_application
from tests.e2e.databases import rows
from tests.e2e.flights import flying
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.e2e.test_restore import ON_DEMAND, snapshot_now, switch_over
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("the core's scenarios of R23 and tests/query change applications"),
]

BEFORE, AFTER = (
    "count(*) - count(dep_delay) AS cancelled,",
    "count_if(dep_delay IS NULL) AS cancelled,",
)
TOTALS = """
name: totals
streams:
  events:
    schema: {{key: string not null, amount: int not null}}
queries:
  totals:
    sql: SELECT key, count(*) AS n, sum({factor} * amount) AS total FROM events GROUP BY key
    output_mode: update
    on_change: backfill
    sinks:
      - {{name: table, type: postgres, table: totals, mode: upsert, key: [key], auto_create: true}}
"""


def changed(application: str) -> str:
    """Return other code with the same results, so that one reference fits both."""
    text = application.replace("    sql: >", "    on_change: keep\n    sql: >")
    assert text.count(BEFORE) == text.count("on_change") == 2
    return text.replace(BEFORE, AFTER)


def reasons(node: NodeUnderTest) -> list[str]:
    status = node.status()
    return [query["reason"] or "" for query in status["queries"].values()] if status else []


def test_node_that_was_behind_at_the_change_begins_from_a_snapshot(
    node_database: str, tmp_path: Path
) -> None:
    with flying(tmp_path, node_database, **ON_DEMAND) as flights:
        pair = flights.pair
        active = pair.wait_protected()
        passive = pair.other(active)
        flights.send(3_000)
        passive.stop()
        flights.send(3_000)
        active.stop()
        for node in (active, passive):
            node.application_path.write_text(changed(sample_application("flights.yaml")))
        active.start()
        active.wait_running()
        flights.send(1_000)

        passive.start()
        advice = "run 'ha-engine reinit' on this node"
        wait_until(
            lambda: all(advice in reason for reason in reasons(passive)) and reasons(passive),
            within=SPARK_SECONDS,
            every=0.2,
        )
        passive.stop()
        snapshot_now(active)
        done = passive.command("reinit", passive.name, "--yes", "-c", str(passive.config_path))
        assert (done.code, done.err) == (0, "")
        passive.start()
        assert pair.wait_protected() is active
        switch_over(pair, active, passive)
        flights.send(1_000)
        flights.require_equal()
        assert "a batch differs" not in active.log_text() + passive.log_text()


def test_backfilled_query_runs_the_journal_again_and_publishes_only_new_batches(
    node_database: str, tmp_path: Path
) -> None:
    """The node is killed, since a node that stops takes a snapshot, and the journal begins with the
    oldest one."""
    node = NodeUnderTest(tmp_path, TOTALS.format(factor=1), node_database, **ON_DEMAND)

    def wait_totals(*wanted: tuple[str, int, int]) -> None:
        sql = "SELECT key, n, total FROM totals ORDER BY key"
        wait_until(lambda: rows(node_database, sql) == [*wanted], within=SPARK_SECONDS, every=0.2)

    with running(node):
        node.wait_running()
        for amount in (1, 2):
            node.send("events", [{"key": key, "amount": amount} for key in "ab"])
            node.wait_settled()
        wait_totals(("a", 2, 3), ("b", 2, 3))
        node.kill_everything()
        node.application_path.write_text(TOTALS.format(factor=10))
        node.start()
        node.wait_running()
        node.send("events", [{"key": "a", "amount": 4}])
        wait_totals(("a", 3, 70), ("b", 2, 3))
