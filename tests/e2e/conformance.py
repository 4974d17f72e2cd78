"""What schemathesis must be told of the HTTP interface: bodies that it cannot write by itself."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(context: Any, value: Any) -> bytes:
    """Text and bytes are sent as they are; no stream takes them, and each is told why."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
