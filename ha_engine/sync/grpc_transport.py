"""The gRPC connections between nodes, with TLS and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.sync import credentials
from ha_engine.sync.channel import channel_to
from ha_engine.sync.peer_calls import PeerCalls, caller_of
from ha_engine.sync.transport import Refused, Serve
from ha_engine.sync.wire import ClientWire, ServerWire, WireBroken, names_of, options
from ha_engine.v1 import sync_pb2_grpc as rpc
from ha_engine.v1.ingest_pb2 import PublishAnswer
from ha_engine.v1.sync_pb2 import (
    CheckApplicationReply,
    CheckApplicationRequest,
    ForwardRequest,
)
from ha_engine.web.answered_stream import AnsweredStream
from ha_engine.web.grpc_port import GRACE_SECONDS, add_port

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Requests = AsyncIterator[ForwardRequest]
    Stub = rpc.EventSyncAsyncStub

CALLS_MAX = 256
"""Calls at one time, of peers and of callers that the sync stage will soon end."""
CONNECTIONS_MAX = 128
"""Connections to this node's port, each of which is an open file."""
FORWARDED_MAX = 1_024
"""Forwarded requests of one peer that are read and unanswered."""
IDLE_SECONDS = 5
"""A connection without a call is closed after this time, so that strangers cannot keep all
connections. A peer calls at once."""
_DISTRUST = {
    "Hostname Verification": "the node at {address} shows no certificate for {peer}; correct "
    "event_sync.peers, or the names in its certificate",
    "CERTIFICATE_VERIFY_FAILED": "the certificate at {address} has expired or is not signed by "
    "event_sync.tls.ca; correct the certificate or the setting",
    "WRONG_VERSION_NUMBER": "the node at {address} uses plain text, but this node uses TLS; set "
    "event_sync.tls on both",
}
"""Parts of gRPC's errors about a peer's certificate, each with its meaning."""


class GrpcTransport:
    """The transport of a node process with the settings ``config``.

    Without ``calls`` peers can only open streams.
    """

    def __init__(self, config: EventSyncConfig, calls: PeerCalls | None = None) -> None:
        self._config, self._calls = config, calls
        self._server: grpc.aio.Server | None = None

    async def listen(self, serve: Serve) -> int:
        """See Transport.listen."""
        credentials.require_usable(self._config.tls)
        bounds = [
            ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
            ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ]
        server = grpc.aio.server(
            options=[*options(self._config.sync_timeout), *bounds],
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        servicer = _Servicer(serve, self._calls, tls=self._config.tls.given)
        rpc.add_EventSyncServicer_to_server(servicer, server)
        trusted = credentials.for_server(self._config.tls)
        port = add_port(server, self._config.listen, trusted, "event_sync")
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        """See Transport.stop."""
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)

    @asynccontextmanager
    async def connect(self, peer: str, seconds: float) -> AsyncIterator[ClientWire]:
        """See Transport.connect."""
        async with channel_to(peer, self._config) as channel:
            stub: Stub = rpc.EventSyncStub(channel)
            call = stub.Sync()  # type: ignore[call-arg]  # its frames are written, not iterated
            try:
                async with asyncio.timeout(seconds):
                    await call.wait_for_connection()
            except grpc.aio.AioRpcError as error:
                raise _meaning(
                    peer, self._config.peers[peer], error.details() or "no answer"
                ) from error
            try:
                yield ClientWire(call, peer if self._config.tls.given else None)
            finally:
                call.cancel()


class _Servicer(rpc.EventSyncServicer):
    def __init__(self, serve: Serve, calls: PeerCalls | None, *, tls: bool) -> None:
        self._serve, self._calls, self._tls = serve, calls, tls

    async def Sync(  # type: ignore[override]  # noqa: N802
        self, request_iterator: object, context: Context
    ) -> None:
        await self._serve(ServerWire(context, tls=self._tls))

    async def Forward(  # type: ignore[override]  # noqa: N802
        self, request_iterator: Requests, context: Context
    ) -> None:
        store = None if self._calls is None else self._calls.store
        if store is None or not self._is_peer(context) or not self._may_forward(context):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "only a peer of this node with the same application may forward events, and only "
                "with receive.forward here",
            )
        stream = AnsweredStream[ForwardRequest, PublishAnswer](
            request_iterator, context, FORWARDED_MAX
        )

        async def answer(request: ForwardRequest) -> None:
            await stream.answer(await store(request))

        async with asyncio.TaskGroup() as storing:
            async for request in stream.requests():
                storing.create_task(answer(request))

    async def CheckApplication(  # noqa: N802
        self, request: CheckApplicationRequest, context: Context
    ) -> CheckApplicationReply:
        if self._calls is None or not self._is_peer(context):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "only a peer of this node may ask"
            )
        return await self._calls.check(request)

    def _may_forward(self, context: Context) -> bool:
        return self._calls is not None and self._calls.may_forward(caller_of(context)[0])

    def _is_peer(self, context: Context) -> bool:
        node, process = caller_of(context)
        certified = names_of(context) if self._tls else {node}
        return self._calls is not None and node in certified and self._calls.admits(node, process)


def _meaning(peer: str, address: str, details: str) -> Refused | WireBroken:
    for sign, meaning in _DISTRUST.items():
        if sign in details:
            return Refused(peer, meaning.format(address=address, peer=peer))
    return WireBroken(details.rpartition("last error: ")[2])
