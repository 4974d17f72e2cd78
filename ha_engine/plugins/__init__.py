"""Kinds of sinks and sources: the engine's own, and those of other packages.

interface  what a plug-in implements, and how the engine finds it; all of it is public here
options    the options of a kind from an application file, with the secrets that they refer to
calls      runs a call of a plug-in in a thread of its own
"""

from ha_engine.plugins.interface import (
    OFFSET_BYTES_MAX,
    SINKS,
    SOURCES,
    DeadLetter,
    OutputBatch,
    SinkPlace,
    SinkPlugin,
    SourceBatch,
    SourcePlace,
    SourcePlugin,
    require_fit,
    sink_kind,
    source_kind,
)

__all__ = [
    "OFFSET_BYTES_MAX",
    "SINKS",
    "SOURCES",
    "DeadLetter",
    "OutputBatch",
    "SinkPlace",
    "SinkPlugin",
    "SourceBatch",
    "SourcePlace",
    "SourcePlugin",
    "require_fit",
    "sink_kind",
    "source_kind",
]
