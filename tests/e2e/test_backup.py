"""The backup of a pair (RULES.md#r37). ``python -m tests.faults.backup_losses`` loses every pair of
the three nodes under load."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import httpx
import pytest

from ha_engine.demo.nodes import sample_application
from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database
from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS, NodeUnderTest
from tests.e2e.pair import NAMES, stored_events
from tests.e2e.trio import BACKUP, Trio, running_trio
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

PATIENCE = 60


class Starts(NodeWithoutSpark):
    """A node that counts the query processes that it wants to start."""

    starts = 0

    def query_process_wanted(self, incarnation: str) -> None:
        self.starts += 1


class Delivery:
    """Sends requests, each one again until a node acks it."""

    def __init__(self, trio: Trio) -> None:
        self._trio, self.delivered = trio, 0

    def send(self, requests: int = 5) -> None:
        for _ in range(requests):
            self.delivered += 1
            wait_until(self._is_acked, within=PATIENCE, every=0.05)

    def _is_acked(self) -> bool:
        return any(self._acks(node) for node in self._trio.nodes.values())

    def _acks(self, node: NodeUnderTest) -> bool:
        row = {"id": self.delivered, "text": "x"}
        with contextlib.suppress(httpx.TransportError):
            return node.send("events", [row], ("load", self.delivered)).status_code == 200
        return False

    def require_each_once(self, node: NodeUnderTest) -> None:
        """Require that the node's journal has each acked request once."""
        assert node.stop() == 0
        requests = [one for events in stored_events(node) for one in events.submissions]
        stored = Counter(one.sequence for one in requests)
        assert stored == Counter(range(1, self.delivered + 1))


@pytest.mark.slow
def test_backup_is_the_second_disk_after_a_long_absence_and_takes_over(
    node_database: str, tmp_path: Path
) -> None:
    trio = Trio(tmp_path, APPLICATION, node_database, Starts, **ROOM)
    delivery, backup = Delivery(trio), trio.backup
    assert isinstance(backup, Starts)
    with running_trio(trio):
        delivery.send()
        assert backup.starts == 0
        active = trio.require_active()
        trio.lose(trio.member())
        trio.wait_in_sync(active.name, BACKUP)
        delivery.send()
        trio.lose(active)
        delivery.send()
        assert backup.is_active()
        assert backup.starts > 0
        delivery.require_each_once(backup)


@pytest.mark.nightly("the test above has a takeover by the backup, without Spark")
@pytest.mark.spark
def test_rows_are_those_of_the_reference_after_the_backup_was_the_active(
    tmp_path: Path, postgres: EmbeddedPostgres
) -> None:
    """The backup restores the state of the queries from a snapshot, runs them, hands the lease
    back, and restores a newer state when it is the active again."""
    with fresh_database(postgres, "backup") as url:
        application = sample_application("flights.yaml")
        trio = Trio(tmp_path, application, url, snapshot={"interval": "5s"})
        with running_trio(trio):
            flights = Flights(trio, url)
            trio.wait_protected()
            for _ in range(2):
                flights.send(10_000)
                flights.require_equal()
                assert trio.backup.pid_of("jvm") is None
                member, active = trio.member(), trio.require_active()
                trio.lose(member)
                trio.wait_in_sync(active.name, BACKUP)
                flights.send(5_000)
                trio.lose(active)
                flights.send(5_000)
                flights.require_equal()
                assert trio.require_active() is trio.backup
                member.start()
                active.start()
                trio.wait_in_sync(*trio.names)
                _switch_back(trio)
                flights.send(5_000)
                flights.require_equal()
                trio.wait_regular()
                wait_until(
                    lambda: trio.backup.pid_of("jvm") is None, within=SPARK_SECONDS, every=0.1
                )


def _switch_back(trio: Trio) -> None:
    """Ask for a switchover until a regular node is warm."""

    def is_asked() -> bool:
        return trio.backup.http.post("/v1/switchover").is_success

    wait_until(is_asked, within=2 * SPARK_SECONDS, every=0.5)
    wait_until(lambda: trio.require_active().name in NAMES, within=SPARK_SECONDS, every=0.1)
