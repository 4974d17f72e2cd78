"""For who writes a plug-in: what the engine expects of one, as tests to inherit.

sink_contract     of a kind of sink
source_contract   of a kind of source
"""

from ha_engine.testing.sink_contract import SinkContract
from ha_engine.testing.source_contract import SourceContract

__all__ = ["SinkContract", "SourceContract"]
