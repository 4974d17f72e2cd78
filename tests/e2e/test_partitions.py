"""Lines between the active, the passive and the database fall silent. Real nodes without Spark.

While a line is silent, a client of its own sends to each node, as only a client can reach both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.e2e.databases import rows
from tests.e2e.network import BETWEEN_NODES, Network
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal, stored_events
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until, watch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 60
TTL_SECONDS, MARGIN_SECONDS = 2.0, 0.5
SILENCE_SECONDS = 3 * TTL_SECONDS
PAUSE_SECONDS = 0.01


class Client(threading.Thread):
    """Sends one event after the other to one node, and notes when each was acknowledged."""

    def __init__(self, node: NodeUnderTest) -> None:
        super().__init__(name=f"client-{node.name}", daemon=True)
        self.node, self._enough = node, threading.Event()
        self.acked: dict[int, float] = {}

    def run(self) -> None:
        headers = {"Content-Type": "application/json", "X-Producer-Id": self.name}
        with httpx.Client(base_url=self.node.url, headers=headers, timeout=1.0) as http:
            number = 0
            while not self._enough.wait(PAUSE_SECONDS):
                number += self._is_acked(http, number)

    def _is_acked(self, http: httpx.Client, number: int) -> bool:
        event = f'[{{"id": {number}, "text": "{self.name}"}}]'
        try:
            answer = http.post(
                "/v1/streams/events/events", content=event, headers={"X-Sequence": str(number)}
            )
        except httpx.TransportError:
            return False
        if answer.status_code == httpx.codes.OK:
            self.acked[number] = time.time()
        return number in self.acked

    def stop(self) -> None:
        self._enough.set()
        self.join()

    def longest_pause(self, since: float) -> float:
        times = [since, *(at for at in self.acked.values() if at > since), time.time()]
        return max(after - before for before, after in pairwise(times))


@dataclass
class Scene:
    pair: Pair
    network: Network
    active: NodeUnderTest
    passive: NodeUnderTest
    database_url: str
    clients: list[Client] = field(default_factory=list)

    def client_of(self, node: NodeUnderTest) -> Client:
        return next(client for client in self.clients if client.node is node)

    def epoch(self) -> int:
        return max((node.status() or {"epoch": 0})["epoch"] for node in self.pair.nodes.values())

    def require_whole(self) -> None:
        """Healed: both in sync with one journal, in which every acked event is once."""
        for client in self.clients:
            client.stop()
        wait_until(self.pair.is_protected, within=PATIENCE, every=0.1)
        assert same_journal(self.pair)
        for node in self.pair.nodes.values():
            node.stop()
        events = stored_events(self.pair.a)
        stored = [(one.producer, one.sequence) for each in events for one in each.submissions]
        assert len(set(stored)) == len(stored)
        acked = {(one.name, number) for one in self.clients for number in one.acked}
        assert acked <= set(stored)


@pytest.fixture
def scene(node_database: str, tmp_path: Path) -> Iterator[Scene]:
    pair = Pair(
        tmp_path,
        APPLICATION,
        node_database,
        NodeWithoutSpark,
        lease={"margin": f"{MARGIN_SECONDS}s"},
        **ROOM,
    )
    with Network.of(pair, node_database) as network, running_pair(pair):
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        found = Scene(pair, network, active, pair.other(active), node_database)
        found.clients = [Client(node) for node in pair.nodes.values()]
        for client in found.clients:
            client.start()
        wait_until(lambda: found.client_of(active).acked, within=PATIENCE)
        yield found
        for client in found.clients:
            client.stop()


def test_an_isolated_active_acks_nothing_from_a_margin_before_the_other_takes_over(
    scene: Scene,
) -> None:
    scene.network.silence(BETWEEN_NODES, f"{scene.active.name} to database")
    silent = time.time()
    wait_until(scene.passive.is_active, within=PATIENCE, every=0.05)
    wait_until(lambda: scene.client_of(scene.passive).acked, within=PATIENCE)
    _, taken = _takeover(scene)
    last = max(scene.client_of(scene.active).acked.values())
    assert last <= taken - MARGIN_SECONDS
    first = min(scene.client_of(scene.passive).acked.values())
    assert first - silent < TTL_SECONDS + 3.0
    assert (scene.active.status() or {})["suspended"]
    scene.network.heal()
    # It has appended what it could not ack any more: it cuts that and ends, and starts anew.
    process = scene.active.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, within=PATIENCE)
    assert "the journal was cut" in scene.active.log_text()
    scene.active.start()
    wait_until(scene.pair.is_protected, within=PATIENCE, every=0.1)
    assert scene.pair.active() is scene.passive
    scene.require_whole()


def _takeover(scene: Scene) -> tuple[int, float]:
    """Epoch and time of the newest change of the holder, as the database wrote it."""
    sql = "SELECT epoch, date_part('epoch', at) FROM ha_engine.lease_history ORDER BY id"
    epoch, at = rows(scene.database_url, sql)[-1]
    return int(epoch), float(at)


def test_an_active_without_the_database_goes_on_by_the_promises_of_the_passive(
    scene: Scene,
) -> None:
    scene.network.silence(f"{scene.active.name} to database")
    _require_calm(scene)
    scene.network.heal()
    scene.require_whole()


def test_a_passive_without_the_database_changes_nothing(scene: Scene) -> None:
    scene.network.silence(f"{scene.passive.name} to database")
    _require_calm(scene)
    scene.network.heal()
    scene.require_whole()


def _require_calm(scene: Scene) -> None:
    """For three ttl the same node acks under the same epoch, and both stay in sync."""
    epoch, since = scene.epoch(), time.time()

    def calm() -> None:
        status = scene.active.status() or {}
        assert (status["role"], status["protected"]) == ("active", True)
        assert not scene.passive.is_active()

    watch(calm, seconds=SILENCE_SECONDS)
    assert scene.epoch() == epoch
    assert scene.client_of(scene.active).longest_pause(since) < TTL_SECONDS
    assert scene.client_of(scene.passive).acked == {}


def test_nodes_that_cannot_hear_each_other_go_on_with_the_active_alone(scene: Scene) -> None:
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
