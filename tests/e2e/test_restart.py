"""A node loses all its processes at once, on a host that lives, and restarts there."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.without_spark import APPLICATION, no_spark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
LONG_TTL = {"lease": {"ttl": "10m"}}


def _is_taken(node: NodeUnderTest) -> bool:
    try:
        answer = node.http.post("/v1/streams/events/events", json={"id": 1})
    except httpx.TransportError:
        return False
    return answer.is_success


def test_restarted_node_does_not_wait_for_the_lease_of_its_dead_process(
    node_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    node = NodeUnderTest(tmp_path, APPLICATION, node_database, **LONG_TTL)
    with running(node):
        wait_until(lambda: _is_taken(node), within=PATIENCE, every=0.1)
        node.kill_everything()
        node.start()
        wait_until(lambda: _is_taken(node), within=PATIENCE, every=0.1)
