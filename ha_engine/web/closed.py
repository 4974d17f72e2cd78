"""Why a node closes the connections and gRPC streams of its clients."""

from __future__ import annotations

from enum import StrEnum


class Closed(StrEnum):
    """The reason for which a connection or stream was closed. The values never change, because
    alerts compare metrics with them."""

    DISPLACED = "displaced"
    """The connection waited for a request, and a new connection took its place."""
    HANDSHAKE = "handshake"
    """The client did not complete its TLS handshake."""
    TOO_MANY = "too_many"
    """No connection waited for a request, so the new connection was refused."""
    LATE = "late"
    """A request, or the rest of one that was answered early, did not arrive in time."""
    LARGE_HEADERS = "large_headers"
    MALFORMED = "malformed"
    PIPELINED = "pipelined"
    UNREAD = "unread"
    """The client did not read its answers."""
    STREAMS = "streams"
    """Producers have too many gRPC streams already."""
    STRANGER = "stranger"
    """A caller on the port between nodes did not introduce itself, or not in time."""
