"""What programs that send events import.

producer    gathers rows into requests, keeps them in sequence, and tells what is committed
endpoints   which node is asked, what its answer means, when to ask again
admin       what an operator asks of a running node
payload     the bytes of one request: lines of JSON, or Arrow
files       a file, sent with progress
sources     how NDJSON, CSV and Parquet are read
"""

from ha_engine.client.producer import Ack, Producer
from ha_engine.errors import DeliveryFailed, InvalidEvents

__all__ = ["Ack", "DeliveryFailed", "InvalidEvents", "Producer"]
