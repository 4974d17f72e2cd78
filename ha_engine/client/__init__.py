"""What programs that send events import.

producer    gathers rows into requests, keeps them in sequence, and tells what is committed
endpoints   which node is asked, what its answer means, when to ask again
admin       what an operator asks of a running node
files       NDJSON and CSV files, sent with progress
"""

from ha_engine.client.producer import Ack, Producer
from ha_engine.errors import DeliveryFailed, InvalidEvents

__all__ = ["Ack", "DeliveryFailed", "InvalidEvents", "Producer"]
