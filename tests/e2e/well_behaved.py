"""A producer that behaves, and what it and a node see while others do not."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from tests.e2e.node_under_test import NodeUnderTest

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
    status = node.status()
    assert status is not None
    return Seen(memory_of(node), status)


def memory_of(node: NodeUnderTest) -> float:
    """Return the resident memory of the node process, in MiB."""
    assert node.process is not None
    resident: int = psutil.Process(node.process.pid).memory_info().rss
    return resident / (1 << 20)
