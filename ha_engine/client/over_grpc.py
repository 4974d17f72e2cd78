"""Send requests over gRPC, with one stream per node on which requests do not wait for each
other."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import grpc

from ha_engine.client.payload import Form
from ha_engine.client.token import TOKEN_VARIABLE, authorization, trusted_roots
from ha_engine.client.transport import NoAnswer, RemoteColumn, Request
from ha_engine.errors import (
    Backpressure,
    InvalidEvents,
    NotActive,
    NotAllowed,
    PayloadTooLarge,
    Rejected,
    SequenceConflict,
    SequenceForgotten,
    UnknownStream,
)
from ha_engine.types import Position
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import ingest_pb2_grpc as rpc

if TYPE_CHECKING:
    Answer = asyncio.Future[pb.PublishAnswer]
    Call = grpc.aio.StreamStreamCall[pb.PublishRequest, pb.PublishAnswer]
    Stub = rpc.IngestAsyncStub

SCHEME, TLS_SCHEME = "grpc://", "grpcs://"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # The producer replaces a failed channel. The new channel must not share the back-off of the
    # failed one.
    ("grpc.use_local_subchannel_pool", 1),
)


_TOO_LARGE = re.compile(r"larger than max \(\d+ vs\. (\d+)\)")
"""gRPC's reason for the end of a stream that got too large a message, with the largest size."""


class OverGrpc:
    """The transport over gRPC. URLs have the form ``grpc://host:port``, or ``grpcs://host:port``
    for TLS.

    TLS trusts the certificate authorities in the file that SSL_CERT_FILE names, else those of the
    system.
    """

    def __init__(self) -> None:
        self._connections: dict[str, _Connection] = {}

    async def post(self, url: str, request: Request, patience: float) -> Position:
        """Store a request. Raises NoAnswer, Rejected."""
        connection = self._connection(url)
        try:
            async with asyncio.timeout(patience):
                answer = await connection.ask(_message(request))
        except TimeoutError:
            await connection.end("the node does not answer")
            raise NoAnswer("the node does not answer", silent=True) from None
        if answer.HasField("refused"):
            raise _refusal(answer.refused, _scheme(url))
        return Position(answer.stored.epoch, answer.stored.sequence)

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises NoAnswer, UnknownStream."""
        try:
            reply = await self._connection(url).describe(stream, patience)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise UnknownStream(error.details() or "") from None
            raise _failure(error) from None
        return [RemoteColumn(one.name, one.type, one.nullable) for one in reply.columns]

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            await connection.end("the producer is closed")

    def _connection(self, url: str) -> _Connection:
        connection = self._connections.get(url)
        if connection is None or connection.failure is not None:
            connection = self._connections[url] = _Connection(url)
        return connection


class _Connection:
    """One connection to a node, with one gRPC stream. The first failure ends the stream, and each
    waiting request gets that failure."""

    def __init__(self, url: str) -> None:
        target = url.removeprefix(_scheme(url))
        self.failure: NoAnswer | NotAllowed | None = None
        self._channel = _channel(target, is_secure=_scheme(url) == TLS_SCHEME)
        self._stub: Stub = rpc.IngestStub(self._channel)
        self._metadata = tuple(authorization().items())
        # ``_write`` writes the requests of this call, so the call gets no iterator of requests.
        self._call: Call = self._stub.Publish(metadata=self._metadata)  # type: ignore[call-arg]
        self._ids = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._outgoing: asyncio.Queue[pb.PublishRequest] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(), name=f"answers of {target}")
        self._writing = asyncio.create_task(self._write(), name=f"requests to {target}")

    async def ask(self, request: pb.PublishRequest) -> pb.PublishAnswer:
        """Send ``request`` and wait for its answer. Raises NoAnswer, PayloadTooLarge."""
        request.id = next(self._ids)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = _Waiting(answer, request.ByteSize())
        self._outgoing.put_nowait(request)
        try:
            return await answer
        finally:
            del self._waiting[request.id]

    async def describe(self, stream: str, patience: float) -> pb.StreamDescription:
        """Ask the node for the columns of ``stream``. Raises AioRpcError, NoAnswer, NotAllowed."""
        request, metadata = pb.DescribeRequest(stream=stream), self._metadata
        try:
            return await self._stub.Describe(request, timeout=patience, metadata=metadata)
        except asyncio.CancelledError:
            # gRPC also raises CancelledError if the channel was closed because the stream of
            # requests failed.
            task = asyncio.current_task()
            if self.failure is None or (task is not None and task.cancelling()):
                raise
            raise self.failure from None

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
            failure = _failure(error)
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


def _scheme(url: str) -> str:
    return TLS_SCHEME if url.startswith(TLS_SCHEME) else SCHEME


def _channel(target: str, *, is_secure: bool) -> grpc.aio.Channel:
    """Open a channel. Raises ConfigError."""
    if not is_secure:
        return grpc.aio.insecure_channel(target, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(trusted_roots())
    return grpc.aio.secure_channel(target, credentials, _OPTIONS)


def _message(request: Request) -> pb.PublishRequest:
    message = pb.PublishRequest(
        stream=request.stream, producer=request.producer, sequence=request.sequence
    )
    match request.payload.form:
        case Form.ARROW:
            message.arrow = request.payload.body
        case Form.NDJSON:
            message.ndjson = request.payload.body
    return message


def _refusal(reply: pb.EventsRefused, scheme: str) -> Rejected:
    reasons = pb.EventsRefused
    match reply.reason:
        case reasons.INVALID_EVENTS:
            return InvalidEvents(reply.error, reply.row if reply.HasField("row") else None)
        case reasons.UNKNOWN_STREAM:
            return UnknownStream(reply.error)
        case reasons.TOO_LARGE:
            return PayloadTooLarge(reply.error)
        case reasons.SEQUENCE_CONFLICT:
            return SequenceConflict(reply.error)
        case reasons.SEQUENCE_FORGOTTEN:
            return SequenceForgotten(reply.error)
        case reasons.BACKPRESSURE:
            return Backpressure(reply.error, reply.retry_after_seconds)
        case reasons.NOT_ACTIVE:
            return NotActive(
                reply.error, scheme + reply.active_address if reply.active_address else None
            )
        case _:
            return Rejected(reply.error)


def _failure(error: grpc.aio.AioRpcError) -> NoAnswer | NotAllowed:
    reason, codes = error.details() or "the connection ended", grpc.StatusCode
    if error.code() in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
        return NotAllowed(f"{reason}; set {TOKEN_VARIABLE} to a token that may send")
    return NoAnswer(reason, silent=error.code() is codes.DEADLINE_EXCEEDED)
