"""Parse small JSON bodies that arrive in one turn of the event loop in one call.

A busy gate needs this, because a call of the parser costs 0.1 ms before it reads a byte. A thread
parses each bigger body; the parser releases the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import pyarrow as pa

from ha_engine.receive.decode import Decoder, Format, Lines

SMALL_BYTES = 32 << 10
"""For a body of at most this size, a switch to a thread and back costs more than the parse."""
TOGETHER_BYTES = 256 << 10
"""The event loop parses at most this much at once (about 1.5 ms)."""

_Waiting = tuple[Lines, "asyncio.Future[pa.RecordBatch]"]


class BatchingDecoder:
    """One per stream, on the event loop. ``threads`` parse bodies that are too big for the loop."""

    def __init__(self, decoder: Decoder, threads: Executor) -> None:
        self._decoder, self._threads = decoder, threads
        self._waiting: list[_Waiting] = []
        self._bytes = 0

    async def decode(self, body: bytes, form: Format) -> pa.RecordBatch:
        """Decode like ``Decoder.decode``, with the same errors."""
        loop = asyncio.get_running_loop()
        if len(body) > SMALL_BYTES:
            return await loop.run_in_executor(self._threads, self._decoder.decode, body, form)
        if form is Format.ARROW:
            return self._decoder.decode(body, form)
        lines = self._decoder.lines(body, form)
        batch: asyncio.Future[pa.RecordBatch] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._parse)
        self._waiting.append((lines, batch))
        self._bytes += len(lines.text)
        if self._bytes >= TOGETHER_BYTES:
            self._parse()
        return await batch

    def _parse(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for (_, future), outcome in zip(waiting, self._outcomes(waiting), strict=True):
            if future.done():
                continue
            match outcome:
                case Exception():
                    future.set_exception(outcome)
                case _:
                    future.set_result(outcome)

    def _outcomes(self, waiting: list[_Waiting]) -> Sequence[pa.RecordBatch | Exception]:
        """Parse together; after an error parse each request alone, so that only a bad one fails."""
        batches = None
        if len(waiting) > 1:
            batches = self._decoder.parse_together([lines for lines, _ in waiting])
        return batches or [self._alone(lines) for lines, _ in waiting]

    def _alone(self, lines: Lines) -> pa.RecordBatch | Exception:
        try:
            return self._decoder.parse(lines)
        except Exception as error:
            return error
