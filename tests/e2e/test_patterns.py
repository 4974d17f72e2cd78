"""A pair finds the late turnarounds of aircraft in the flights, over many failovers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.client import Producer
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from tests.e2e.databases import rows
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.e2e.pair import Pair, running_pair
from tests.faults.active import fail_over, in_random_order
from tests.programs import needs

FAILOVERS, FLIGHTS = 30, 500
"""The faults of the active, and the flights that are sent before each."""
DELAY, WITHIN = timedelta(hours=2), timedelta(hours=12)
COLUMNS = "tailnum, arrived_late, late_flight, next_flight, left_late"

pytestmark = [
    needs("javac"),
    pytest.mark.nightly("test_streaming.py restarts patterns, and test_failovers kills the active"),
    pytest.mark.spark,
]


def expected(flights: pa.Table) -> set[tuple[Any, ...]]:
    """The rows whose flights the watermark has reached."""
    events = flights.to_pylist()
    reached = events[-1]["event_time"] - DELAY
    last: dict[str, dict[str, Any]] = {}
    found = set()
    for event in sorted(events, key=lambda one: one["event_time"]):  # keeps the order of arrival
        tail = event["tailnum"]
        before = last.get(tail)
        if (
            before is not None
            and tail is not None
            and (before["arr_delay"] or 0) >= 60
            and (event["dep_delay"] or 0) >= 30
            and event["event_time"] - before["event_time"] <= WITHIN
            and event["event_time"] <= reached
        ):
            delays = before["arr_delay"], before["flight"], event["flight"], event["dep_delay"]
            found.add((tail, *delays))
        last[tail] = event
    return found


def test_thirty_failovers_lose_and_double_no_match(tmp_path: Path, node_database: str) -> None:
    year, sent = departures(), 0
    pair = Pair(tmp_path, sample_application("turnaround.yaml"), node_database)
    with running_pair(pair), Producer(pair.urls, deadline=SPARK_SECONDS) as producer:
        pair.wait_protected()
        for fault in in_random_order(FAILOVERS, seed=24):
            for batch in year.slice(sent, FLIGHTS).to_batches():
                producer.send("departures", batch)
            producer.flush()
            sent += FLIGHTS
            fail_over(fault, pair)
        pair.wait_protected()
        pair.wait_settled()
        wanted = expected(year.slice(0, sent))
        assert len(wanted) > FAILOVERS
        assert sorted(rows(node_database, f"SELECT {COLUMNS} FROM passed_on")) == sorted(wanted)
        for node in pair.nodes.values():
            assert node.require_status()["queries"]["passed_on"]["differs"] is None
