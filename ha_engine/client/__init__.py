"""What programs that send events import.

producer        for threads: an event loop of its own, on which it drives
async_producer  which gathers rows into requests, keeps them in sequence, tells what is committed
endpoints       which node is asked, and when to ask again
transport       what a way to a node must be able to do
over_http       the one way, and what a node's answers mean there
over_grpc       the other
answers         what an answer over HTTP says
payload         the bytes of one request: lines of JSON, or Arrow
admin           what an operator asks of a running node
switchover, failover, snapshot
                the same for what takes a while: request it, and wait for it
token           the token and the certificates of a client
files           a file, sent with progress
sources         how NDJSON, CSV and Parquet are read
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ha_engine.errors import DeliveryFailed, InvalidEvents

if TYPE_CHECKING:
    from ha_engine.client.async_producer import Ack, AsyncProducer
    from ha_engine.client.producer import Producer

__all__ = ["Ack", "AsyncProducer", "DeliveryFailed", "InvalidEvents", "Producer"]


def __getattr__(name: str) -> Any:
    """Import a producer, and pyarrow with it, on first use: ``ha-engine status`` needs neither."""
    match name:
        case "Producer":
            from ha_engine.client.producer import Producer

            return Producer
        case "Ack" | "AsyncProducer":
            from ha_engine.client import async_producer

            return getattr(async_producer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
