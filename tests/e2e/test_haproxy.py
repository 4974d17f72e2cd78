"""Producers that use HAProxy alone lose no event when the active changes. Without Spark."""

from __future__ import annotations

import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path

import httpx
import pytest

from tests.e2e.balancer import CONFIG, Balancer, balancing, program
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, stored_events
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.without_spark import APPLICATION
from tests.kubernetes.render import balancer_config
from tests.programs import needs
from tests.sync.authority import Authority
from tests.waiting import wait_until

PATIENCE = 60
ROWS = 3
SOME = 20
"""The number of requests that must have passed for a meaningful assertion."""

pytestmark = [needs("haproxy", "openssl"), pytest.mark.slow]


class Sender:
    """Sends one request after the other, and repeats each until it is acked."""

    def __init__(self, url: str) -> None:
        self._path = f"{url}/v1/streams/events/events"
        self._ending = threading.Event()
        self.acked: dict[int, int] = {}
        """The epoch in which each sequence was acked."""

    def run(self) -> None:
        with httpx.Client(timeout=5) as client:
            while not self._ending.is_set():
                self._send(client, len(self.acked))

    def _send(self, client: httpx.Client, sequence: int) -> None:
        rows = [{"id": ROWS * sequence + n, "text": "x"} for n in range(ROWS)]
        headers = {"X-Producer-Id": "p", "X-Sequence": str(sequence)}
        try:
            answer = client.post(self._path, json=rows, headers=headers)
        except httpx.TransportError:
            return
        assert answer.status_code in (200, 502, 503, 504), answer.text
        if answer.status_code == 200:
            self.acked[sequence] = answer.json()["position"]["epoch"]
        self._ending.wait(0.01)

    def end(self) -> None:
        self._ending.set()

    def passes_on(self) -> None:
        """Return when many more requests were acked."""
        wanted = len(self.acked) + SOME
        wait_until(lambda: len(self.acked) >= wanted, within=PATIENCE)


@contextmanager
def sending(url: str) -> Iterator[Sender]:
    sender = Sender(url)
    thread = threading.Thread(target=sender.run, daemon=True)
    thread.start()
    yield sender
    sender.end()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    with running_pair(Pair(tmp_path, APPLICATION, node_database, NodeWithStandIn)) as pair:
        pair.wait_protected()
        yield pair


@pytest.fixture
def balancer(pair: Pair) -> Iterator[Balancer]:
    with balancing(pair) as balancer:
        yield balancer


def all_is_stored_once(pair: Pair, sender: Sender) -> None:
    """Require each acked event once in the journal of each node, after both have stopped."""
    for node in pair.nodes.values():
        node.stop()
    for node in pair.nodes.values():
        bodies = stored_events(node)
        stored = [found.sequence for body in bodies for found in body.submissions]
        assert sorted(stored) == sorted(set(stored))
        # The last request may be stored though its ack did not arrive.
        assert set(stored) - set(sender.acked) <= {len(sender.acked)}
        assert set(sender.acked) <= set(stored)
        assert sum(body.rows for body in bodies) == ROWS * len(stored)


