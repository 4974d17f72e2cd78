"""A real HAProxy with the configuration of the project, in front of a pair."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.e2e.node_under_test import free_port
from tests.e2e.pair import NAMES, Pair
from tests.programs import found
from tests.waiting import wait_until

CONFIG = Path(__file__).parents[2] / "conf" / "haproxy" / "haproxy.cfg"


def program() -> str:
    path = found("haproxy")
    assert path, "these tests need HAProxy; apt-get install haproxy"
    return path


class Balancer:
    """``events`` and ``status`` are the URLs of its two frontends."""

    def __init__(self, pair: Pair) -> None:
        listens = {name: f"127.0.0.1:{free_port()}" for name in ("EVENTS", "STATUS")}
        nodes = {"NODE_A": pair.a, "NODE_B": pair.b}
        places = {name: node.url.partition("://")[2] for name, node in nodes.items()}
        self.environ = {**os.environ, **listens, **places}
        self.events, self.status = (f"http://{listen}" for listen in listens.values())

    def knows_the_active(self) -> bool:
        """Return whether HAProxy has found the active; it presumes each server up until its first
        check."""
        roles = {self._role() for _ in range(2 * len(NAMES))}
        return roles == {"active"}

    def _role(self) -> str | None:
        try:
            answer = httpx.get(f"{self.status}/v1/status", timeout=2)
        except httpx.HTTPError:
            return None
        return answer.json().get("role") if answer.is_success else None


@contextmanager
def balancing(pair: Pair, config: Path = CONFIG) -> Iterator[Balancer]:
    balancer = Balancer(pair)
    with subprocess.Popen([program(), "-db", "-f", config], env=balancer.environ) as process:
        try:
            wait_until(balancer.knows_the_active, within=20, every=0.1)
            yield balancer
        finally:
            process.terminate()
