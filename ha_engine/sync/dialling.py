"""Open links between nodes: the exchange of Hellos, and the endless attempts of the node that
dials. ``read_hello`` only looks at a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import cycle
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential
from tenacity.wait import wait_base

from ha_engine.errors import ConfigError
from ha_engine.sync.codec import MalformedFrame
from ha_engine.sync.hello import Hello, from_sync_frame, objection, to_sync_frame
from ha_engine.sync.transport import Refused, Transport
from ha_engine.sync.wire import Wire, WireBroken
from ha_engine.v1 import sync_pb2 as pb

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


class NoLink(Exception):
    """An attempt to open a link failed; the dialler makes another attempt."""


async def exchange_hellos(
    wire: Wire,
    ours: Hello,
    welcome: Collection[str],
    connected: Callable[[str], str | None] = lambda node: None,
) -> Hello:
    """Exchange Hellos, then a Welcome or a Refusal each, and return the other node's Hello.

    ``connected`` returns the process of a node that has a link already, or None.

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
            connected=connected(theirs.node),
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
    """Dials one peer for as long as the node runs.

    ``jitter`` chooses each pause between two limits, in seconds.
    """

    def __init__(
        self,
        peer: str,
        transport: Transport,
        run_link: RunLink,
        refused: Callable[[str], None],
        unreachable: Callable[[str], None],
        jitter: Callable[[float, float], float],
    ) -> None:
        self._peer, self._transport, self._pause = peer, transport, _Pause(jitter)
        self._run_link, self._refused, self._unreachable = run_link, refused, unreachable
        self._connect_seconds = cycle(CONNECT_SECONDS)

    async def run(self) -> None:
        """Dial the peer for ever: at once after a lost link, then with growing waits."""
        while True:
            async for attempt in AsyncRetrying(
                wait=self._pause, retry=retry_if_exception_type(NoLink), reraise=True
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
        async with self._transport.connect(self._peer, seconds) as wire:
            await self._run_link(wire, self._peer)


class _Pause(wait_base):
    """Growing pauses with jitter between attempts."""

    def __init__(self, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._longest = wait_exponential(multiplier=0.05, max=WAIT_SECONDS_MAX)

    def __call__(self, retry_state: RetryCallState) -> float:
        return self._jitter(0.0, float(self._longest(retry_state)))


async def read_hello(peer: str, transport: Transport, seconds: float) -> Hello:
    """Connect to ``peer`` within ``seconds``, and read its Hello.

    This function sends no Hello, so the peer opens no link and keeps its present link. Raises
    Refused, WireBroken, MalformedFrame, ConfigError, TimeoutError.
    """
    async with transport.connect(peer, seconds) as wire, asyncio.timeout(GREETING_SECONDS):
        return from_sync_frame((await _expect(wire, "hello")).hello)
