"""Clients that send to any node, or to both at once, with ``receive.forward``. Without Spark."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, stored_events
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

PATIENCE = 60
FORWARDING = {"receive": {**ROOM["receive"], "forward": True}}
REQUESTS = 40


def send(node: NodeUnderTest, sequence: int | None) -> int | None:
    """Send an event, with an identity if there is a sequence. Return the status of the answer, or
    None if the node is dead."""
    identity = None if sequence is None else ("both", sequence)
    try:
        return node.send("events", [{"id": sequence or 0, "text": "x"}], identity).status_code
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        return None


def test_each_event_is_stored_once_and_no_request_is_refused_over_a_failover(
    node_database: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithoutSpark, **FORWARDING)
    statuses = Counter[int | None]()
    with running_pair(pair), ThreadPoolExecutor(2) as threads:
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        passive = pair.other(active)
        assert send(passive, None) == 200
        wait_until(lambda: _forwarded(passive) == 1, within=PATIENCE)
        for sequence in range(REQUESTS):
            if sequence == REQUESTS // 2:
                active.kill_everything()
            both = list(threads.map(partial(send, sequence=sequence), (active, passive)))
            assert 200 in both
            statuses.update(both)
        assert passive.is_active()
        assert set(statuses) == {200, None}
        assert passive.stop() == 0
    stored = sum(events.rows for events in stored_events(passive))
    assert stored == REQUESTS + 1


def _forwarded(node: NodeUnderTest) -> int:
    status = node.status()
    return status["receive"]["forwarded_events"] if status else 0
