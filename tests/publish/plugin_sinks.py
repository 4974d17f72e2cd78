"""Sinks of the example package, assembled as in a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ha_engine.plugins import SinkPlace, sink_kind
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.plugin import PluginSink
from tests.publish.batches import QUERY


def plugin_sink(directory: Path, url: str, kind: str, options: dict[str, Any]) -> PluginSink:
    """Return a sink of the example package; ``url`` names the database with its ledger."""
    found = sink_kind(kind)
    letters = SinkDeadLetters(directory, QUERY, kind)
    place = SinkPlace("default", QUERY, kind, letters.put_aside)
    ledger = LedgerStore(open_engine(url), LedgerKey("default", QUERY, kind), None)
    parsed = found.Options.model_validate(options)
    return PluginSink(kind, place, lambda: found(parsed, place), ledger, letters)
