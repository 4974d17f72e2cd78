"""Requests and answers on one gRPC stream, on which requests do not wait for each other."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import grpc

from ha_engine.client.token import TOKEN_VARIABLE
from ha_engine.client.transport import NoAnswer
from ha_engine.errors import NotAllowed, PayloadTooLarge
from ha_engine.v1 import ingest_pb2 as pb

if TYPE_CHECKING:
    Answer = asyncio.Future[pb.PublishAnswer]

_TOO_LARGE = re.compile(r"larger than max \(\d+ vs\. (\d+)\)")
"""gRPC's reason for the end of a stream that got too large a message, with the largest size."""

_HIDDEN = "Internal error from Core"
"""What gRPC says in place of the peer's reason if the peer ends a stream during a write."""

REASON_HIDDEN = "the node ended the stream during a write"
"""The reason of such a NoAnswer; another attempt may get the peer's own."""


class Numbered(Protocol):
    """A request whose answer has the same ``id``."""

    id: int

    def ByteSize(self) -> int: ...  # noqa: N802 - as protobuf names it


Request = TypeVar("Request", bound=Numbered)


class Exchange(Generic[Request]):
    """One ``call`` on its own ``channel`` to ``target``. The first failure ends the call, and each
    waiting request gets that failure."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, target: str) -> None:
        self.failure: NoAnswer | NotAllowed | None = None
        self._channel, self._call = channel, call
        self._ids = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._outgoing: asyncio.Queue[Request] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(), name=f"answers of {target}")
        self._writing = asyncio.create_task(self._write(), name=f"requests to {target}")

    async def ask(self, request: Request) -> pb.PublishAnswer:
        """Send ``request`` and wait for its answer. Raises NoAnswer, PayloadTooLarge."""
        if self.failure is not None:
            raise self.failure
        request.id = next(self._ids)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = _Waiting(answer, request.ByteSize())
        self._outgoing.put_nowait(request)
        try:
            return await answer
        finally:
            del self._waiting[request.id]

    async def ask_within(self, request: Request, patience: float) -> pb.PublishAnswer:
        """Like ``ask``. Without an answer within ``patience`` seconds the exchange ends."""
        try:
            async with asyncio.timeout(patience):
                return await self.ask(request)
        except TimeoutError:
            await self.end("the node does not answer")
            raise NoAnswer("the node does not answer", silent=True) from None

    async def end(self, reason: str) -> None:
        self._fail(NoAnswer(reason))
        self._reading.cancel()
        await self._channel.close(None)

    async def _read(self) -> None:
        failure: NoAnswer | NotAllowed = NoAnswer("the node ended the stream")
        try:
            async for answer in self._call:
                waiting = self._waiting.get(answer.id)
                if waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(answer)
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error)
            if said := _TOO_LARGE.search(error.details() or ""):
                self._refuse_above(int(said[1]))
        finally:
            self._fail(failure)
            await self._channel.close(None)

    async def _write(self) -> None:
        """Write requests in a separate task, because a blocked write can outlast the end of its
        gRPC call."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader reports it
            while True:
                await self._call.write(await self._outgoing.get())

    def _refuse_above(self, bytes_max: int) -> None:
        """Fail the requests that are too large for the node's gRPC, because no retry can help."""
        for answer, size in self._waiting.values():
            if size > bytes_max and not answer.done():
                answer.set_exception(
                    PayloadTooLarge(
                        f"a request of {size} bytes is larger than the node takes over gRPC; send "
                        "several smaller ones, or raise ingest.max_body"
                    )
                )

    def _fail(self, failure: NoAnswer | NotAllowed) -> None:
        self.failure = failure
        self._writing.cancel()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(failure)


class _Waiting(NamedTuple):
    """The answer that a request waits for, and the request's size in bytes."""

    answer: Answer
    size: int


def failure_of(error: grpc.aio.AioRpcError) -> NoAnswer | NotAllowed:
    reason, codes = error.details() or "the connection ended", grpc.StatusCode
    if error.code() is codes.INTERNAL and reason == _HIDDEN:
        reason = REASON_HIDDEN
    if error.code() in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
        return NotAllowed(f"{reason}; set {TOKEN_VARIABLE} to a token that may send")
    return NoAnswer(reason, silent=error.code() is codes.DEADLINE_EXCEEDED)
