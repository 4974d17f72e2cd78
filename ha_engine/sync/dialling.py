"""Open links between nodes: the exchange of Hellos, and the endless attempts of the node that
dials. ``read_hello`` only looks at a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

import grpc
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.errors import ConfigError
from ha_engine.sync import credentials
from ha_engine.sync.codec import MalformedFrame
from ha_engine.sync.hello import Hello, from_sync_frame, objection, to_sync_frame
from ha_engine.sync.wire import ClientWire, Wire, WireBroken, options
from ha_engine.v1 import sync_pb2 as pb
from ha_engine.v1 import sync_pb2_grpc as rpc

if TYPE_CHECKING:
    Stub = rpc.EventSyncAsyncStub

GREETING_SECONDS = 5.0
WAIT_SECONDS_MAX = 0.5
CONNECT_SECONDS = (1.0, 1.0, 4.0)
"""Timeouts of successive attempts to connect, used in turn.

A short timeout finds a peer soon after the network heals. A long timeout finds a slow peer.
"""
BRIEF_SECONDS = 1.0
"""A link that ended within this time counts as a failed attempt, so that two nodes do not redial
nonstop."""
_REASON_LENGTH_MAX = 500
_DISTRUST = {
    "Hostname Verification": "the node at {address} shows no certificate for {peer}; correct "
    "event_sync.peers, or the names in its certificate",
    "CERTIFICATE_VERIFY_FAILED": "the certificate at {address} has expired or is not signed by "
    "event_sync.tls.ca; correct the certificate or the setting",
    "WRONG_VERSION_NUMBER": "the node at {address} uses plain text, but this node uses TLS; set "
    "event_sync.tls on both",
}
"""Parts of gRPC's errors about a peer's certificate, each with its meaning."""


class Refused(Exception):
    """One of the two nodes of a link refuses the other.

    ``node`` is the name in the other node's Hello. If TLS failed before the Hello, ``node`` is the
    peer's name in the config.
    """

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(reason)


class NoLink(Exception):
    """An attempt to open a link failed; the dialler makes another attempt."""


async def exchange_hellos(
    wire: Wire,
    ours: Hello,
    welcome: Collection[str],
    replaced: Callable[[str], Collection[str]] = lambda node: (),
) -> Hello:
    """Exchange Hellos, then a Welcome or a Refusal each, and return the other node's Hello.

    ``replaced`` returns the processes of a node before its newest one.

    Raises Refused, WireBroken, MalformedFrame, and TimeoutError after GREETING_SECONDS.
    """
    async with asyncio.timeout(GREETING_SECONDS):
        await wire.write(to_sync_frame(ours))
        theirs = from_sync_frame((await _expect(wire, "hello")).hello)
        reason = objection(
            ours,
            theirs,
            welcome=welcome,
            certified=wire.certified,
            replaced=replaced(theirs.node),
        )
        await wire.write(_verdict(reason))
        answer = await _expect(wire, "welcome", "refusal")
        if reason is None and answer.HasField("refusal"):
            text = answer.refusal.reason[:_REASON_LENGTH_MAX]
            reason = f"{theirs.node} refuses this node and says: {text}"
        if reason is not None:
            await wire.finish()
            raise Refused(theirs.node, reason)
        return theirs


def _verdict(reason: str | None) -> pb.SyncFrame:
    if reason is None:
        return pb.SyncFrame(welcome=pb.Welcome())
    return pb.SyncFrame(refusal=pb.Refusal(reason=reason))


async def _expect(wire: Wire, *kinds: str) -> pb.SyncFrame:
    frame = await wire.read()
    if frame.WhichOneof("frame") not in kinds:
        raise MalformedFrame(f"the peer sent {frame.WhichOneof('frame')} instead of {kinds[0]}")
    return frame


class RunLink(Protocol):
    """Exchange Hellos over a new wire, and serve the link until it is over.

    Raises Refused, WireBroken, MalformedFrame or TimeoutError when no link opened.
    """

    async def __call__(self, wire: Wire, dialled: str | None) -> None: ...


class Dialler:
    """Dials one peer for as long as the node runs."""

    def __init__(
        self,
        peer: str,
        config: EventSyncConfig,
        run_link: RunLink,
        refused: Callable[[str], None],
        unreachable: Callable[[str], None],
    ) -> None:
        self._peer, self._config = peer, config
        self._run_link, self._refused, self._unreachable = run_link, refused, unreachable
        self._connect_seconds = cycle(CONNECT_SECONDS)

    async def run(self) -> None:
        """Dial the peer for ever: at once after a lost link, then with growing waits."""
        waits = wait_random_exponential(multiplier=0.05, max=WAIT_SECONDS_MAX)
        while True:
            async for attempt in AsyncRetrying(
                wait=waits, retry=retry_if_exception_type(NoLink), reraise=True
            ):
                with attempt:
                    await self._attempt()

    async def _attempt(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._dial()
        except Refused as error:
            self._refused(error.reason)
            raise NoLink(error.reason) from error
        except (WireBroken, MalformedFrame, ConfigError, TimeoutError) as error:
            self._unreachable(str(error) or "no answer")
            raise NoLink(str(error)) from error
        if asyncio.get_running_loop().time() - began < BRIEF_SECONDS:
            raise NoLink("the link was brief")

    async def _dial(self) -> None:
        seconds = next(self._connect_seconds)
        async with connected(self._peer, self._config, seconds) as wire:
            await self._run_link(wire, self._peer)


async def read_hello(peer: str, config: EventSyncConfig, seconds: float) -> Hello:
    """Connect to ``peer`` within ``seconds``, and read its Hello.

    This function sends no Hello, so the peer opens no link and keeps its present link. Raises
    Refused, WireBroken, MalformedFrame, ConfigError, TimeoutError.
    """
    async with connected(peer, config, seconds) as wire, asyncio.timeout(GREETING_SECONDS):
        return from_sync_frame((await _expect(wire, "hello")).hello)


@asynccontextmanager
async def connected(
    peer: str, config: EventSyncConfig, seconds: float
) -> AsyncIterator[ClientWire]:
    """Connect to ``peer`` within ``seconds``. Raises Refused, WireBroken, ConfigError,
    TimeoutError."""
    async with _channel(peer, config) as channel:
        stub: Stub = rpc.EventSyncStub(channel)
        call = stub.Sync()  # type: ignore[call-arg]  # its frames are written, not iterated
        try:
            async with asyncio.timeout(seconds):
                await call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            raise _meaning(peer, config.peers[peer], error.details() or "no answer") from error
        try:
            yield ClientWire(call, peer if config.tls.given else None)
        finally:
            call.cancel()


def _meaning(peer: str, address: str, details: str) -> Refused | WireBroken:
    for sign, meaning in _DISTRUST.items():
        if sign in details:
            return Refused(peer, meaning.format(address=address, peer=peer))
    return WireBroken(details.rpartition("last error: ")[2])


def _channel(peer: str, config: EventSyncConfig) -> grpc.aio.Channel:
    address = config.peers[peer]
    settings: list[tuple[str, int | str]] = [
        *options(config.sync_timeout),
        ("grpc.min_reconnect_backoff_ms", int(max(CONNECT_SECONDS) * 1000)),
        ("grpc.enable_http_proxy", 0),
    ]
    trusted = credentials.for_channel(config.tls)
    if trusted is None:
        return grpc.aio.insecure_channel(address, settings)
    # ``ssl_target_name_override`` makes gRPC look for the peer's id in the certificate, instead
    # of the address's host name.
    settings += [("grpc.ssl_target_name_override", peer)]
    return grpc.aio.secure_channel(address, trusted, settings)
