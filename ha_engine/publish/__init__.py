"""Delivery of admitted batches to sinks, in order and under an epoch.

publisher   one watched task per (query, sink), from the ledger's batch on (R24)
delivery    what one such task does
sinks       one module a kind of sink
"""

from ha_engine.publish.delivery import Authority, Deadline, Sink, SinkState, SinkStatus
from ha_engine.publish.publisher import Publisher

__all__ = ["Authority", "Deadline", "Publisher", "Sink", "SinkState", "SinkStatus"]
