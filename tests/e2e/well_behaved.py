"""A producer that behaves, and what it and a node see while others do not."""

from __future__ import annotations

import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from tests.e2e.node_under_test import NodeUnderTest
from tests.waiting import wait_until

PAUSE_SECONDS = 0.01


class WellBehaved:
    """Sends one event after the other on one connection, and measures each ack."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._url, self._over = node.url, threading.Event()
        self.acks: list[float] = []
        self.refusals: list[str] = []
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60.0) as http:
            while not self._over.wait(PAUSE_SECONDS):
                began = time.monotonic()
                try:
                    answer = http.post(
                        "/v1/streams/events/events",
                        content=b'{"id": 1}',
                        headers={"Content-Type": "application/x-ndjson"},
                    )
                except httpx.TransportError as error:
                    self.refusals.append(repr(error))
                    continue
                if answer.status_code == 200:
                    self.acks.append(time.monotonic() - began)
                else:
                    self.refusals.append(answer.text)


@dataclass(frozen=True)
class Seen:
    """Memory is in MiB."""

    memory: float
    status: dict[str, Any]


def seen(node: NodeUnderTest) -> Seen:
    assert node.process is not None
    status = node.status()
    assert status is not None
    return Seen(psutil.Process(node.process.pid).memory_info().rss / (1 << 20), status)


@contextmanager
def attack(name: str, clients: int, address: str, within: float) -> Iterator[None]:
    """Let clients of ``tests.e2e.hostile`` misbehave, once all have begun."""
    attacking = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.hostile", name, str(clients), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert attacking.stdin is not None
    assert attacking.stdout is not None
    try:
        with selectors.DefaultSelector() as output:
            output.register(attacking.stdout, selectors.EVENT_READ)
            wait_until(lambda: output.select(timeout=0), within=within)
        assert attacking.stdout.readline() == "attacking\n"
        yield
    finally:
        attacking.stdin.close()
        attacking.stdout.close()
        attacking.kill()
        attacking.wait()
