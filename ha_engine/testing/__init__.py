"""For who writes a plug-in: what the engine expects of one, as tests to inherit.

sink_contract   of a kind of sink
"""

from ha_engine.testing.sink_contract import SinkContract

__all__ = ["SinkContract"]
