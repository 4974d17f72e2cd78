"""What programs that send events import.

producer        for threads: an event loop of its own, on which it drives
async_producer  which gathers rows into requests, keeps them in sequence, tells what is committed
endpoints       which node is asked, and when to ask again
transport       what a way to a node must be able to do
over_http       the one way, and what a node's answers mean there
over_grpc       the other
payload         the bytes of one request: lines of JSON, or Arrow
admin           what an operator asks of a running node
files           a file, sent with progress
sources         how NDJSON, CSV and Parquet are read
"""

from ha_engine.client.async_producer import Ack, AsyncProducer
from ha_engine.client.producer import Producer
from ha_engine.errors import DeliveryFailed, InvalidEvents

__all__ = ["Ack", "AsyncProducer", "DeliveryFailed", "InvalidEvents", "Producer"]
