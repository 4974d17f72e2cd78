"""A peer that breaks the protocol ends its own link and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from ha_engine.core import inputs as on
from ha_engine.core.messages import Probe
from ha_engine.sync import dialling
from ha_engine.sync.codec import records_frame, to_sync_frame
from ha_engine.sync.event_sync import STRANGERS_MAX
from ha_engine.sync.grpc_transport import CONNECTIONS_MAX
from ha_engine.sync.hello import to_sync_frame as hello_frame
from ha_engine.sync.wire import MESSAGE_BYTES_MAX
from ha_engine.types import ORIGIN
from ha_engine.v1 import sync_pb2 as pb
from ha_engine.v1 import sync_pb2_grpc as rpc
from tests.idle_connections import require_bound
from tests.sync.conftest import Make
from tests.sync.pair import SyncNode, hello, plain
from tests.waiting import async_wait_until

WELCOME = pb.SyncFrame(welcome=pb.Welcome())
Call = Any


@pytest.fixture
async def node(make: Make) -> SyncNode:
    return await make("node-b", plain({"node-a": 1, "node-0": 1}))


@pytest.fixture
async def dial(node: SyncNode) -> AsyncIterator[Callable[[], Awaitable[Call]]]:
    """Open a hand-made caller of ``node``."""
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.sync.port}", unlimited) as channel:

        async def call() -> Call:
            return rpc.EventSyncStub(channel).Sync()

        yield call


async def greeted(call: Call, name: str = "node-a") -> None:
    await call.write(hello_frame(hello(name)))
    assert (await call.read()).HasField("hello")
    await call.write(WELCOME)
    assert (await call.read()).HasField("welcome")


async def test_connections_of_strangers_are_bounded(node: SyncNode) -> None:
    await require_bound(node.sync.port, CONNECTIONS_MAX)


async def test_peer_gets_in_beside_strangers_that_keep_all_connections(
    node: SyncNode, make: Make
) -> None:
    async with contextlib.AsyncExitStack() as opened:
        strangers = [
            await opened.enter_async_context(_own_channel(node, number))
            for number in range(CONNECTIONS_MAX)
        ]
        for stranger in strangers:  # such a channel answers pings
            stranger.get_state(try_to_connect=True)
        ready = grpc.ChannelConnectivity.READY
        await async_wait_until(lambda: all(one.get_state() is ready for one in strangers))
        await make("node-a", plain({"node-b": node.sync.port}))
        await async_wait_until(lambda: node.connected("node-a"), within=30)


async def test_peer_gets_in_beside_strangers_with_half_open_streams(
    node: SyncNode, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "GREETING_SECONDS", 3600)  # only displacement ends a stranger

    async def call_again_and_again(channel: grpc.aio.Channel) -> None:
        while True:
            call = rpc.EventSyncStub(channel).Sync()  # type: ignore[call-arg]
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass

    async with contextlib.AsyncExitStack() as opened:
        calling = []
        for number in range(4 * STRANGERS_MAX):
            channel = await opened.enter_async_context(_own_channel(node, number))
            calling.append(asyncio.create_task(call_again_and_again(channel)))
        await async_wait_until(lambda: node.closed["stranger"] > STRANGERS_MAX)
        await make("node-a", plain({"node-b": node.sync.port}))
        await async_wait_until(lambda: node.connected("node-a"), within=30)
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)


def _own_channel(node: SyncNode, number: int) -> grpc.aio.Channel:
    own = [("grpc.use_local_subchannel_pool", 1), ("number", number)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{node.sync.port}", own)


@pytest.mark.parametrize(
    "frame",
    [
        pb.SyncFrame(),
        WELCOME,
        pb.SyncFrame(refusal=pb.Refusal(reason="late")),
        records_frame(1, ORIGIN, b"no record", 0),
        records_frame(1, ORIGIN, bytes(MESSAGE_BYTES_MAX + 1), 0),
    ],
    ids=["empty", "welcome", "refusal", "no record", "oversize"],
)
async def test_a_malformed_or_oversize_frame_ends_its_own_link_only(
    node: SyncNode, dial: Callable[[], Awaitable[Call]], frame: pb.SyncFrame
) -> None:
    good, bad = await dial(), await dial()
    await greeted(good, "node-0")
    await greeted(bad, "node-a")
    await async_wait_until(lambda: node.connected("node-0") and node.connected("node-a"))
    await bad.write(frame)
    await async_wait_until(lambda: not node.connected("node-a"))
    await good.write(to_sync_frame(Probe(5)))
    await async_wait_until(lambda: node.heard() == [Probe(5)])
    assert node.connected("node-0")
    assert [type(event) for event in node.inputs].count(on.PeerLost) == 1


@pytest.mark.parametrize(
    "frame",
    [pb.SyncFrame(), WELCOME, to_sync_frame(Probe(1)), hello_frame(hello("x" * 500))],
    ids=["empty", "welcome", "message", "long hello"],
)
async def test_caller_that_does_not_begin_with_a_hello_is_ignored(
    node: SyncNode, dial: Callable[[], Awaitable[Call]], frame: pb.SyncFrame
) -> None:
    call = await dial()
    await call.write(frame)
    assert (await call.read()).HasField("hello")
    assert await call.read() is grpc.aio.EOF
    await greeted(await dial())
    await async_wait_until(lambda: node.connected("node-a"))
    assert node.heard() == []


@pytest.mark.parametrize("is_greeted", [False, True])
async def test_undecodable_bytes_end_their_own_link_only(node: SyncNode, is_greeted: bool) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.sync.port}") as channel:
        call = channel.stream_stream(
            "/ha_engine.v1.EventSync/Sync",
            request_serializer=lambda frame: frame if isinstance(frame, bytes) else _bytes(frame),
            response_deserializer=pb.SyncFrame.FromString,
        )()
        if is_greeted:
            await greeted(call)
            await async_wait_until(lambda: node.connected("node-a"))
        await call.write(b"\xff\xff\xff\xff")
        while await call.read() is not grpc.aio.EOF:
            pass
        await async_wait_until(lambda: not node.connected("node-a"))
    assert node.failures == []


def _bytes(frame: pb.SyncFrame) -> bytes:
    return frame.SerializeToString()


class Curt(rpc.EventSyncServicer):
    """Sends each caller a Welcome, and hangs up."""

    def __init__(self) -> None:
        self.calls = 0

    async def Sync(self, request_iterator: object, context: Any) -> None:  # noqa: N802
        self.calls += 1
        await context.write(hello_frame(hello("node-b")))
        await context.write(WELCOME)
        await context.read()
        await context.read()


async def test_node_delays_its_calls_to_a_peer_that_hangs_up_after_each_welcome(
    make: Make,
) -> None:
    """Twelve calls take 0.1 s without delays between them, and about 2 s with them."""
    server, curt = grpc.aio.server(), Curt()
    rpc.add_EventSyncServicer_to_server(curt, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    a = await make("node-a", plain({"node-b": port}))
    began = time.monotonic()
    await async_wait_until(lambda: a.sync.traffic()["node-b"].links >= 12, within=60)
    assert time.monotonic() - began > 0.5
    await server.stop(None)


async def test_message_before_the_welcome_is_ignored(
    node: SyncNode, dial: Callable[[], Awaitable[Call]]
) -> None:
    call = await dial()
    await call.write(hello_frame(hello("node-a")))
    await call.write(to_sync_frame(Probe(1)))
    await greeted(await dial())
    await async_wait_until(lambda: node.connected("node-a"))
    assert node.heard() == []
