"""Tests for authors of plug-ins to inherit: what the engine expects of a plug-in.

sink_contract     tests of a kind of sink
source_contract   tests of a kind of source
"""

from ha_engine.testing.sink_contract import SinkContract
from ha_engine.testing.source_contract import SourceContract

__all__ = ["SinkContract", "SourceContract"]
