"""Receive events over gRPC: the Ingest service and its server.

No other module of the receive stage uses gRPC, since ``intake`` handles the requests. The service
decodes the requests of one gRPC stream one after the other, so that they are stored in the order of
arrival. Several decoded requests of one stream may wait for their commits at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from ha_engine.auth import Access, Denied, Right
from ha_engine.config.ingest import DEFAULT_LISTEN, IngestConfig
from ha_engine.errors import (
    AddressInUse,
    NotAllowed,
    Rejected,
    UnknownStream,
    UnsupportedFormat,
)
from ha_engine.receive.answers import refused, stored
from ha_engine.receive.body import BodyLimit
from ha_engine.receive.decode import Format
from ha_engine.receive.intake import DecodedRequest, Intake, SubmissionIdentity, identity_of
from ha_engine.v1 import ingest_pb2 as pb
from ha_engine.v1 import ingest_pb2_grpc as rpc
from ha_engine.web.answered_stream import AnsweredStream
from ha_engine.web.closed import Closed
from ha_engine.web.grpc_port import GRACE_SECONDS, add_port, client_limits
from ha_engine.web.tls import grpc_credentials, readable_pair

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Requests = AsyncIterator[pb.PublishRequest]
    Call = AnsweredStream[pb.PublishRequest, pb.PublishAnswer]

log = structlog.get_logger(__name__)

AddressOf = Callable[[str], str]
"""Takes the URL of a node, and returns the node's gRPC address for producers; empty when unknown.
"""


class IngestService(rpc.IngestServicer):
    """The gRPC service ``Ingest``, on the node's event loop."""

    def __init__(
        self,
        intake: Intake,
        config: IngestConfig,
        address_of: AddressOf,
        closed: Counter[str],
    ) -> None:
        self._intake, self._address_of = intake, address_of
        self._limit = BodyLimit(config.max_body, "ingest.max_body")
        self._streams_max, self._in_flight_max = config.max_streams, config.max_in_flight
        self._streams, self._closed = 0, closed

    async def Publish(  # type: ignore[override]  # noqa: N802
        self, request_iterator: Requests, context: Context
    ) -> None:
        if self._streams >= self._streams_max:
            self._closed[Closed.STREAMS] += 1
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the node has ingest.max_streams ({self._streams_max}) streams already; close "
                "unused ones, or raise the setting",
            )
        self._streams += 1
        try:
            await self._publish(AnsweredStream(request_iterator, context, self._in_flight_max))
        finally:
            self._streams -= 1

    async def _publish(self, call: Call) -> None:
        async with asyncio.TaskGroup() as storing:
            async for request in call.requests():
                try:
                    decoded = await self._unpack(request)
                except Rejected as refusal:
                    await call.answer(self._refused(request.id, request.stream, refusal))
                else:
                    storing.create_task(self._store(request.id, decoded, call))

    async def Describe(  # noqa: N802
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.StreamDescription:
        try:
            columns = self._intake.columns(request.stream)
        except UnknownStream as unknown:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(unknown))
        return pb.StreamDescription(columns=[pb.StreamColumn(**one._asdict()) for one in columns])

    async def _unpack(self, request: pb.PublishRequest) -> DecodedRequest:
        self._intake.require_stream(request.stream)
        form, raw = _payload(request)
        identity = _identity(request)
        self._intake.require_open(request.stream)
        with self._intake.body(self._limit) as body:
            body.reserve(len(raw))
            return await self._intake.unpack(request.stream, raw, form, identity)

    async def _store(self, request_id: int, decoded: DecodedRequest, call: Call) -> None:
        try:
            answer = stored(request_id, await self._intake.store(decoded))
        except Rejected as refusal:
            answer = self._refused(request_id, decoded.stream, refusal)
        await call.answer(answer)

    def _refused(self, request_id: int, stream: str, refusal: Rejected) -> pb.PublishAnswer:
        self._intake.count(stream, refusal)
        answer = refused(request_id, refusal)
        if answer.refused.active:
            answer.refused.active_address = self._address_of(answer.refused.active)
        return answer


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses the call of a client that may not send events, before any of its requests is read."""

    def __init__(self, access: Access, count_denied: Callable[[], None]) -> None:
        self.access, self._count_denied = access, count_denied

    async def intercept_service(self, continuation: Any, call: grpc.HandlerCallDetails) -> Any:
        said = dict(call.invocation_metadata or ()).get("authorization")
        handler = await continuation(call)
        denied = self.access.denial(Right.INGEST, None if said is None else str(said))
        if denied is None or handler is None:
            return handler
        self._count_denied()
        return _refusing(handler, denied)


def _refusing(handler: Any, denied: Denied) -> Any:
    """Make a handler of the same kind as ``handler`` that refuses every call."""
    codes = grpc.StatusCode
    code = codes.PERMISSION_DENIED if denied.known else codes.UNAUTHENTICATED

    async def refuse(_: object, context: Context) -> None:
        await context.abort(code, denied.reason)

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


class IngestServer:
    """The gRPC server for producers, one per node process."""

    def __init__(
        self,
        intake: Intake,
        config: IngestConfig,
        access: Access,
        address_of: AddressOf,
        connections_max: int,
        closed: Counter[str],
    ) -> None:
        self._config = config
        self._guard = _Guard(access, lambda: intake.count("", NotAllowed("the token")))
        self._server = grpc.aio.server(
            interceptors=[self._guard],
            options=_options(config.max_body, connections_max),
            # The service refuses further streams and counts them. This limit is for other calls.
            maximum_concurrent_rpcs=2 * config.max_streams,
        )
        service = IngestService(intake, config, address_of, closed)
        rpc.add_IngestServicer_to_server(service, self._server)
        self.address = ""
        """The address for producers; empty while the server does not listen."""
        self.port = 0

    async def start(self) -> None:
        """Listen for producers. Raises AddressInUse if the configured address is in use.

        If only the default address is in use, log a warning and do not listen. A second node on one
        host must start even if its config does not set ``ingest.listen``.
        """
        listen = self._config.listen or DEFAULT_LISTEN
        credentials = grpc_credentials(self._config.tls, "ingest.tls")
        try:
            self.port = add_port(self._server, listen, credentials, "ingest")
        except AddressInUse:
            if self._config.listen is not None:
                raise
            log.warning(
                "gRPC address in use, producers cannot use gRPC; set ingest.listen",
                address=listen,
            )
            return
        await self._server.start()
        self.address = self._config.advertise or listen

    def look_at_certificate(self) -> None:
        """Raise ConfigError if the certificate that is now in the file is unusable for new
        connections."""
        readable_pair(self._config.tls, "ingest.tls")

    def set_access(self, access: Access) -> None:
        """Check new calls by the rights in ``access`` from now on, while open streams continue."""
        self._guard.access = access

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Stop the server, after at most ``grace_seconds`` for requests in flight."""
        await self._server.stop(grace_seconds)


def _options(body_max: int, connections_max: int) -> list[tuple[str, int]]:
    # gRPC ends the whole stream after a message above gRPC's limit. A body just above our own
    # limit must stay below that of gRPC, so that we refuse that body alone (TOO_LARGE).
    bytes_max = body_max + body_max // 4 + (64 << 10)
    return [*client_limits(connections_max), ("grpc.max_receive_message_length", bytes_max)]


# -- messages --------------------------------------------------------------------------------------


def _payload(request: pb.PublishRequest) -> tuple[Format, bytes]:
    match request.WhichOneof("payload"):
        case "arrow":
            return Format.ARROW, request.arrow
        case "ndjson":
            return Format.NDJSON, request.ndjson
        case _:
            raise UnsupportedFormat("the request has no payload; send arrow or ndjson")


def _identity(request: pb.PublishRequest) -> SubmissionIdentity | None:
    return identity_of(
        request.producer if request.HasField("producer") else None,
        request.sequence if request.HasField("sequence") else None,
        ("producer", "sequence"),
    )
