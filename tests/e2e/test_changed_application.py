"""A query changes on two nodes, one of them behind, and keeps its state (RULES.md#r23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.demo.nodes import sample_application
from tests.e2e.flights import flying
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
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
