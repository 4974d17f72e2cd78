"""Test classes that authors of plug-ins inherit, to check what the engine expects of a plug-in.

``sink_contract``         has the tests of a kind of sink.
``ledger_sink_contract``  has the tests of a kind of sink with its ledger at the destination.
``source_contract``       has the tests of a kind of source.
``queue_contract``        has the tests of a kind of source that acknowledges what is committed.
"""

from ha_engine.testing.ledger_sink_contract import LedgerSinkContract
from ha_engine.testing.queue_contract import QueueSourceContract
from ha_engine.testing.sink_contract import SinkContract
from ha_engine.testing.source_contract import SourceContract

__all__ = ["LedgerSinkContract", "QueueSourceContract", "SinkContract", "SourceContract"]
