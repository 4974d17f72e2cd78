"""A node forwards requests of producers only to, and takes them only from, a node whose certificate
names it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ha_engine.client.transport import NoAnswer
from ha_engine.sync import Forwarder, GrpcTransport, PeerCalls
from ha_engine.sync.wire import Wire
from ha_engine.v1.ingest_pb2 import EventsStored, PublishAnswer
from ha_engine.v1.sync_pb2 import ForwardRequest
from tests.sync.authority import Authority
from tests.sync.pair import no_check
from tests.sync.test_sync_tls import secured


async def no_link(wire: Wire) -> None:
    """Serve no link."""


async def answered(request: ForwardRequest) -> PublishAnswer:
    return PublishAnswer(id=request.id, stored=EventsStored(accepted=1))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def port(authority: Authority) -> AsyncIterator[int]:
    """The port of node-b, which admits every process of node-a."""
    config = secured({"node-a": 1}, authority.files("node-b"))
    transport = GrpcTransport(
        config, PeerCalls(lambda node, _: node == "node-a", no_check, answered)
    )
    yield await transport.listen(no_link)
    await transport.stop()


@pytest.mark.parametrize(
    ("shown", "claimed", "is_admitted"),
    [("node-a", "node-a", True), ("node-x", "node-a", False), ("node-x", "node-x", False)],
)
async def test_a_caller_is_the_node_in_its_certificate(
    authority: Authority, port: int, shown: str, claimed: str, *, is_admitted: bool
) -> None:
    forwarder = Forwarder(secured({"node-b": port}, authority.files(shown)), claimed, "a process")
    if is_admitted:
        assert (await forwarder.forward("node-b", ForwardRequest())).stored.accepted == 1
    else:
        with pytest.raises(NoAnswer, match="only a peer of this node"):
            await forwarder.forward("node-b", ForwardRequest())
    await forwarder.close()


async def test_a_listener_is_the_node_in_its_certificate(authority: Authority, port: int) -> None:
    config = secured({"node-c": port}, authority.files("node-a"))
    forwarder = Forwarder(config, "node-a", "a process")
    with pytest.raises(NoAnswer):
        await forwarder.forward("node-c", ForwardRequest())
    await forwarder.close()