def test_the_configuration_is_valid_without_a_warning() -> None:
    done = subprocess.run(
        [program(), "-c", "-dW", "-f", CONFIG], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def hand_over(node: NodeUnderTest) -> None:
    wait_until(lambda: node.http.post("/v1/switchover").is_success, within=PATIENCE, every=0.1)


def stay(node: NodeUnderTest) -> None:
    """Do nothing: the node never ended, answers all the time, and refuses events."""


NIGHTLY = pytest.mark.nightly("the case of a node that is killed is the hardest")


@pytest.mark.parametrize(
    ("go", "come_back"),
    [
        pytest.param(methodcaller("stop"), methodcaller("start"), marks=NIGHTLY, id="stop"),
        pytest.param(methodcaller("kill_everything"), methodcaller("start"), id="kill"),
        pytest.param(hand_over, stay, marks=NIGHTLY, id="hand over"),
    ],
)
def test_requests_reach_the_new_active_after_a_change_under_load(
    pair: Pair,
    balancer: Balancer,
    go: Callable[[NodeUnderTest], object],
    come_back: Callable[[NodeUnderTest], object],
) -> None:
    before = pair.active()
    assert before is not None
    with sending(balancer.events) as sender:
        sender.passes_on()
        go(before)
        wait_until(lambda: pair.active() is pair.other(before), within=PATIENCE)
        sender.passes_on()
        come_back(before)
        wait_until(pair.is_protected, within=PATIENCE, every=0.1)
        sender.passes_on()
    assert len(set(sender.acked.values())) == 2
    all_is_stored_once(pair, sender)


@pytest.mark.nightly("test_server_tls serves it; another case of this module loses the active")
def test_balancer_uses_tls_to_nodes_that_serve_it(node_database: str, tmp_path: Path) -> None:
    shown = Authority(tmp_path).files("node", san="IP:127.0.0.1")
    ca = shown.pop("ca")
    pair = Pair(tmp_path, APPLICATION, node_database, NodeWithStandIn, http={"tls": shown})
    for node in pair.nodes.values():
        node.url = node.url.replace("http:", "https:")
        trusted = ssl.create_default_context(cafile=ca)
        node.http = httpx.Client(base_url=node.url, verify=trusted, timeout=30)
    config = tmp_path / "haproxy.cfg"
    # The steps follow docs/INSTALL.md.
    over_tls = re.compile(r'(server node-. "\$\{NODE_.\}")')
    config.write_text(over_tls.sub(rf"\1 ssl verify required ca-file {ca}", CONFIG.read_text()))
    with running_pair(pair):
        active = pair.wait_protected()
        with balancing(pair, config) as balancer, sending(balancer.events) as sender:
            sender.passes_on()
            active.kill_everything()
            sender.passes_on()
    assert len(set(sender.acked.values())) == 2


@pytest.mark.nightly("test_haproxy_takes_the_config_of_the_balancer")
def test_balancer_of_the_helm_chart_follows_the_active(pair: Pair, tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(_on_this_host(balancer_config("plain")))
    active = pair.active()
    assert active is not None
    with balancing(pair, config) as balancer, sending(balancer.events) as sender:
        sender.passes_on()
        active.kill_everything()
        sender.passes_on()
    assert len(set(sender.acked.values())) == 2


def _on_this_host(text: str) -> str:
    """The part of the chart's balancer for HTTP, with the addresses of a ``Balancer``."""
    defaults, http = text.partition("\nlisten grpc")[0], text[text.index("\nlisten http") :]
    listen = http.partition("\nfrontend")[0]
    listen = listen.replace("bind :8080", 'bind "${EVENTS}"\n    bind "${STATUS}"')
    for number, name in enumerate(("NODE_A", "NODE_B")):
        listen = re.sub(rf"(server node-{number}) \S+", rf'\1 "${{{name}}}"', listen)
    return defaults.replace("check port 8080", "check") + listen


def test_balancer_forwards_only_the_allowed_paths(pair: Pair, balancer: Balancer) -> None:
    active = pair.active()
    assert active is not None
    shown = httpx.get(f"{balancer.status}/v1/status").json()
    assert (shown["node"], shown["role"]) == (active.name, "active")
    assert httpx.get(f"{balancer.events}/v1/streams/events").json()["name"] == "events"
    assert httpx.post(f"{balancer.events}/v1/switchover").status_code == 404
    assert httpx.post(f"{balancer.status}/v1/status").status_code == 405
    assert httpx.get(f"{balancer.status}/metrics").status_code == 404


@pytest.mark.nightly("another case of this module loses the active")
def test_balancer_asks_producers_to_retry_while_no_node_lives(
    pair: Pair, balancer: Balancer
) -> None:
    for node in pair.nodes.values():
        node.kill_everything()

    def refused() -> httpx.Response:
        return httpx.post(f"{balancer.events}/v1/streams/events/events", json=[{"id": 1}])

    wait_until(lambda: "no node is active" in refused().text, within=PATIENCE, every=0.1)
    answer = refused()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "error" in answer.json()
