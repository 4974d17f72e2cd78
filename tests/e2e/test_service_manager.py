"""The notifications of a real node to its service manager, and the processes that know it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.node_under_test import NodeUnderTest, running
from tests.e2e.without_spark import APPLICATION, NodeWithoutSpark, no_spark
from tests.service_manager import ServiceManager, service_manager
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

PATIENCE = 60
WATCHDOG_SECONDS = 3


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceManager]:
    """Set the environment that systemd gives to its services."""
    with service_manager(str(tmp_path / "notify")) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_SECONDS * 1_000_000))
        monkeypatch.setenv("WATCHDOG_PID", "1")
        yield manager


def test_node_notifies_its_state_from_its_start_to_its_stop(
    manager: ServiceManager, node_database: str, tmp_path: Path
) -> None:
    with running(NodeWithoutSpark(tmp_path, APPLICATION, node_database)) as node:
        assert manager.hears("READY=1", within=PATIENCE)
        assert node.is_active()
        assert "STATUS=active, epoch 1, not protected" in manager.told
        assert manager.hears("WATCHDOG=1", within=WATCHDOG_SECONDS)
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        assert manager.hears("STOPPING=1", within=PATIENCE)


def test_hanging_node_process_feeds_no_watchdog(
    manager: ServiceManager, node_database: str, tmp_path: Path
) -> None:
    with running(NodeWithoutSpark(tmp_path, APPLICATION, node_database)) as node:
        assert manager.hears("READY=1", within=PATIENCE)
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            manager.forget()
            assert not manager.hears("WATCHDOG=1", within=WATCHDOG_SECONDS)
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        assert manager.hears("WATCHDOG=1", within=PATIENCE)


@pytest.mark.nightly("test_notify has it for each process")
def test_query_process_does_not_know_the_service_manager(
    manager: ServiceManager,
    node_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    with running(NodeUnderTest(tmp_path, APPLICATION, node_database)) as node:
        # The supervisor feeds the watchdog while there is no loop of a node process yet.
        assert manager.hears("STATUS=starting: reading the journal", within=PATIENCE)
        assert manager.hears("READY=1", within=PATIENCE)
        assert _manager_variables(node, "node") == {"NOTIFY_SOCKET", "WATCHDOG_USEC"}
        wait_until(lambda: node.pid_of("query"), within=PATIENCE)
        assert _manager_variables(node, "query") == set()


def _manager_variables(node: NodeUnderTest, what: str) -> set[str]:
    pid = node.pid_of(what)
    assert pid is not None
    return {
        name for name in psutil.Process(pid).environ() if name.startswith(("NOTIFY", "WATCHDOG"))
    }
