"""Plug-ins: the kinds of sinks and sources that the engine or another package provides.

``interface``  defines what a plug-in implements, and finds installed plug-ins.
``options``    reads a plug-in's options from an application file, with the secrets that they name.
``calls``      runs a call of a plug-in in a thread of its own.
``row_files``  writes rows as files, for sinks that create files or objects.
"""

from ha_engine.plugins.interface import (
    OFFSET_BYTES_MAX,
    SINKS,
    SOURCES,
    Backlog,
    Claim,
    DeadLetter,
    LedgerSinkPlugin,
    Messages,
    OutputBatch,
    SinkPlace,
    SinkPlugin,
    SourceBatch,
    SourcePlace,
    SourcePlugin,
    attributes_of,
    keeps_ledger,
    may_have_buckets,
    require_fit,
    sink_kind,
    source_kind,
)

__all__ = [
    "OFFSET_BYTES_MAX",
    "SINKS",
    "SOURCES",
    "Backlog",
    "Claim",
    "DeadLetter",
    "LedgerSinkPlugin",
    "Messages",
    "OutputBatch",
    "SinkPlace",
    "SinkPlugin",
    "SourceBatch",
    "SourcePlace",
    "SourcePlugin",
    "attributes_of",
    "keeps_ledger",
    "may_have_buckets",
    "require_fit",
    "sink_kind",
    "source_kind",
]
