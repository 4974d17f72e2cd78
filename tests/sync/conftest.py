"""A pair of nodes with a proxy between them, and nodes of any other config."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ha_engine.config import EventSyncConfig
from tests.sync.pair import SyncNode, plain
from tests.sync.proxy import Proxy
from tests.waiting import async_wait_until

Make = Callable[..., Awaitable[SyncNode]]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Start nodes; stop all at the end, and require that none has failed."""
    nodes: list[SyncNode] = []

    async def start(
        node: str, config: EventSyncConfig, directory: str | None = None, /, **said: object
    ) -> SyncNode:
        started = SyncNode(tmp_path / (directory or node), config, node, **said)
        nodes.append(started)
        return await started.start()

    yield start
    for node in nodes:
        await node.stop()
    assert [node.failures for node in nodes if node.failures] == []


@pytest.fixture
async def pair(make: Make, proxy: Proxy) -> tuple[SyncNode, SyncNode]:
    """Return node-a, which dials through the proxy, and node-b; connected."""
    # The proxy shares the loop with the nodes: a busy test must not look like a silent network.
    b = await make("node-b", plain({"node-a": 1}, sync_timeout="60s"))
    proxy.target = b.sync.port
    a = await make("node-a", plain({"node-b": proxy.port}, sync_timeout="60s"))
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))
    return a, b
