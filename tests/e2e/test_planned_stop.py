"""A node that an operator stops. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pair import Pair, running_pair
from tests.e2e.steady_producer import SteadyProducer
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
SYNC_TIMEOUT = 30.0
"""Seconds for which the active would wait for a passive that does not say that it leaves."""


def test_no_ack_waits_for_a_passive_that_stops(node_database: str, tmp_path: Path) -> None:
    sync = {"sync_timeout": f"{SYNC_TIMEOUT:g}s"}
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark, **ROOM, event_sync=sync)
    with running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        with SteadyProducer([active.url], "events") as producer:
            wait_until(lambda: producer.acked >= 10, within=PATIENCE)
            assert pair.other(active).stop() == 0
            stopped = producer.acked
            wait_until(lambda: producer.acked >= stopped + 10, within=PATIENCE)
        assert producer.longest < SYNC_TIMEOUT
