"""A release follows the one before it node by node while producers send (R32, ADR 12)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ha_engine
from ha_engine.demo.nodes import sample_application
from ha_engine.demo.traffic import Traffic
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.faults.failovers import Report, judge, wait_published, years_of_flights
from tests.faults.kills import audit

LATER = "9.9.9"
FADE_SECONDS = 600.0


@pytest.fixture
def later_release(tmp_path: Path) -> Path:
    """Where this engine lies once more, under a later version."""
    code = tmp_path / "later"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(ha_engine.__file__).parent, code / "ha_engine", ignore=unwanted)
    init = code / "ha_engine" / "__init__.py"
    init.write_text(init.read_text().replace(ha_engine.__version__, LATER))
    return code


def upgrade(pair: Pair, passive: NodeUnderTest, code: Path) -> None:
    assert passive.stop() == 0
    passive.code = code
    passive.start()
    assert pair.wait_protected() is pair.other(passive)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_no_event_waits_for_a_start_and_none_is_lost_or_doubled(
    later_release: Path, node_database: str, tmp_path: Path
) -> None:
    report = Report()
    pair = Pair(tmp_path, sample_application("flights.yaml"), node_database)
    with running_pair(pair):
        first = pair.wait_protected()
        second, before = pair.other(first), first.status() or {}
        audit(node_database)
        traffic = Traffic(pair.urls, "departures", years_of_flights(1), FADE_SECONDS)
        traffic.start()
        try:
            upgrade(pair, second, later_release)
            assert [(node.status() or {})["version"] for node in (first, second)] == [
                ha_engine.__version__,
                LATER,
            ]
            wait_published(first, traffic)
            ended = first.command("switchover", "--to", second.name, "--wait", "60")
            assert (ended.code, ended.err) == (0, "")
            assert pair.wait_protected() is second
            wait_published(second, traffic)
            upgrade(pair, first, later_release)
            wait_published(second, traffic)
        finally:
            traffic.stop()
        second.wait_settled()
        judge(pair, second, traffic, node_database, report)
        after = second.status() or {}
    assert report.wrong == []
    assert after["version"] == LATER
    # Another epoch would mean that a node had to be replaced while nobody could take over at once.
    assert after["epoch"] == before["epoch"] + 1
