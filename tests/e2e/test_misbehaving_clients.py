"""Clients that misbehave cost a node some memory and time, but never its lease, its other producers
or its log. Without Spark."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node_under_test import NodeUnderTest, free_port, running
from tests.e2e.well_behaved import WellBehaved, attack, seen
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.sync.authority import Authority
from tests.waiting import SLOW_HOST, wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 10
"""An attack uses the CPU all the time, so that a wait lasts SLOW_HOST times as long at most."""
ACKS = 50
"""The progress of the well-behaved producer that each attack must permit."""
MEMORY_MAX = 250
"""The memory, in MiB, that an attack may cost. The limits of its connections and of all bodies
together leave room for no more."""
INGEST = ("idle_http2", "half_open_streams", "endless_streams", "many_producers")
"""The attacks on the gRPC interface."""

LASTING = {"keep_alive": "1h"}
"""Idle connections stay open until there are too many of them, however long that takes."""


@dataclass(frozen=True)
class Attack:
    """An attack of ``tests.e2e.hostile``, and the settings of the attacked node.

    The node must soon count refusals with the reasons ``counted``.
    """

    name: str
    clients: int
    counted: Collection[str] = ()
    http: dict[str, Any] = field(default_factory=dict)
    max_streams: int = 150

    def __str__(self) -> str:
        return f"{self.name}-{self.clients}"


QUICK = (
    Attack("idle", 1_020, {"displaced"}, {**LASTING, "max_connections": 1_000}),
    Attack("pipelining", 10, {"pipelined"}),
    Attack("slow_readers", 50, {"unread"}),
    Attack("half_open_streams", 10, {"streams"}, max_streams=15),
)
FULL = (
    Attack("idle", 10_200, {"displaced"}, LASTING),
    Attack("slow_headers", 1_000, {"late"}),
    Attack("slow_bodies", 500, {"BodyTooSlow"}),
    Attack("slow_readers", 500, {"unread"}),
    Attack("leaving", 20, {"InvalidEvents"}),
    # Even a slow host receives the largest body before the body is late.
    Attack("endless_bodies", 10, {"PayloadTooLarge"}, {"max_body": "1MiB"}),
    Attack("gzip_bombs", 10, {"PayloadTooLarge"}),
    Attack("idle_http2", 2_000),
    Attack("half_open_streams", 100, {"streams"}),
    Attack("endless_streams", 10),
    Attack("many_producers", 4),
)
NIGHTLY = pytest.mark.nightly(
    "four attacks run; test_connection and tests/receive limit connections, bodies and streams"
)


@pytest.fixture
def ingest() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def node(
    node_database: str, tmp_path: Path, ingest: str, against: Attack
) -> Iterator[NodeUnderTest]:
    node = NodeWithoutSpark(
        tmp_path,
        APPLICATION,
        node_database,
        **ROOM,
        http={"keep_alive": "2s", **against.http},
        ingest={"listen": ingest, "max_streams": against.max_streams},
    )
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
    node: NodeUnderTest, producer: WellBehaved, ingest: str, against: Attack
) -> None:
    wait_until(lambda: len(producer.acks) >= ACKS, within=PATIENCE)
    before = seen(node)
    address = ingest if against.name in INGEST else node.url.removeprefix("http://")
    with attack(against.name, against.clients, address, within=PATIENCE):
        first = len(producer.acks)
        wait_until(lambda: len(producer.acks) >= first + ACKS, within=PATIENCE)
        acks = producer.acks[first:]
        wait_until(lambda: _counted(node).issuperset(against.counted), within=PATIENCE, every=0.1)
        during = seen(node)
        _renews(node)
    after = seen(node)
    assert producer.refusals == []
    assert statistics.median(acks) < SLOW_HOST
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
