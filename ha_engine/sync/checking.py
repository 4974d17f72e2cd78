"""Ask a peer whether it could run an application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.errors import DeploymentRefused
from ha_engine.sync.channel import channel_to
from ha_engine.sync.peer_calls import naming
from ha_engine.v1 import sync_pb2 as pb
from ha_engine.v1 import sync_pb2_grpc as rpc

if TYPE_CHECKING:
    Stub = rpc.EventSyncAsyncStub

CHECK_SECONDS = 60.0
"""A peer only reads files for the check, and starts no Spark."""


class ApplicationChecks:
    """Asks peers on behalf of a process of ``node``."""

    def __init__(self, config: EventSyncConfig, node: str, process: str) -> None:
        self._config, self._metadata = config, naming(node, process)

    async def ask(self, peer: str, archive: bytes, shadow: bytes = b"") -> pb.CheckApplicationReply:
        """The answer of ``peer`` about an application, and a ``shadow`` beside it. Raises
        DeploymentRefused if it gives none, ConfigError."""
        async with channel_to(peer, self._config) as channel:
            stub: Stub = rpc.EventSyncStub(channel)
            request = pb.CheckApplicationRequest(archive=archive, shadow=shadow)
            try:
                return await stub.CheckApplication(
                    request, timeout=CHECK_SECONDS, metadata=self._metadata
                )
            except grpc.aio.AioRpcError as error:
                raise DeploymentRefused(
                    f"{peer} did not check the application: {error.details() or error.code().name}"
                ) from error
