"""An observer of a real pair, over a failover and the loss of both nodes. Without Spark."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.observers import Observer
from tests.e2e.pair import Pair, running_pair
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.without_spark import APPLICATION
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

PATIENCE = 60
QUERY = "copies"


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithStandIn, observe={"keep_batches": 64})
    with running_pair(pair):
        yield pair


@pytest.fixture
def observer(pair: Pair, tmp_path: Path) -> Iterator[Observer]:
    urls = {name: node.url for name, node in pair.nodes.items()}
    observer = Observer(tmp_path / "observer", urls)
    yield observer
    observer.stop()


def send(node: NodeUnderTest, number: int) -> float:
    """Send an event until the node acks it; return the seconds that the ack took."""
    began = time.monotonic()
    assert node.send("events", [{"id": number, "text": "x"}]).status_code == httpx.codes.OK
    return time.monotonic() - began


def published(node: NodeUnderTest) -> int:
    """The number of the newest batch that the sink has."""
    return int(min(node.require_status()["queries"][QUERY]["published"].values()))


def caught_up(observer: Observer, node: NodeUnderTest) -> bool:
    return bool(observer.query(QUERY).get("last_batch") == published(node) > 0)


def test_observer_gets_each_batch_in_order_and_outlives_the_pair(
    pair: Pair, observer: Observer
) -> None:
    active = pair.wait_protected()
    passive = pair.other(active)
    observer.start()
    send(active, 1)
    wait_until(lambda: caught_up(observer, active), within=PATIENCE)

    active.kill_everything()
    passive.wait_active()
    for number in range(2, 5):
        send(passive, number)
        wait_until(passive.settled, within=PATIENCE)
    wait_until(lambda: caught_up(observer, passive), within=PATIENCE)
    last = published(passive)
    assert observer.numbers(QUERY) == list(range(1, last + 1))
    assert observer.query(QUERY)["received"] == last
    wait_until(lambda: not observer.status()["nodes"][active.name]["answers"], within=PATIENCE)

    passive.kill_everything()
    wait_until(lambda: not observer.status()["reaches_a_node"], within=PATIENCE)
    observer.stop()
    observer.start()
    cluster = observer.get("/v1/cluster")
    assert cluster.json()["active"] == passive.name
    assert int(cluster.headers["Age"]) >= 1
    assert observer.numbers(QUERY) == list(range(1, last + 1))

    passive.start()
    passive.wait_active()
    send(passive, 5)
    wait_until(passive.settled, within=PATIENCE)
    wait_until(lambda: caught_up(observer, passive), within=PATIENCE)
    assert observer.numbers(QUERY) == list(range(1, published(passive) + 1))
    assert observer.query(QUERY)["missed"] == 0


def test_frozen_observer_delays_no_ack(pair: Pair, observer: Observer) -> None:
    active = pair.wait_protected()
    observer.start()
    send(active, 0)
    wait_until(lambda: caught_up(observer, active), within=PATIENCE)
    observer.signal(signal.SIGSTOP)
    # An ack that waited for the observer would wait for ever.
    assert max(send(active, number) for number in range(1, 50)) < 5
    wait_until(active.settled, within=PATIENCE)
    observer.signal(signal.SIGCONT)
    wait_until(lambda: caught_up(observer, active), within=PATIENCE)
