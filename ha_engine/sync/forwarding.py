"""Send the requests of producers to a peer that is the active.

They have a gRPC stream of their own, so that no message of the cores waits for a large request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.client.exchange import Exchange
from ha_engine.client.transport import NoAnswer
from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.sync.channel import channel_to
from ha_engine.sync.peer_calls import naming
from ha_engine.v1 import sync_pb2 as pb
from ha_engine.v1 import sync_pb2_grpc as rpc
from ha_engine.v1.ingest_pb2 import PublishAnswer

if TYPE_CHECKING:
    Stub = rpc.EventSyncAsyncStub

ANSWER_SECONDS = 5.0
"""An answer comes after this time at the latest, and after a commit of an active whose passive has
just gone (``event_sync.sync_timeout``)."""


class Forwarder:
    """Forwards requests from this ``node``, with one gRPC stream to each peer."""

    def __init__(self, config: EventSyncConfig, node: str, process: str) -> None:
        self._config, self._metadata = config, naming(node, process)
        self._exchanges: dict[str, Exchange[pb.ForwardRequest]] = {}
        self.patience = max(ANSWER_SECONDS, 2 * config.sync_timeout + 1)
        self._closed = False

    async def forward(self, peer: str, request: pb.ForwardRequest) -> PublishAnswer:
        """The answer of ``peer``. Raises NoAnswer, NotAllowed, PayloadTooLarge, ConfigError."""
        return await self._exchange(peer).ask_within(request, self.patience)

    async def close(self) -> None:
        self._closed = True
        for exchange in list(self._exchanges.values()):
            await exchange.end("this node stops")

    def _exchange(self, peer: str) -> Exchange[pb.ForwardRequest]:
        if self._closed:
            raise NoAnswer("this node stops")
        exchange = self._exchanges.get(peer)
        if exchange is None or exchange.failure is not None:
            channel = channel_to(peer, self._config)
            stub: Stub = rpc.EventSyncStub(channel)
            call = stub.Forward(metadata=self._metadata)  # type: ignore[call-arg]
            exchange = self._exchanges[peer] = Exchange(channel, call, peer)
        return exchange
