"""Send one peer the records after a position, then each new record as it is appended.

A record may be sent before it is durable on this node, so that the disks of both nodes write at the
same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from ha_engine.sync.codec import records_frame
from ha_engine.sync.link import Link
from ha_engine.sync.tail import Chunk, Files, Tail, WrittenRecords
from ha_engine.types import Position

CHUNK_BYTES_MAX = 1 << 20
CHUNK_BYTES_MIN = 64 << 10
GATHER_SECONDS = 0.002
"""How long a record waits for others to share its message, while the peer has a message to confirm.

Each message costs both nodes CPU time. Records that the peer writes together become durable no
later than in separate messages.
"""


class RecordStream:
    """Sends records from construction until ``stop``. Each message has the highest committed
    sequence, which ``committed`` returns."""

    def __init__(
        self,
        link: Link,
        epoch: int,
        after: Position,
        tail: Tail,
        journal: WrittenRecords,
        committed: Callable[[], int],
        in_flight_max: int,
    ) -> None:
        self.epoch = epoch
        self._link, self._at, self._tail, self._committed = link, after, tail, committed
        self._files = Files(journal)
        # At least four messages fit into ``in_flight_max``, so that the peer's disk and the network
        # work at the same time.
        self._chunk_max = max(CHUNK_BYTES_MIN, min(CHUNK_BYTES_MAX, in_flight_max // 4))
        self._in_flight_max = in_flight_max
        # The last sequence and the size of each message that the peer has not confirmed.
        self._unconfirmed: deque[tuple[int, int]] = deque()
        self.in_flight = 0
        self._progressed = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(
            self._run(), name=f"records to {link.peer}"
        )

    def stop(self) -> None:
        """Stop sending, except for a message that is being written."""
        self.task.cancel()
        self._link.withdraw()

    def appended(self) -> None:
        self._progressed.set()

    def confirmed(self, durable: int) -> None:
        """Note that every record up to ``durable`` is durable on the peer's disk."""
        while self._unconfirmed and self._unconfirmed[0][0] <= durable:
            self.in_flight -= self._unconfirmed.popleft()[1]
        self._progressed.set()

    async def _run(self) -> None:
        while True:
            await self._wait_for_space(CHUNK_BYTES_MIN)
            chunk = await self._next()
            await self._wait_for_space(len(chunk.frames))
            frame = records_frame(self.epoch, self._at, chunk.frames, self._committed())
            self._at = chunk.last
            self._unconfirmed.append((chunk.last.sequence, len(chunk.frames)))
            self.in_flight += len(chunk.frames)
            await self._link.offer(frame)

    async def _wait_for_space(self, size: int) -> None:
        while self.in_flight and self.in_flight + size > self._in_flight_max:
            await self._move()

    async def _next(self) -> Chunk:
        while True:
            first = self._at.sequence + 1
            if first < self._tail.first:
                last = self._tail.first - 1
                return await asyncio.to_thread(self._files.chunk, first, last, self._chunk_max)
            if first == self._tail.next:
                await self._move()
            else:
                await self._gather()
                if chunk := self._tail.chunk(first, self._chunk_max):
                    return chunk

    async def _gather(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                while self._unconfirmed:
                    await self._move()

    async def _move(self) -> None:
        self._progressed.clear()
        await self._progressed.wait()
