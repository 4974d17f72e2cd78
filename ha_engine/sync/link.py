"""One open gRPC stream to one peer.

The messages of the core are sent in order, and received messages are passed on in order. Messages
that are queued at the same time are written together. Records wait until all other queued messages
are sent. At most one message of records waits to be written. A stopped stream of records sends
nothing after the message that is being written.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ha_engine.sync.codec import MalformedFrame
from ha_engine.sync.wire import Wire, WireBroken
from ha_engine.v1 import sync_pb2 as pb

QUEUED_BYTES_MAX = 16 << 20
"""The link ends when more bytes than this wait for a peer that does not read."""
GATHERED_BYTES_MAX = 16 << 10
"""Queued messages are written together up to this size, so that records wait for few writes.

On a busy host each write waits for other work, whatever its size. After a Follow, a thousand
digests are queued. If they took longer than sync_timeout, the holder would send the Follow and the
digests again, and never a record.
"""


@dataclass(slots=True)
class Traffic:
    """Counters of the traffic with one peer since the process started; bytes do not include the
    framing of messages."""

    connected: bool = False
    links: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0


def size_of(frame: pb.SyncFrame) -> int:
    """Estimate the size of ``frame``. For records ByteSize is too slow, since it encodes the whole
    message, which takes 0.5 ms for 1 MiB."""
    if frame.HasField("records"):
        return len(frame.records.frames)
    size: int = frame.ByteSize()
    return size


class Link:
    """A link to the process ``process`` of a peer, for one event loop. The link is over when
    ``run`` returns the reason."""

    def __init__(self, peer: str, process: str, wire: Wire, traffic: Traffic) -> None:
        self.peer, self.process = peer, process
        self._wire, self._traffic = wire, traffic
        self._queued: deque[tuple[pb.SyncFrame, int]] = deque()
        self._queued_bytes = 0
        self._offered: tuple[pb.SyncFrame, asyncio.Future[None]] | None = None
        self._wake = asyncio.Event()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, frame: pb.SyncFrame) -> None:
        """Queue ``frame`` for sending, and return at once."""
        size = size_of(frame)
        if self._queued_bytes + size > QUEUED_BYTES_MAX:
            self.end("the peer does not read its messages")
            return
        self._queued.append((frame, size))
        self._queued_bytes += size
        self._wake.set()

    async def offer(self, frame: pb.SyncFrame) -> None:
        """Send ``frame`` after all queued frames, and return once it is written. Only one frame may
        be offered at a time."""
        assert self._offered is None, "a stream offers one message at a time"
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offered = frame, written
        self._wake.set()
        await written

    def withdraw(self) -> None:
        """Drop the offered frame. A frame that is being written is still sent whole."""
        self._offered = None

    def end(self, reason: str) -> None:
        """Stop sending and receiving, and let ``run`` return ``reason``."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def run(
        self, receive: Callable[[pb.SyncFrame], None], wait_for_space: Callable[[], Awaitable[None]]
    ) -> str:
        """Send and receive until the link is over, and return the reason of its end.

        ``receive`` may raise MalformedFrame, which ends the link. Any other error of ``receive`` is
        raised by this method. After a message of records, the link reads nothing more until
        ``wait_for_space()`` returns.
        """
        reading = asyncio.create_task(
            self._read(receive, wait_for_space), name=f"read from {self.peer}"
        )
        writing = asyncio.create_task(self._write(), name=f"write to {self.peer}")
        try:
            await asyncio.wait((reading, writing, self._ended), return_when=FIRST_COMPLETED)
        finally:
            reading.cancel()
            writing.cancel()
            outcomes = await asyncio.gather(reading, writing, return_exceptions=True)
        return self._why(outcomes)

    def _why(self, outcomes: Iterable[BaseException | None]) -> str:
        for error in outcomes:
            if isinstance(error, WireBroken | MalformedFrame):
                self.end(str(error))
            elif error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        return self._ended.result()

    async def _read(
        self, receive: Callable[[pb.SyncFrame], None], wait_for_space: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            read = await self._wire.read()
            for frame in read.several.frames if read.HasField("several") else (read,):
                if self._ended.done():
                    return
                self._traffic.bytes_received += size_of(frame)
                receive(frame)
                if frame.HasField("records"):
                    await wait_for_space()

    async def _write(self) -> None:
        while True:
            written, count = None, 1
            if self._queued:
                frame, count, size = self._gathered()
            elif self._offered is not None:
                frame, written = self._offered
                self._offered, size = None, size_of(frame)
            else:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._wire.write(frame)
            self._traffic.messages_sent += count
            self._traffic.bytes_sent += size
            if written is not None and not written.done():
                written.set_result(None)

    def _gathered(self) -> tuple[pb.SyncFrame, int, int]:
        """Take the oldest queued frames as one frame, and return it, their count and their size."""
        frames, size = list[pb.SyncFrame](), 0
        while self._queued and (not frames or size + self._queued[0][1] <= GATHERED_BYTES_MAX):
            frame, more = self._queued.popleft()
            frames.append(frame)
            size += more
        self._queued_bytes -= size
        one = frames[0] if len(frames) == 1 else pb.SyncFrame(several=pb.Several(frames=frames))
        return one, len(frames), size
