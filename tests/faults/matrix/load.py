"""Events of one producer and of two clients that know one node each, and the roles meanwhile."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx

from ha_engine.client import Ack, Producer
from ha_engine.errors import EngineError
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.partitioned import Client
from tests.faults.matrix.history import Request, RoleSeen
from tests.faults.matrix.world import World

PAUSE_SECONDS = 0.05
DEADLINE_SECONDS = 30.0
LOOK_SECONDS = 0.25
STREAM = "events"


class Log:
    """Every request of a world, and every role that was seen. Nobody sends while ``quiet`` is
    set."""

    def __init__(self) -> None:
        self.quiet = threading.Event()
        self._last, self._lock = 0, threading.Lock()
        self._requests: dict[int, Request] = {}
        self.roles: list[RoleSeen] = []

    def sent(self, producer: str, node: str | None = None) -> int:
        """Note a new event of ``producer``, which asks only ``node``; return the event's number."""
        [event] = self.numbers(1)
        self._requests[event] = Request(producer, event, time.monotonic(), node=node)
        return event

    def numbers(self, count: int) -> range:
        """Return the numbers of so many new events."""
        with self._lock:
            first, self._last = self._last + 1, self._last + count
        return range(first, first + count)

    def told(
        self, producer: str, event: int, sent_at: float, acked_at: float | None, epoch: int | None
    ) -> None:
        """Note what another program has sent."""
        self._requests[event] = Request(producer, event, sent_at, acked_at, epoch)

    def acked(self, event: int, epoch: int | None) -> None:
        self._requests[event] = replace(
            self._requests[event], acked_at=time.monotonic(), epoch=epoch
        )

    @property
    def requests(self) -> list[Request]:
        return list(self._requests.values())

    def acks(self) -> list[float]:
        """Return the times of all acks, in order."""
        return sorted(one.acked_at for one in self.requests if one.acked_at is not None)


class FailoverClient(threading.Thread):
    """A producer of the client library, which finds the active and repeats its requests."""

    def __init__(self, urls: list[str], name: str, log: Log) -> None:
        super().__init__(name=name, daemon=True)
        self._urls, self._log, self._enough = urls, log, threading.Event()

    def run(self) -> None:
        while not self._enough.is_set():
            with contextlib.suppress(EngineError):
                self._send_until_a_failure()

    def _send_until_a_failure(self) -> None:
        events: list[int] = []

        def acked(ack: Ack) -> None:
            self._log.acked(events[ack.sequence], ack.position.epoch if ack.position else None)

        with Producer(self._urls, deadline=DEADLINE_SECONDS, on_ack=acked) as producer:
            while not self._enough.wait(PAUSE_SECONDS):
                if self._log.quiet.is_set():
                    continue
                events.append(self._log.sent(self.name))
                producer.send(STREAM, [{"id": events[-1], "text": self.name}])
                producer.flush()

    def stop(self) -> None:
        self._enough.set()
        self.join()


class OneNodeClient(Client):
    """A client of one node, which repeats an event until that node acks it."""

    pause_seconds = PAUSE_SECONDS

    def __init__(self, node: NodeUnderTest, name: str, log: Log) -> None:
        super().__init__(node)
        self.name = name
        self._log, self._event = log, 0

    def _is_acked(self, http: httpx.Client, number: int) -> bool:
        return not self._log.quiet.is_set() and super()._is_acked(http, number)

    def content(self, number: int) -> str:
        if number not in self.acked:
            self._event = self._event or self._log.sent(self.name, self.node.name)
        return f'[{{"id": {self._event}, "text": "{self.name}"}}]'

    def note(self, number: int, answer: httpx.Response) -> None:
        super().note(number, answer)
        self._log.acked(self._event, answer.json()["position"]["epoch"])
        self._event = 0


class Watch(threading.Thread):
    """Notes the role that each node gives in its status, and keeps what the active may trim."""

    def __init__(self, world: World, log: Log) -> None:
        super().__init__(name="watch", daemon=True)
        self._world, self._log, self._enough = world, log, threading.Event()
        self._uptimes: dict[str, float] = {}
        self._processes: dict[str, float] = {}

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            clients = {
                node.name: stack.enter_context(httpx.Client(base_url=node.url, timeout=1.0))
                for node in self._world.nodes
            }
            while not self._enough.wait(LOOK_SECONDS):
                for name, client in clients.items():
                    with contextlib.suppress(httpx.HTTPError):
                        self._note(name, client.get("/v1/status").json())

    def _note(self, name: str, status: dict[str, Any]) -> None:
        at, uptime = time.monotonic(), status["uptime_seconds"]
        if uptime < self._uptimes.get(name, math.inf):
            self._processes[name] = at - uptime
        self._uptimes[name] = uptime
        self._log.roles.append(RoleSeen(at, name, self._processes[name], status["role"]))
        if self._world.trims and status["role"] == "active":
            self._world.keep_segments(self._world.pair.nodes[name])

    def stop(self) -> None:
        self._enough.set()
        self.join()


@contextlib.contextmanager
def load(world: World, log: Log, run: int) -> Iterator[None]:
    """Send events, under producer ids of this run, and watch the nodes."""
    urls = [node.url for node in world.nodes]
    threads: list[FailoverClient | OneNodeClient | Watch] = [
        FailoverClient(urls, f"producer-{run}", log),
        *(OneNodeClient(node, f"client-{node.name}-{run}", log) for node in world.nodes),
        Watch(world, log),
    ]
    with contextlib.ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.stop)
        yield
