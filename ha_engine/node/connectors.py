"""Make the sinks and pullers of an application, without opening files or connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from ha_engine.config import Config
from ha_engine.config.load import dereferenced
from ha_engine.errors import ConfigError
from ha_engine.node.database import database_engine
from ha_engine.plugins import SinkPlace, SourcePlace, SourcePlugin, sink_kind, source_kind
from ha_engine.plugins.options import options_of
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore
from ha_engine.postgres.sink_store import PostgresSinkStore
from ha_engine.postgres.sink_table import Target
from ha_engine.publish import Sink
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.plugin import PluginSink
from ha_engine.publish.sinks.postgres import PostgresSink
from ha_engine.query.application import (
    PluginSinkSpec,
    PostgresSinkSpec,
    SinkSpec,
    SourceSpec,
    StreamApplication,
    StreamSpec,
)
from ha_engine.receive.gate import Gate
from ha_engine.receive.intake import Intake
from ha_engine.receive.pull.dead_letters import SourceDeadLetters
from ha_engine.receive.pull.puller import Puller
from ha_engine.receive.receivers import Receivers


def sinks_of(config: Config, application: StreamApplication) -> dict[tuple[str, str], Sink]:
    """Make every sink of the application, by its query and its name. A sink connects at its first
    use. Raises ConfigError."""
    return {
        (query.name, spec.name): _sink(config, query.name, spec, application.directory)
        for query in application.queries.values()
        for spec in query.sinks
    }


def _sink(config: Config, query: str, spec: SinkSpec, base: Path) -> Sink:
    match spec:
        case PostgresSinkSpec():
            return _postgres_sink(config, query, spec, base)
        case PluginSinkSpec():
            return _plugin_sink(config, query, spec, base)


def _plugin_sink(config: Config, query: str, spec: PluginSinkSpec, base: Path) -> Sink:
    kind, options = sink_kind(spec.type), plugin_options(query, spec, base)
    letters = SinkDeadLetters(config.node.data_dir, query, spec.name)
    place = SinkPlace(config.group, query, spec.name, letters.put_aside)
    engine = database_engine(config, None, config.publish.timeout)
    key = LedgerKey(config.group, query, spec.name)
    ledger = LedgerStore(engine, key, config.database.schema_name)
    return PluginSink(spec.type, place, lambda: kind(options, place), ledger, letters)


def plugin_options(query: str, spec: PluginSinkSpec, base: Path) -> BaseModel:
    """The sink's options in the plug-in's model, with references resolved.

    Raises ConfigError; its message never shows a value.
    """
    where = f"query {query}: sink {spec.name}"
    return options_of(where, sink_kind(spec.type).Options, spec.options, base)


def _postgres_sink(config: Config, query: str, spec: PostgresSinkSpec, base: Path) -> Sink:
    url = None if spec.url is None else dereferenced(spec.url, base, os.environ)
    if url is None and spec.url is not None:
        raise ConfigError(
            f"query {query}: the url of sink {spec.name} refers to {spec.url}, which is missing; "
            "provide it"
        )
    key = LedgerKey(config.group, query, spec.name)
    target = Target(spec.table, spec.mode, spec.key, spec.auto_create)
    engine = database_engine(config, url, config.publish.timeout)
    return PostgresSink(spec.name, PostgresSinkStore(engine, key, target), spec.key)


def receivers_of(
    config: Config, application: StreamApplication, gate: Gate, intake: Intake
) -> Receivers:
    """Make the receivers of the gate, with a puller for each source, all closed. Raises
    ConfigError."""
    pullers = [
        _puller(config, stream, spec, application.directory, intake)
        for stream in application.streams.values()
        for spec in stream.sources
    ]
    return Receivers(gate, pullers)


def _puller(
    config: Config, stream: StreamSpec, spec: SourceSpec, base: Path, intake: Intake
) -> Puller:
    letters = SourceDeadLetters(config.node.data_dir, stream.name, spec.name)
    make = _maker(config, stream, spec, base)
    return Puller(stream.name, spec.name, spec.type, make, intake, letters)


def _maker(
    config: Config, stream: StreamSpec, spec: SourceSpec, base: Path
) -> Callable[[], SourcePlugin]:
    kind, options = source_kind(spec.type), source_options(stream, spec, base)
    place = SourcePlace(config.group, stream.name, spec.name, stream.arrow_schema)
    return lambda: kind(options, place)


def source_options(stream: StreamSpec, spec: SourceSpec, base: Path) -> BaseModel:
    """The source's options in the plug-in's model, with references resolved.

    Raises ConfigError; its message never shows a value.
    """
    where = f"stream {stream.name}: source {spec.name}"
    return options_of(where, source_kind(spec.type).Options, spec.options, base)
