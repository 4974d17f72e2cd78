"""Test classes that authors of plug-ins inherit, to check what the engine expects of a plug-in.

``sink_contract``    has the tests of a kind of sink.
``source_contract``  has the tests of a kind of source.
"""

from ha_engine.testing.sink_contract import SinkContract
from ha_engine.testing.source_contract import SourceContract

__all__ = ["SinkContract", "SourceContract"]
