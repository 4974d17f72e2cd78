"""The client package, which programs import to send events.

producer        the producer for threads; it runs an AsyncProducer on its own event loop
async_producer  gathers rows into requests, keeps their sequence, reports committed rows
endpoints       chooses the node to send to, and the time of a retry
transport       the interface of a transport to a node
over_http       the transport over HTTP
over_grpc       the transport over gRPC
exchange        requests and answers on one gRPC stream
answers         reads an answer over HTTP
payload         the bytes of one request: lines of JSON, or Arrow
admin           an operator's requests to a running node
switchover, failover, snapshot, deploy
                longer operations: request one, and wait for its end
token           the token and the certificates of a client
files           sends a file, with progress
sources         reads NDJSON, CSV and Parquet
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ha_engine.errors import DeliveryFailed, InvalidEvents

if TYPE_CHECKING:
    from ha_engine.client.async_producer import Ack, AsyncProducer
    from ha_engine.client.producer import Producer

__all__ = ["Ack", "AsyncProducer", "DeliveryFailed", "InvalidEvents", "Producer"]


def __getattr__(name: str) -> Any:
    """Import a producer, and with it pyarrow, on first use only: ``ha-engine status`` needs
    neither."""
    match name:
        case "Producer":
            from ha_engine.client.producer import Producer

            return Producer
        case "Ack" | "AsyncProducer":
            from ha_engine.client import async_producer

            return getattr(async_producer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
