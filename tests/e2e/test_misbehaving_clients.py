"""Clients that misbehave cost a node some memory and time, but never its lease, its other producers
or its log. Without Spark."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.attacks import FULL, PATIENCE, QUICK, Attack, AttackedNode, attack
from tests.e2e.node_under_test import NodeUnderTest, free_port, running
from tests.e2e.well_behaved import WellBehaved, seen
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.sync.authority import Authority
from tests.waiting import SLOW_HOST, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.rotates("files")]

ACKS = 50
"""The progress of the well-behaved producer that each attack must permit."""
ACK_SECONDS = 1.0
"""Nine of ten acks of the well-behaved producer take less, on a host that is not slow."""
MEMORY_MAX = 250
"""The memory, in MiB, that an attack may cost. The limits of its connections and of all bodies
together leave room for no more."""
SILENT = ("silent", 1)
"""The producer id and sequence of a request that its producer repeats after the attack."""
NIGHTLY = pytest.mark.nightly(
    "four attacks run; test_connection and tests/receive limit connections, bodies and streams"
)


@pytest.fixture
def node(node_database: str, tmp_path: Path, against: Attack) -> Iterator[AttackedNode]:
    node = AttackedNode(tmp_path, node_database, against)
    with running(node):
        node.wait_active()
        yield node


@pytest.fixture
def producer(node: NodeUnderTest) -> Iterator[WellBehaved]:
    producer = WellBehaved(node)
    producer.start()
    yield producer
    producer.stop()


@pytest.mark.parametrize(
    "against", [*QUICK, *(pytest.param(one, marks=NIGHTLY) for one in FULL)], ids=str
)
def test_other_clients_and_the_lease_do_not_suffer(
    node: AttackedNode, producer: WellBehaved, against: Attack
) -> None:
    wait_until(lambda: len(producer.acks) >= ACKS, within=PATIENCE)
    before, calm = seen(node), statistics.median(producer.acks)
    stored = node.send("events", [{"id": 1}], SILENT).json()
    with attack(node.target, against):
        first = len(producer.acks)
        wait_until(lambda: len(producer.acks) >= first + ACKS, within=PATIENCE)
        acks = producer.acks[first:]
        wait_until(lambda: _counted(node).issuperset(against.counted), within=PATIENCE, every=0.1)
        during = seen(node)
        _renews(node)
    after = seen(node)
    assert node.send("events", [{"id": 1}], SILENT).json() == stored
    assert producer.refusals == []
    assert statistics.quantiles(acks, n=10)[-1] < max(ACK_SECONDS, SLOW_HOST * calm)
    assert max(during.memory, after.memory) < before.memory + MEMORY_MAX
    assert (after.status["role"], after.status["epoch"]) == ("active", before.status["epoch"])
    changes = [one.status["counts"]["role_changes"] for one in (before, after)]
    assert changes[0] == changes[1]
    assert "Traceback" not in node.log_text()
    assert len(node.log_text().splitlines()) < 20


def _counted(node: NodeUnderTest) -> set[str]:
    """Return the reasons of the metrics that count refusals."""
    found = r'^ha_engine_(?:connections_closed|requests_rejected)_total{.*reason="(\w+)"} [1-9]'
    return set(re.findall(found, node.http.get("/metrics").text, flags=re.MULTILINE))


def _renews(node: NodeUnderTest) -> None:
    """Wait until the node has renewed its lease."""
    former = seen(node).status["lease"]["version"]
    wait_until(lambda: seen(node).status["lease"]["version"] > former, within=PATIENCE)


def test_plain_text_on_the_port_between_nodes_writes_no_line(
    node_database: str, tmp_path: Path
) -> None:
    """The gRPC library writes to stderr itself, once for each failed TLS handshake."""
    authority = Authority(tmp_path / "authority")
    sync = f"127.0.0.1:{free_port()}"
    peers = {"node-b": f"127.0.0.1:{free_port()}"}
    section = {"listen": sync, "peers": peers, "tls": authority.files("node-a")}
    node = NodeWithoutSpark(tmp_path, APPLICATION, node_database, **ROOM, event_sync=section)
    host, _, port = sync.rpartition(":")
    with running(node):
        node.wait_active()
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    assert not stranger.recv(1 << 16).startswith(b"HTTP")
    written = [line for line in node.log_text().splitlines() if not line.startswith("20")]
    assert written == []
