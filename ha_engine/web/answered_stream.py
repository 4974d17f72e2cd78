"""The answering end of a gRPC stream whose requests do not wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import grpc

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class AnsweredStream(Generic[Request, Answer]):
    """One gRPC stream of a caller. At most ``in_flight_max`` requests of the stream are read and
    unanswered."""

    def __init__(
        self,
        requests: AsyncIterator[Request],
        context: grpc.aio.ServicerContext[Any, Any],
        in_flight_max: int,
    ) -> None:
        self._requests, self._context = requests, context
        self._room = asyncio.Semaphore(in_flight_max)
        self._writing = asyncio.Lock()

    async def requests(self) -> AsyncIterator[Request]:
        await self._room.acquire()
        async for request in self._requests:
            yield request
            await self._room.acquire()

    async def answer(self, answer: Answer) -> None:
        # A caller that has left needs no answer, and its stream ends with its requests.
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            async with self._writing:
                await self._context.write(answer)
        self._room.release()
