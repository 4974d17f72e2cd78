"""Parse all small JSON bodies of one turn of the event loop in one call of the parser.

A busy gate needs joint parsing, because each call of the parser costs 0.1 ms before it reads a
byte. A thread parses each body above ``SMALL_BYTES``, because the parser releases the interpreter
lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import pyarrow as pa

from ha_engine.receive.decode import Decoder, Format, Lines

SMALL_BYTES = 32 << 10
"""Up to this size of a body, a switch to a thread and back costs more time than the parsing."""
TOGETHER_BYTES = 256 << 10
"""Waiting bodies are parsed as soon as they have this many bytes, because that takes about 1.5 ms.
"""

LinesOf = Callable[[bytes], Lines | None]
"""Makes lines of a body, or None if the body has no event."""
_Waiting = tuple[Lines, "asyncio.Future[pa.RecordBatch]"]


class BatchingDecoder:
    """Decodes the bodies of one stream, on the event loop. The executor ``threads`` decodes the
    larger bodies."""

    def __init__(self, decoder: Decoder, threads: Executor) -> None:
        self._decoder, self._threads = decoder, threads
        self._waiting: list[_Waiting] = []
        self._bytes = 0

    async def decode(self, body: bytes, form: Format) -> pa.RecordBatch:
        """Decode ``body`` like ``Decoder.decode``, with the same errors."""
        loop = asyncio.get_running_loop()
        if len(body) > SMALL_BYTES:
            return await loop.run_in_executor(self._threads, self._decoder.decode, body, form)
        if form is Format.ARROW:
            return self._decoder.decode(body, form)
        return await self._parsed(self._decoder.lines(body, form))

    async def decode_lines(self, body: bytes, lines_of: LinesOf) -> pa.RecordBatch:
        """Decode the lines that ``lines_of`` makes of ``body``, with its errors and those of
        ``Decoder.parse``."""
        if len(body) > SMALL_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._decode_lines, body, lines_of)
        lines = lines_of(body)
        return self._decoder.no_rows if lines is None else await self._parsed(lines)

    def _decode_lines(self, body: bytes, lines_of: LinesOf) -> pa.RecordBatch:
        lines = lines_of(body)
        return self._decoder.no_rows if lines is None else self._decoder.parse(lines)

    def _parsed(self, lines: Lines) -> asyncio.Future[pa.RecordBatch]:
        """The future batch of ``lines``, which are parsed together with others."""
        loop = asyncio.get_running_loop()
        batch: asyncio.Future[pa.RecordBatch] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._parse)
        self._waiting.append((lines, batch))
        self._bytes += len(lines.text)
        if self._bytes >= TOGETHER_BYTES:
            self._parse()
        return batch

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
        """Parse the waiting bodies together. If one body is bad, parse each body alone, so that
        only the bad one fails."""
        batches = None
        if len(waiting) > 1:
            batches = self._decoder.parse_together([lines for lines, _ in waiting])
        return batches or [self._alone(lines) for lines, _ in waiting]

    def _alone(self, lines: Lines) -> pa.RecordBatch | Exception:
        try:
            return self._decoder.parse(lines)
        except Exception as error:
            return error
