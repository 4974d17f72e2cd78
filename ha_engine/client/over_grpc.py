"""Send requests over gRPC, with one stream per node on which requests do not wait for each
other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from ha_engine.client.exchange import Exchange, failure_of
from ha_engine.client.payload import Form
from ha_engine.client.token import authorization, trusted_roots
from ha_engine.client.transport import RemoteColumn, Request
from ha_engine.errors import (
    Backpressure,
    InvalidEvents,
    NotActive,
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
    Stub = rpc.IngestAsyncStub

SCHEME, TLS_SCHEME = "grpc://", "grpcs://"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # The producer replaces a failed channel. The new channel must not share the back-off of the
    # failed one.
    ("grpc.use_local_subchannel_pool", 1),
)


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
        exchange = self._connection(url).exchange
        answer = await exchange.ask_within(_message(request), patience)
        if answer.HasField("refused"):
            raise refusal_of(answer.refused, _scheme(url))
        return Position(answer.stored.epoch, answer.stored.sequence)

    async def columns(self, url: str, stream: str, patience: float) -> list[RemoteColumn]:
        """The columns of ``stream``. Raises NoAnswer, UnknownStream."""
        try:
            reply = await self._connection(url).describe(stream, patience)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise UnknownStream(error.details() or "") from None
            raise failure_of(error) from None
        return [RemoteColumn(one.name, one.type, one.nullable) for one in reply.columns]

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            await connection.exchange.end("the producer is closed")

    def _connection(self, url: str) -> _Connection:
        connection = self._connections.get(url)
        if connection is None or connection.exchange.failure is not None:
            connection = self._connections[url] = _Connection(url)
        return connection


class _Connection:
    """One connection to a node, with one stream of requests."""

    def __init__(self, url: str) -> None:
        target = url.removeprefix(_scheme(url))
        channel = _channel(target, is_secure=_scheme(url) == TLS_SCHEME)
        self._stub: Stub = rpc.IngestStub(channel)
        self._metadata = tuple(authorization().items())
        # The exchange writes the requests of this call, so the call gets no iterator of requests.
        call = self._stub.Publish(metadata=self._metadata)  # type: ignore[call-arg]
        self.exchange: Exchange[pb.PublishRequest] = Exchange(channel, call, target)

    async def describe(self, stream: str, patience: float) -> pb.StreamDescription:
        """Ask the node for the columns of ``stream``. Raises AioRpcError, NoAnswer, NotAllowed."""
        request, metadata = pb.DescribeRequest(stream=stream), self._metadata
        try:
            return await self._stub.Describe(request, timeout=patience, metadata=metadata)
        except asyncio.CancelledError:
            # gRPC also raises CancelledError if the channel was closed because the stream of
            # requests failed.
            task = asyncio.current_task()
            failure = self.exchange.failure
            if failure is None or (task is not None and task.cancelling()):
                raise
            raise failure from None


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


def refusal_of(reply: pb.EventsRefused, scheme: str = SCHEME) -> Rejected:
    """The error that a node has answered with. ``scheme`` begins the URL of the active."""
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
