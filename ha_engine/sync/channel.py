"""The gRPC channel of a node to a peer."""

from __future__ import annotations

import grpc

from ha_engine.config.event_sync import EventSyncConfig
from ha_engine.sync import credentials
from ha_engine.sync.wire import options

RECONNECT_SECONDS_MIN = 4.0
"""A channel makes no second attempt within the longest timeout of the dialler, which gives each
attempt a channel of its own."""


def channel_to(peer: str, config: EventSyncConfig) -> grpc.aio.Channel:
    """Open a channel, with TLS if the config has it. Raises ConfigError."""
    address = config.peers[peer]
    settings: list[tuple[str, int | str]] = [
        *options(config.sync_timeout),
        ("grpc.min_reconnect_backoff_ms", int(RECONNECT_SECONDS_MIN * 1000)),
        ("grpc.enable_http_proxy", 0),
    ]
    trusted = credentials.for_channel(config.tls)
    if trusted is None:
        return grpc.aio.insecure_channel(address, settings)
    # ``ssl_target_name_override`` makes gRPC look for the peer's id in the certificate, instead
    # of the address's host name.
    settings += [("grpc.ssl_target_name_override", peer)]
    return grpc.aio.secure_channel(address, trusted, settings)
