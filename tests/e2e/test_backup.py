"""Two members and their backup, and every pair of losses (RULES.md#r37). Without Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.node_under_test import NodeUnderTest, free_port, running
from tests.e2e.pair import stored_events
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
NAMES = ("node-a", "node-b", "node-c")
BACKUP = "node-c"
TIMES = {"sync_timeout": "1s", "backup_after": "1s", "backup": BACKUP, "insecure": True}


class Starts(NodeWithoutSpark):
    """A node that counts the query processes that it wants to start."""

    starts = 0

    def query_process_wanted(self, incarnation: str) -> None:
        self.starts += 1


class Trio:
    """Two members and their backup. Each delivered request was acked."""

    def __init__(self, directory: Path, database: str) -> None:
        listens = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        self.nodes: dict[str, Starts] = {}
        for name in NAMES:
            home = directory / name
            home.mkdir()
            peers = {other: listens[other] for other in NAMES if other != name}
            sync: dict[str, Any] = {**TIMES, "listen": listens[name], "peers": peers}
            self.nodes[name] = Starts(home, APPLICATION, database, name, event_sync=sync, **ROOM)
        self.backup, self.delivered = self.nodes[BACKUP], 0

    def deliver(self, requests: int = 5) -> None:
        """Send requests, each one again until a node acks it."""
        for _ in range(requests):
            self.delivered += 1
            wait_until(self._is_acked, within=PATIENCE, every=0.05)

    def _is_acked(self) -> bool:
        return any(self._acks(node) for node in self.nodes.values())

    def _acks(self, node: NodeUnderTest) -> bool:
        row = {"id": self.delivered, "text": "x"}
        with contextlib.suppress(httpx.TransportError):
            return node.send("events", [row], ("load", self.delivered)).status_code == 200
        return False

    def active(self) -> NodeUnderTest:
        return next(node for node in self.nodes.values() if node.is_active())

    def member(self) -> NodeUnderTest:
        """Return the node that is neither the active nor the backup."""
        active = self.active()
        return next(n for n in self.nodes.values() if n is not active and n is not self.backup)

    def wait_in_sync(self, *names: str) -> None:
        wait_until(lambda: self._in_sync() == set(names), within=PATIENCE, every=0.1)

    def _in_sync(self) -> set[str]:
        statuses = [node.status() for node in self.nodes.values()]
        listed = [s["lease"]["in_sync"] for s in statuses if s and s["role"] == "active"]
        return set(listed[0]) if listed else set()

    def wait_whole(self) -> None:
        """Return once the two members are in sync and the idle backup has all records."""
        self.wait_in_sync(*(name for name in NAMES if name != BACKUP))
        wait_until(self._backup_is_level, within=PATIENCE, every=0.1)

    def _backup_is_level(self) -> bool:
        if self.backup.status() is None:
            return False
        node = self.backup.http.get("/v1/cluster").json()["nodes"][BACKUP]
        return node["role"] == "backup" and not node["in_sync"] and node["lag_records"] == 0

    def lose(self, *nodes: NodeUnderTest) -> None:
        for node in nodes:
            node.kill_everything()


@pytest.fixture
def trio(node_database: str, tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path, node_database)
    members = [node for node in trio.nodes.values() if node is not trio.backup]
    with contextlib.ExitStack() as stack:
        for node in members:
            stack.enter_context(running(node))
        # A backup that comes before the second member would be the second disk meanwhile.
        trio.wait_in_sync(*(node.name for node in members))
        stack.enter_context(running(trio.backup))
        trio.wait_whole()
        yield trio


def test_backup_is_the_second_disk_after_a_long_absence_and_takes_over(trio: Trio) -> None:
    trio.deliver()
    assert trio.backup.starts == 0
    _lose_member_for_long_and_then_the_active(trio)
    _require_each_once(trio, trio.backup)


@pytest.mark.nightly("each loss starts nodes again; schedules of the simulator have the losses")
def test_no_pair_of_losses_loses_an_acked_event(trio: Trio) -> None:
    trio.deliver()
    assert trio.backup.starts == 0
    _lose_member_and_backup(trio)
    _lose_active_and_backup(trio)
    _return_from_the_backup(trio, *_lose_member_for_long_and_then_the_active(trio))
    _lose_active_and_member_at_once(trio)
    _require_each_once(trio, trio.backup)


def _lose_member_and_backup(trio: Trio) -> None:
    """The active continues alone."""
    member, active = trio.member(), trio.active()
    trio.lose(member, trio.backup)
    trio.deliver()
    trio.wait_in_sync(active.name)
    member.start()
    trio.wait_in_sync(active.name, member.name)
    trio.backup.start()
    trio.wait_whole()


def _lose_active_and_backup(trio: Trio) -> None:
    """The member takes over by itself."""
    member, active = trio.member(), trio.active()
    trio.lose(active, trio.backup)
    trio.deliver()
    assert member.is_active()
    active.start()
    trio.wait_in_sync(active.name, member.name)
    trio.backup.start()
    trio.wait_whole()


def _lose_member_for_long_and_then_the_active(
    trio: Trio,
) -> tuple[NodeUnderTest, NodeUnderTest]:
    """The backup is the second disk by then, and takes over by itself. Return the lost nodes."""
    member, active = trio.member(), trio.active()
    trio.lose(member)
    trio.wait_in_sync(active.name, BACKUP)
    trio.deliver()
    trio.lose(active)
    trio.deliver()
    assert trio.backup.is_active()
    assert trio.backup.starts > 0
    return member, active


def _return_from_the_backup(trio: Trio, *lost: NodeUnderTest) -> None:
    for node in lost:
        node.start()
    trio.wait_in_sync(*NAMES)
    assert trio.backup.stop() == 0
    trio.deliver()
    trio.backup.start()
    trio.wait_whole()


def _lose_active_and_member_at_once(trio: Trio) -> None:
    """The backup is not listed, so an operator decides."""
    member, active = trio.member(), trio.active()
    trio.lose(active, member)
    words = ("failover", "--force", "--yes", "--url", trio.backup.url)
    refused = trio.backup.command(*words)
    assert refused.code == 1
    assert "a failover would give up" in refused.err
    assert not trio.backup.is_active()
    confirmed = (*words, "--confirm-fenced", active.name, "--confirm-fenced", member.name)
    wait_until(lambda: trio.backup.command(*confirmed).code == 0, within=PATIENCE, every=0.5)
    trio.deliver()
    assert trio.backup.is_active()


def _require_each_once(trio: Trio, node: NodeUnderTest) -> None:
    """Require that the node's journal has each acked request once."""
    assert node.stop() == 0
    requests = [one for events in stored_events(node) for one in events.submissions]
    stored = Counter(one.sequence for one in requests)
    assert stored == Counter(range(1, trio.delivered + 1))
