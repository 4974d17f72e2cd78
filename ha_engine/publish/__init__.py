"""Publish admitted batches to sinks, in order and under an epoch.

``publisher``  runs one watched task for each sink of each query (RULES.md#r24).
``delivery``   does the work of one such task.
``sink``       defines the interface of a sink, and the time that a call of a sink may take.
``sinks``      has one module per kind of sink.
"""

from ha_engine.publish.delivery import SinkState, SinkStatus
from ha_engine.publish.publisher import Publisher
from ha_engine.publish.sink import Authority, Deadline, Sink

__all__ = ["Authority", "Deadline", "Publisher", "Sink", "SinkState", "SinkStatus"]
