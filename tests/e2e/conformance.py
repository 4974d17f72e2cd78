"""Additions to schemathesis for the HTTP interface: bodies that it cannot generate itself."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer(
    "application/x-ndjson", "application/vnd.apache.arrow.stream", "application/x-protobuf"
)
def as_it_is(context: Any, value: Any) -> bytes:
    """Send text and bytes unchanged; every stream refuses them with a reason."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
