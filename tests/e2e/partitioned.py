"""A pair without Spark whose lines a test can silence, and a separate client for each node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from ha_engine.client.token import authorization
from tests.e2e.network import Network
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair, same_journal, stored_events
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

PATIENCE = 60
PAUSE_SECONDS = 0.01


class Client(threading.Thread):
    """Sends one event after the other to one node, and records the time of each ack."""

    pause_seconds = PAUSE_SECONDS

    def __init__(self, node: NodeUnderTest) -> None:
        super().__init__(name=f"client-{node.name}", daemon=True)
        self.node, self._enough = node, threading.Event()
        self.acked: dict[int, float] = {}

    def run(self) -> None:
        headers = {"Content-Type": "application/json", "X-Producer-Id": self.name}
        headers |= authorization()
        with httpx.Client(base_url=self.node.url, headers=headers, timeout=1.0) as http:
            number = 0
            while not self._enough.wait(self.pause_seconds):
                number += self._is_acked(http, number)

    def _is_acked(self, http: httpx.Client, number: int) -> bool:
        content, headers = self.content(number), {"X-Sequence": str(number)}
        try:
            answer = http.post("/v1/streams/events/events", content=content, headers=headers)
        except httpx.TransportError:
            return False
        if answer.status_code == httpx.codes.OK:
            self.note(number, answer)
        return number in self.acked

    def content(self, number: int) -> str:
        """Return the body of request ``number``, the same for each of its attempts."""
        return f'[{{"id": {number}, "text": "{self.name}"}}]'

    def note(self, number: int, answer: httpx.Response) -> None:
        self.acked[number] = time.time()

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
        return max(
            int((node.status() or {"epoch": 0})["epoch"]) for node in self.pair.nodes.values()
        )

    def require_whole(self) -> None:
        """Require that both nodes are in sync and have every acked event exactly once."""
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


@contextmanager
def partitioned(directory: Path, url: str, lease: dict[str, str]) -> Iterator[Scene]:
    """Start a pair: both nodes are in sync, the active acks, and no line is silent yet."""
    pair = Pair(directory, APPLICATION, url, NodeWithoutSpark, lease=lease, **ROOM)
    with Network.of(pair, url) as network, running_pair(pair):
        wait_until(lambda: pair.lives() and pair.is_protected(), within=PATIENCE, every=0.1)
        active = pair.active()
        assert active is not None
        found = Scene(pair, network, active, pair.other(active), url)
        found.clients = [Client(node) for node in pair.nodes.values()]
        for client in found.clients:
            client.start()
        wait_until(lambda: found.client_of(active).acked, within=PATIENCE)
        yield found
        for client in found.clients:
            client.stop()
