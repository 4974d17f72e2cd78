"""Lines between the active, the passive and the database become silent. Real nodes without Spark.

While a line is silent, a separate client sends to each node, as only a client can reach both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.databases import rows
from tests.e2e.network import BETWEEN_NODES
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.partitioned import PATIENCE, Scene, partitioned
from tests.waiting import wait_until, watch

pytestmark = [pytest.mark.slow]

TTL_SECONDS, MARGIN_SECONDS = 2.0, 0.5
SILENCE_SECONDS = 3 * TTL_SECONDS


@pytest.fixture
def scene(node_database: str, tmp_path: Path) -> Iterator[Scene]:
    with partitioned(tmp_path, node_database, {"margin": f"{MARGIN_SECONDS}s"}) as scene:
        yield scene


def test_isolated_active_stops_acking_a_margin_before_the_takeover(
    scene: Scene,
) -> None:
    scene.network.silence(BETWEEN_NODES, f"{scene.active.name} to database")
    silent = time.time()
    # The client's own event may have reached the passive; only the isolated node has this one.
    with pytest.raises(httpx.ReadTimeout):
        _send_alone(scene.active)
    wait_until(scene.passive.is_active, within=PATIENCE, every=0.05)
    wait_until(lambda: scene.client_of(scene.passive).acked, within=PATIENCE)
    _, taken = _takeover(scene)
    last = max(scene.client_of(scene.active).acked.values())
    assert last <= taken - MARGIN_SECONDS
    first = min(scene.client_of(scene.passive).acked.values())
    assert first - silent < TTL_SECONDS + 3.0
    assert (scene.active.status() or {})["suspended"]
    scene.network.heal()
    # It appended events that it could not ack: it truncates them, ends, and starts again.
    process = scene.active.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, within=PATIENCE)
    assert "the journal was truncated" in scene.active.log_text()
    scene.active.start()
    wait_until(scene.pair.is_protected, within=PATIENCE, every=0.1)
    assert scene.pair.active() is scene.passive
    scene.require_whole()


def _send_alone(node: NodeUnderTest) -> None:
    """Send one event; raise httpx.ReadTimeout where the node appends it and no ack follows."""
    with httpx.Client(base_url=node.url, timeout=0.2) as http:
        http.post(
            "/v1/streams/events/events",
            json=[{"id": 0, "text": "alone"}],
            headers={"X-Producer-Id": "alone", "X-Sequence": "1"},
        )


def _takeover(scene: Scene) -> tuple[int, float]:
    """Return epoch and time of the newest change of the holder, from the database."""
    sql = "SELECT epoch, date_part('epoch', at) FROM ha_engine.lease_history ORDER BY id"
    epoch, at = rows(scene.database_url, sql)[-1]
    return int(epoch), float(at)


@pytest.mark.nightly("faults/test_database_outage has it")
def test_active_without_the_database_continues_on_promises_of_the_passive(
    scene: Scene,
) -> None:
    scene.network.silence(f"{scene.active.name} to database")
    _require_no_role_change(scene)
    scene.network.heal()
    scene.require_whole()


@pytest.mark.nightly("schedules of the simulator have it")
def test_a_passive_without_the_database_changes_nothing(scene: Scene) -> None:
    scene.network.silence(f"{scene.passive.name} to database")
    _require_no_role_change(scene)
    scene.network.heal()
    scene.require_whole()


def _require_no_role_change(scene: Scene) -> None:
    """Require that for three ttl the same node acks under the same epoch, and both stay in sync."""
    epoch, since = scene.epoch(), time.time()

    def calm() -> None:
        status = scene.active.status() or {}
        assert (status["role"], status["protected"]) == ("active", True)
        assert not scene.passive.is_active()

    watch(calm, seconds=SILENCE_SECONDS)
    assert scene.epoch() == epoch
    assert scene.client_of(scene.active).longest_pause(since) < TTL_SECONDS
    assert scene.client_of(scene.passive).acked == {}


@pytest.mark.nightly("schedules of the simulator have it")
def test_active_continues_alone_when_the_nodes_cannot_reach_each_other(scene: Scene) -> None:
    epoch = scene.epoch()
    scene.network.silence(BETWEEN_NODES)
    wait_until(lambda: not scene.pair.is_protected(), within=PATIENCE, every=0.1)
    alone = len(scene.client_of(scene.active).acked)
    wait_until(lambda: len(scene.client_of(scene.active).acked) > alone + 10, within=PATIENCE)
    scene.network.heal()
    wait_until(scene.pair.is_protected, within=PATIENCE, every=0.1)
    assert scene.epoch() == epoch
    assert scene.pair.active() is scene.active
    scene.require_whole()
