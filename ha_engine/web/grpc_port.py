"""The port of a gRPC server, and the limits of the connections to it."""

from __future__ import annotations

import grpc

from ha_engine.errors import AddressInUse

KEEPALIVE_SECONDS = 20
"""Interval of pings on an idle connection. The pings detect a dead client, and show traffic to a
firewall."""
PINGS_EVERY_SECONDS_MIN = 1
"""The shortest permitted interval between pings of a client. By default gRPC ends connections that
ping more often than every five minutes."""
HANDSHAKE_SECONDS = 10
IDLE_SECONDS = 300
"""A connection without a call is closed after this time."""
GRACE_SECONDS = 0.2
"""A server that stops waits this time for calls to end."""


def add_port(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None, section: str
) -> int:
    """Bind ``address``, the setting ``listen`` of ``section``, in plain text without
    ``credentials``.

    Returns the port number. Raises AddressInUse.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressInUse(
            f"{section}.listen: {address} is in use or is no address of this host; stop the "
            "program that listens there, or choose another address"
        ) from error


def client_limits(connections_max: int) -> list[tuple[str, int]]:
    """Options of a server whose clients are not nodes."""
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PINGS_EVERY_SECONDS_MIN * 1000),
        # With SO_REUSEPORT, a second process on the same port would get every other connection.
        ("grpc.so_reuseport", 0),
    ]
