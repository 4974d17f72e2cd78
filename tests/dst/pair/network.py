"""Connections between the hosts: the second implementation of ``ha_engine.sync.transport``.

A connection carries encoded frames in order. What a blocked direction does not carry waits, as TCP
sends it again, until an end gives the connection up. Each end learns of the end of a connection by
itself, so a new connection may open while the other end still reads from the old one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

from ha_engine.sync.transport import Serve
from ha_engine.sync.wire import WireBroken
from ha_engine.v1 import sync_pb2 as pb

if TYPE_CHECKING:
    from tests.dst.pair.history import PairHistory
    from tests.dst.pair.process import NodeProcess

SILENCE_SECONDS = (0.6, 2.5)
"""After how long an end gives up a connection on which the other end is silent."""
LATE_SECONDS_MAX = 1.0


class End:
    """One end of a connection, which is the wire of a node process."""

    certified: frozenset[str] | None = None
    other: End

    def __init__(self, network: Network, process: NodeProcess, peer: str) -> None:
        self.network, self.process, self.peer = network, process, peer
        self.in_flight: deque[bytes | None] = deque()
        self.arrives_at = 0.0
        self.over: str | None = None
        self.server: asyncio.Task[None] | None = None
        self._received: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None

    @property
    def way(self) -> tuple[str, str]:
        return self.process.host.name, self.peer

    async def read(self) -> pb.SyncFrame:
        while not self._received:
            if self.over is not None:
                raise WireBroken(self.over)
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return pb.SyncFrame.FromString(self._received.popleft())

    async def write(self, frame: pb.SyncFrame) -> None:
        if self.over is not None:
            raise WireBroken(self.over)
        self.network.carry(self, frame.SerializeToString())
        await asyncio.sleep(0)

    async def finish(self) -> None:
        """Do nothing, because the end of a connection travels behind its frames."""

    def take(self, data: bytes | None) -> None:
        """Take what has arrived: a frame, or the end of the connection."""
        if self.over is not None:
            return
        if data is None:
            self.lose("the peer ended the stream")
            return
        self._received.append(data)
        self._wake()

    def lose(self, reason: str) -> None:
        """Learn that the connection is over."""
        if self.over is None:
            self.over = reason
            self._wake()
            if self.server is not None and self.network.random.random() < 0.5:
                self.process.loop.call_soon(self.server.cancel)

    def _wake(self) -> None:
        def wake() -> None:
            if self._reader is not None and not self._reader.done():
                self._reader.set_result(None)

        self.process.loop.call_soon(wake)


class Network:
    """All connections. ``blocked`` has the directions in which nothing passes, as (from, to)."""

    def __init__(self, history: PairHistory) -> None:
        self.history, self.random = history, Random(history.random.random())
        self.delay_max = 0.02
        self.blocked: set[tuple[str, str]] = set()
        self.listeners: dict[str, HostTransport] = {}
        self._ends: list[End] = []

    # -- connections -------------------------------------------------------------------------------

    def open(self, caller: NodeProcess, peer: str) -> End | None:
        """Open a connection, unless no process listens on the host ``peer``."""
        listener = self.listeners.get(peer)
        if listener is None or caller.dead:
            return None
        mine, theirs = End(self, caller, peer), End(self, listener.process, caller.host.name)
        mine.other, theirs.other = theirs, mine
        self._ends = [end for end in self._ends if end.over is None or end.in_flight]
        self._ends += [mine, theirs]
        listener.process.loop.call_soon(listener.accept, theirs)
        self.history.counts["connections"] += 1
        return mine

    def carry(self, end: End, data: bytes | None) -> None:
        end.in_flight.append(data)
        delay = self.random.uniform(0.0002, self.delay_max)
        end.arrives_at = max(end.arrives_at, self.history.agenda.now + delay)
        self.history.agenda.at(end.arrives_at, lambda: self._arrive(end))

    def _arrive(self, end: End) -> None:
        if end.in_flight and end.way not in self.blocked:
            end.other.take(end.in_flight.popleft())

    def close(self, end: End, reason: str = "this end is closed") -> None:
        """End a connection at one end; the other end learns of it behind the last frame."""
        if end.over is None:
            end.lose(reason)
            late = self.random.random() < 0.1
            end.arrives_at += self.random.uniform(0, LATE_SECONDS_MAX) if late else 0.0
            self.carry(end, None)

    # -- faults ------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Let one end of each connection give it up."""
        for end in self._living():
            if end.over is None and self.random.random() < 0.5:
                self.close(end, "the connection was reset")

    def block(self, one: str, other: str) -> None:
        self.blocked.add((one, other))
        self.notice()

    def unblock(self) -> None:
        self.blocked.clear()
        for end in self._ends:
            for _ in end.in_flight:
                delay = self.random.uniform(0, self.delay_max)
                self.history.agenda.after(delay, lambda end=end: self._arrive(end))  # type: ignore[misc]

    def died(self, process: NodeProcess, *, silently: bool) -> None:
        """End the connections of a dead process. A host without power tells nobody."""
        for end in self._living():
            if end.process is process:
                if self.random.random() < 0.3:
                    end.in_flight.clear()
                if silently:
                    end.over = "the host has no power"
                else:
                    self.close(end)
        self.notice()

    def notice(self) -> None:
        """Let each end give up its connection soon, if the other end stays silent until then."""
        for end in self._living():
            self.history.agenda.after(
                self.random.uniform(*SILENCE_SECONDS),
                lambda end=end: self._give_up(end),  # type: ignore[misc]
            )

    def _give_up(self, end: End) -> None:
        other = end.other
        deaf = other.process.dead or other.process.loop.paused
        if end.over is None and (deaf or {end.way, other.way} & self.blocked):
            self.history.counts["connections given up"] += 1
            self.close(end, "the peer does not answer")

    def _living(self) -> list[End]:
        return [end for end in self._ends if end.over is None and not end.process.dead]


class HostTransport:
    """The transport of one node process."""

    def __init__(self, network: Network, process: NodeProcess) -> None:
        self.network, self.process = network, process
        self._serve: Serve | None = None
        self._serving: dict[asyncio.Task[None], None] = {}

    async def listen(self, serve: Serve) -> int:
        self._serve = serve
        self.network.listeners[self.process.host.name] = self
        return 1

    @asynccontextmanager
    async def connect(self, peer: str, seconds: float) -> AsyncIterator[End]:
        async with asyncio.timeout(seconds):
            end = await self._dial(peer)
        try:
            yield end
        finally:
            self.network.close(end)

    async def _dial(self, peer: str) -> End:
        network, me = self.network, self.process.host.name
        await asyncio.sleep(network.random.uniform(0, network.delay_max))
        if {(me, peer), (peer, me)} & network.blocked or peer in network.history.unpowered:
            await asyncio.get_running_loop().create_future()  # no packet comes back
        end = network.open(self.process, peer)
        if end is None:
            raise WireBroken("connection refused")
        return end

    def accept(self, end: End) -> None:
        assert self._serve is not None
        end.server = asyncio.get_running_loop().create_task(self._served(end), name="serve")
        self._serving[end.server] = None
        end.server.add_done_callback(self._serving.pop)

    async def _served(self, end: End) -> None:
        assert self._serve is not None
        try:
            await self._serve(end)
        finally:
            self.network.close(end)

    def gone(self) -> None:
        """Listen no more, because the process has ended."""
        if self.network.listeners.get(self.process.host.name) is self:
            del self.network.listeners[self.process.host.name]

    async def stop(self) -> None:
        self.gone()
        for task in self._serving:
            task.cancel()
