"""Java hangs while Spark starts: the supervisor ends and reports the start, and the next succeeds.

Meanwhile the node process dies; the next one shows the step that was reported before its start.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.start_report import STARTING_SPARK
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest, running
from tests.e2e.without_spark import APPLICATION
from tests.waiting import wait_until

WITH_A_STAND_IN = "tests/test_supervised_query.py has it with a stand-in for Java"
pytestmark = [pytest.mark.spark, pytest.mark.nightly(WITH_A_STAND_IN)]


def test_start_with_a_hanging_jvm_is_ended_and_the_next_one_succeeds(
    node_database: str, tmp_path: Path
) -> None:
    node = NodeUnderTest(tmp_path, APPLICATION, node_database, query={"start_timeout": "20s"})

    def query_process() -> dict[str, Any]:
        status = node.status()
        return status["query_process"] if status else {"step": None, "last_death": None}

    with running(node):
        wait_until(lambda: query_process()["step"] == STARTING_SPARK, within=SPARK_SECONDS)
        frozen = node.pid_of("jvm")
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        first = node.pid_of("node")
        node.kill("node")
        wait_until(lambda: node.pid_of("node") not in (first, None), within=SPARK_SECONDS)
        wait_until(lambda: query_process()["step"] == STARTING_SPARK, within=SPARK_SECONDS)
        assert query_process()["last_death"] is None
        wait_until(lambda: query_process()["last_death"], within=SPARK_SECONDS)
        told = query_process()["last_death"]
        assert told.startswith(f"no progress for 20 s while {STARTING_SPARK}")
        assert told.endswith("retrying with a limit of 40 s")
        assert told in node.log_text()
        assert node.send("events", [{"id": 1, "text": "kept"}]).is_success
        node.wait_running()
        node.wait_settled()
        assert node.pid_of("jvm") != frozen
        assert rows(node_database, "SELECT id, text FROM copies") == [(1, "kept")]
        status = node.status()
        assert status is not None
        assert status["queries"]["copies"]["restarts"] == 0
