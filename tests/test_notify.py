"""The notifications of a node to its service manager, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ha_engine.system.systemd import Condition, ServiceManager, take
from ha_engine.types import Role
from tests import service_manager as real
from tests.waiting import async_wait_until

ACTIVE = Condition(Role.ACTIVE, "", epoch=3, protected=True)
JOINING = Condition(Role.JOINING, "its journal is not in sync")
TIMEOUT_USEC = "300000"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[real.ServiceManager]:
    with real.service_manager(str(tmp_path / "notify")) as listening:
        yield listening


@asynccontextmanager
async def attended(manager: real.ServiceManager, seen: list[Condition]) -> AsyncIterator[None]:
    """Run the notifier of a node whose condition is the last of ``seen``."""
    service = ServiceManager({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": TIMEOUT_USEC})
    task = asyncio.create_task(service.attend(lambda: seen[-1]))
    yield
    task.cancel()


async def heard(manager: real.ServiceManager, line: str) -> None:
    """Wait for a line while the event loop runs."""
    await async_wait_until(lambda: manager.hears(line, within=0.001))


async def test_node_is_ready_once_it_is_active_or_passive(manager: real.ServiceManager) -> None:
    seen = [JOINING]
    async with attended(manager, seen):
        await heard(manager, "STATUS=joining: its journal is not in sync")
        assert "READY=1" not in manager.told
        seen.append(Condition(Role.PASSIVE, "its journal is in sync"))
        await heard(manager, "READY=1")
        assert "STATUS=passive: its journal is in sync" in manager.told


async def test_each_change_is_notified_once(manager: real.ServiceManager) -> None:
    seen = [ACTIVE]
    async with attended(manager, seen):
        await heard(manager, "STATUS=active, epoch 3, protected")
        seen.append(Condition(Role.ACTIVE, "", epoch=3))
        await heard(manager, "STATUS=active, epoch 3, not protected")
        for _ in range(3):
            await heard(manager, "WATCHDOG=1")
    assert [line for line in manager.told if line.startswith("STATUS")] == [
        "STATUS=active, epoch 3, protected",
        "STATUS=active, epoch 3, not protected",
    ]


async def test_hanging_event_loop_feeds_no_watchdog(manager: real.ServiceManager) -> None:
    async with attended(manager, [ACTIVE]):
        await heard(manager, "WATCHDOG=1")
        manager.forget()
        # Block the event loop with a synchronous call.
        assert not manager.hears("WATCHDOG=1", within=2 * int(TIMEOUT_USEC) / 1e6)
        await heard(manager, "WATCHDOG=1")


async def test_the_watchdog_is_fed_while_a_node_process_starts(
    manager: real.ServiceManager,
) -> None:
    served = asyncio.Event()
    service = ServiceManager({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": TIMEOUT_USEC})
    bridge = asyncio.create_task(service.bridge(served))
    for _ in range(3):
        await heard(manager, "WATCHDOG=1")
    served.set()
    await asyncio.wait_for(bridge, 5)
    assert "READY=1" not in manager.told


def test_unreachable_database_is_in_the_status_line() -> None:
    condition = Condition(Role.JOINING, "the journal is read", has_database=False)
    assert condition.lines == ["STATUS=joining: the journal is read; the database does not answer"]


def test_a_reason_of_many_lines_is_one_line() -> None:
    lines = Condition(Role.JOINING, "the server said:\nREADY=1").lines
    assert lines == ["STATUS=joining: the server said: READY=1"]


def test_a_socket_without_a_file_is_reached() -> None:
    with real.service_manager(f"@ha-engine-test-{os.getpid()}") as manager:
        ServiceManager({"NOTIFY_SOCKET": manager.address}).stopping()
        assert manager.hears("STOPPING=1")


async def test_node_sends_nothing_without_a_service_manager(tmp_path: Path) -> None:
    assert not ServiceManager({}).send("READY=1")
    await asyncio.wait_for(ServiceManager({}).attend(lambda: ACTIVE), 5)
    await asyncio.wait_for(ServiceManager({}).bridge(asyncio.Event()), 5)
    assert not ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")


def test_service_manager_that_does_not_read_does_not_block_the_node(
    manager: real.ServiceManager,
) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": manager.address})
    taken = [service.send("WATCHDOG=1") for _ in range(10_000)]
    assert taken[0]
    assert not taken[-1]


def test_only_the_node_process_gets_the_service_manager_variables() -> None:
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "7", "HOME": "/"}
    assert take(environ) == {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "5"}
    assert environ == {"HOME": "/"}
    assert take(environ) == {}
