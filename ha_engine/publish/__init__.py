"""Delivery of admitted batches to sinks, in order and under an epoch.

publisher   one watched task per (query, sink), from the ledger's batch on (RULES.md#r24)
delivery    what one such task does
sink        what a sink is, and what a call of it may take
sinks       one module a kind of sink
"""

from ha_engine.publish.delivery import SinkState, SinkStatus
from ha_engine.publish.publisher import Publisher
from ha_engine.publish.sink import Authority, Deadline, Sink

__all__ = ["Authority", "Deadline", "Publisher", "Sink", "SinkState", "SinkStatus"]
