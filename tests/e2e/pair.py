"""Two real nodes that share a database and are each other's peer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ha_engine.journal import Journal
from ha_engine.journal.segment import segment_paths
from ha_engine.types import Events
from tests.e2e.frames import shared_frames
from tests.e2e.node_under_test import (
    POLL_SECONDS,
    SPARK_SECONDS,
    NodeUnderTest,
    free_port,
    running,
)
from tests.waiting import wait_until

NAMES = ("node-a", "node-b")


class Pair:
    """The nodes ``a`` and ``b``, and their present roles. A subclass may have more ``names``."""

    names: tuple[str, ...] = NAMES

    def __init__(
        self,
        directory: Path,
        application: str,
        database_url: str,
        node: Callable[..., NodeUnderTest] = NodeUnderTest,
        /,
        **sections: dict[str, Any],
    ) -> None:
        self._sync_ports = {name: free_port() for name in self.names}
        listens = {name: f"127.0.0.1:{port}" for name, port in self._sync_ports.items()}
        self.nodes = {}
        for name in self.names:
            home = directory / name
            home.mkdir()
            peers = {other: listens[other] for other in self.names if other != name}
            sync: dict[str, Any] = {"listen": listens[name], "peers": peers, "insecure": True}
            # Both share the machine's cores: a passive that is behind needs time to catch up.
            query = {"min_batch_interval": "500ms", **sections.get("query", {})}
            sync = {**sections.get("event_sync", {}), **sync}
            settings = {**sections, "query": query, "event_sync": sync}
            self.nodes[name] = node(home, application, database_url, name, **settings)
        self.a, self.b, *_ = self.nodes.values()

    def sync_port(self, name: str) -> int:
        """Return the port on which the node of that name listens for its peer."""
        return self._sync_ports[name]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    def active(self) -> NodeUnderTest | None:
        """Return the acting node; a thawed node may say for a moment that it is active,
        suspended."""
        acting = (
            node
            for node in self.nodes.values()
            if (status := node.status()) and status["role"] == "active" and not status["suspended"]
        )
        return next(acting, None)

    def wait_settled(self) -> None:
        """Return once every sink has the whole output of the events so far. The active may change
        meanwhile."""
        wait_until(
            lambda: (active := self.active()) is not None and active.settled(),
            within=SPARK_SECONDS,
            every=POLL_SECONDS,
        )

    def other(self, node: NodeUnderTest) -> NodeUnderTest:
        return self.b if node is self.a else self.a

    def versions(self) -> set[str]:
        """Return the engine versions of the nodes that answer."""
        return {status["version"] for node in self.nodes.values() if (status := node.status())}

    def is_protected(self) -> bool:
        """Return whether the active reports the other node as in sync."""
        active = self.active()
        status = active.status() if active else None
        return status is not None and bool(status["protected"])

    def lives(self) -> bool:
        """Return True while both live; fail at once where waiting for both is useless."""
        return all(node.lives() for node in self.nodes.values())

    def wait_protected(self) -> NodeUnderTest:
        """Return the active, once both nodes are warm and in sync."""
        found: list[NodeUnderTest] = []

        def protected() -> bool:
            active = self.whole() if self.lives() else None
            found.extend([active] if active else [])
            return active is not None

        wait_until(protected, within=2 * SPARK_SECONDS, every=0.1)
        return found[-1]

    def whole(self) -> NodeUnderTest | None:
        """Return the active if both nodes are warm and in sync, else None."""
        active = self.active()
        status = active.status() if active else None
        if active is None or not status or not (status["protected"] and status["warm"]):
            return None
        return active if status["peers"][self.other(active).name]["warm"] else None


@contextlib.contextmanager
def running_pair(pair: Pair) -> Iterator[Pair]:
    with running(pair.a), running(pair.b):
        yield pair


def same_journal(pair: Pair) -> bool:
    """Return whether both journals have the same bytes, once they end at the same position.

    A node may have trimmed records that the other still has.
    """

    def met() -> bool:
        ends = {
            (status["journal"]["last"], status["journal"]["durable_sequence"])
            for status in (node.status() for node in pair.nodes.values())
            if status is not None
        }
        return len(ends) == 1

    wait_until(met, within=30, every=0.1)
    segments = {name: segment_paths(node.data_dir / "journal") for name, node in pair.nodes.items()}
    one, other = shared_frames(segments).values()
    return one == other != b""


def stored_events(node: NodeUnderTest) -> list[Events]:
    """Return the events in the journal of an ended node, in order."""
    journal = Journal.open(node.data_dir / "journal", group="test")
    bodies = [record.body for record in journal.read(journal.first, payloads=False)]
    journal.close()
    return [body for body in bodies if isinstance(body, Events)]
