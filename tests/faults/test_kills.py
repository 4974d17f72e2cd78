"""One kill of each kind at a random moment; ``python -m tests.faults.kills`` does more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ha_engine.demo.nodes import sample_application
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.faults.kills import TARGETS, run_kills
from tests.waiting import wait_until


@pytest.mark.nightly("test_failovers kills the same on a pair")
@pytest.mark.spark
def test_year_with_kills_ends_with_equal_rows_and_a_contiguous_ledger(
    tmp_path: Path, database_url: str
) -> None:
    report = run_kills(tmp_path, database_url, kills=len(TARGETS), seed=20130101)
    assert not report.wrong
    assert set(report.kills) == set(TARGETS)


@pytest.mark.nightly("test_process kills a JVM")
@pytest.mark.spark
def test_jvm_that_dies_while_queries_are_planned_fails_no_query(
    tmp_path: Path, database_url: str
) -> None:
    upgrade(open_engine(database_url))
    node = NodeUnderTest(tmp_path, sample_application("flights.yaml"), database_url)

    def process() -> dict[str, Any]:
        status = node.status()
        return dict(status["query_process"]) if status else {}

    with running(node):
        wait_until(lambda: process().get("connected"), within=SPARK_SECONDS)
        first = process()["incarnation"]
        node.kill("jvm")
        wait_until(lambda: process().get("incarnation") not in (first, None), within=60)
        wait_until(lambda: process().get("connected"), within=SPARK_SECONDS, every=0.1)
        assert node.queries_run()
